"""The ground of the attempts: files at home, inside and outside of its exports, and the check that they are unchanged."""

from __future__ import annotations

import os
import shutil
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import Node

EXPORTS, READ_ONLY = "/tmp/open", "/tmp/frozen"
TRY, GUARD, OUTSIDE, BESIDE = f"{EXPORTS}/try", f"{EXPORTS}/guard", "/tmp/outside", "/tmp/open-too"
SECRET = "the-secret"
AWAY = "/mfs/n1"
TABLE = Path(__file__).with_name("attempts.toml")
FUNCTIONS = """
try() {
    if [ -e "$1" ]; then
        cat "$1" "$1"/secret; ls -la "$1" "$1"/
        echo gone > "$1"; echo gone > "$1"/secret; touch "$1"/new; mkdir "$1"/made; chmod 777 "$1" "$1"/secret; rm -rf "$1"/secret "$1"/door
        cat "$1" "$1"/secret; ls -la "$1" "$1"/
    fi
}
pause() { echo ready; read -r _; }
"""


@dataclass(frozen=True)
class Attempt:
    """One row of the table."""

    name: str
    away: str
    home: str = ""
    then: str = ""
    user: str | None = None

    def script(self) -> str:
        return f"T={AWAY}{TRY} GUARD={AWAY}{GUARD} OUT={OUTSIDE}{FUNCTIONS}{self.away}"

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Attempt:
        way = row.pop("way", None)
        return cls(**row) if way is None else cls(**row, away=f'try "{way}"')


def table() -> list[Attempt]:
    """All attempts by programs."""
    return [Attempt.of_row(row) for row in tomllib.loads(TABLE.read_text())["attempt"]]


class Grounds:
    """The home of the exports, examined from outside of it."""

    def __init__(self, home: Node) -> None:
        self.home = home

    def at(self, path: str) -> Path:
        return self.home.root / path.lstrip("/")

    def prepare(self, script: str) -> dict[str, object]:
        """Makes everything anew, and runs a script of home's in the directory to be tried in; returns what `meanwhile` does."""
        if self.at(f"{TRY}/in").is_mount():
            self.home.run(["umount", "-l", f"{TRY}/in"], check=True)
        shutil.rmtree(self.at(TRY), ignore_errors=True)
        self.at(TRY).mkdir()
        self.at(TRY).chmod(0o777)
        for path in (GUARD, OUTSIDE, BESIDE):
            shutil.rmtree(self.at(path), ignore_errors=True)
            self._furnish(self.at(path))
        self.at(GUARD).chmod(0o700)
        for entry in self.at(READ_ONLY).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.at(f"{READ_ONLY}/file").write_text("to be read")
        self.at(f"{READ_ONLY}/directory").mkdir()
        return self.meanwhile(script)

    def meanwhile(self, script: str) -> dict[str, object]:
        """Runs a script of home's, and returns how all is that must stay as it is. Errors: AssertionError if it fails."""
        if script:
            done = self.home.run(f"cd {TRY}; T={TRY} OUT={OUTSIDE} GUARD={GUARD}\n{script}")
            assert done.returncode == 0, done.stderr
        return self.state()

    @staticmethod
    def _furnish(directory: Path) -> None:
        directory.mkdir()
        (directory / "door").mkdir()
        for name in ("secret", SECRET, "door/secret"):
            (directory / name).write_text(SECRET)
            (directory / name).chmod(0o600)

    def state(self) -> dict[str, object]:
        """Returns kind, mode, owner, links, time and content of every file that must not change."""
        found: dict[str, object] = {}
        for top in (GUARD, OUTSIDE, BESIDE, READ_ONLY):
            for path in sorted([self.at(top), *self.at(top).rglob("*")] if self.at(top).exists() else []):
                about = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(about.st_mode) else os.readlink(path) if path.is_symlink() else ""
                name = str(path.relative_to(self.home.root))
                found[name] = (about.st_mode, about.st_uid, about.st_gid, about.st_nlink, about.st_mtime_ns, content)
        return found


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Lists the differences."""
    return [f"{name}: {before.get(name)} -> {after.get(name)}" for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
