"""Where a node keeps its files; every place can be moved by an environment variable (several nodes on one machine, tests)."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """The directories of one node: run (lives as long as the node is up), state (survives), configuration file; mfs: files of all nodes."""

    run: Path
    state: Path
    config: Path
    mfs: Path = Path("/mfs")

    @classmethod
    def from_environment(cls, config: str | None = None, run: str | None = None, state: str | None = None) -> Paths:
        """Given places, else FARHOME_RUN, FARHOME_STATE, FARHOME_CONFIG and FARHOME_MFS, else those of an installed system."""
        return cls(
            run=Path(run or os.environ.get("FARHOME_RUN") or "/run/farhome"),
            state=Path(state or os.environ.get("FARHOME_STATE") or "/var/lib/farhome"),
            config=Path(config or os.environ.get("FARHOME_CONFIG") or "/etc/farhome/node.toml"),
            mfs=Path(os.environ.get("FARHOME_MFS") or "/mfs"),
        )

    @property
    def socket(self) -> Path:
        return self.run / "mosd.sock"

    @property
    def registry(self) -> Path:
        return self.run / "registry"

    @property
    def guests(self) -> Path:
        return self.run / "guests"

    @property
    def deputies(self) -> Path:
        return self.run / "deputy"

    @property
    def remotes(self) -> Path:
        return self.run / "remote"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def cache(self) -> Path:
        """Files of homes that guests have mapped."""
        return self.state / "cache"

    @property
    def ledger(self) -> Path:
        """What has been lent and borrowed."""
        return self.state / "ledger.db"

    @property
    def programs(self) -> Path:
        """What programs have used, by user; JSON."""
        return self.state / "programs.json"

    @property
    def seeds(self) -> Path:
        """Addresses that `mosctl cluster join` learned, one per line; used besides those of the configuration."""
        return self.state / "seeds"

    @property
    def peers(self) -> Path:
        """Names and addresses of the nodes that are known, for the next daemon; JSON."""
        return self.run / "peers.json"

    @property
    def incarnation(self) -> Path:
        """How often a daemon has begun here, as a number that grows."""
        return self.state / "life"

    @property
    def images(self) -> Path:
        """CRIU images on their way."""
        return self.run / "images"

    def remove_images(self, name: str) -> None:
        """Those that a deputy or a remote has left there if it was killed in the midst of a move."""
        for way in ("in", "out", "hop"):
            shutil.rmtree(self.images / f"{way}-{name}", ignore_errors=True)

    def make_run_directories(self) -> None:
        """Creates what lies under the run directory. Errors: OSError."""
        self.run.mkdir(parents=True, exist_ok=True)
        self.run.chmod(0o755)
        for directory in (self.registry, self.guests, self.deputies, self.remotes, self.logs):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o700)


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces path by a file with that content, never half of it. Errors: OSError; path is then as before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as target:
            target.write(data)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
