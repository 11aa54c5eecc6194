"""Running a workload in a place, and comparing what came of it."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.moves.workloads import Workload

PATH = "/opt/farhome/bin:/usr/local/bin:/usr/bin:/bin"


class Place(Protocol):
    """The place where programs run: this machine, or a node of a lab."""

    @property
    def root(self) -> Path:
        """Returns its root directory, as this process sees it."""
        ...

    def popen(self, argv: list[str], user: str, **options: Any) -> subprocess.Popen[bytes]: ...


class Here:
    """This machine itself."""

    root = Path("/")

    def popen(self, argv: list[str], user: str, **options: Any) -> subprocess.Popen[bytes]:
        if user:
            entry = pwd.getpwnam(user)
            options.update(user=entry.pw_uid, group=entry.pw_gid, extra_groups=())
        return subprocess.Popen(argv, **options)


@dataclass(frozen=True)
class Outcome:
    """All that a workload leaves: what it said, how it ended, and every file (by path below its directory)."""

    status: int
    output: bytes
    errors: bytes
    files: Mapping[str, bytes] = field(repr=False)
    seconds: float = field(compare=False)
    timed_out: bool = False

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "stdout").write_bytes(self.output)
        (directory / "stderr").write_bytes(self.errors)
        (directory / "status").write_text(f"{self.status}{' timed out' if self.timed_out else ''}\n")
        for name, content in self.files.items():
            path = directory / "files" / name.replace("/", "%")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def describe(path: Path) -> bytes:
    """Returns kind, mode and content of what lies there, without following links. Times and inode numbers are left out:
    they differ natively too."""
    status = path.lstat()
    mode = f"{stat.filemode(status.st_mode)} ".encode()
    if stat.S_ISLNK(status.st_mode):
        return mode + os.fsencode(os.readlink(path))
    if stat.S_ISREG(status.st_mode):
        content = path.read_bytes()
        if len(content) > 4_000_000:
            return mode + f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}".encode()
        return mode + content
    return mode


def collect(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): describe(path) for path in sorted(directory.rglob("*"))}


def directory_of(place: Place, workload: Workload) -> Path:
    """Returns the workload's directory, as this process sees it: the same path natively and moved, one for each tester."""
    return place.root / "tmp" / f"farhome-{os.getpid()}-{workload.name.replace(' ', '-')}"


def run(
    place: Place,
    workload: Workload,
    *,
    scale: float,
    user: str = "",
    launcher: str = "",
    timeout: float = 120,
    on_timeout: Callable[[], None] | None = None,
) -> Outcome:
    """Runs the workload in a fresh directory of the place, `launcher` before each program that may move. `timeout` is
    in seconds; when it is over, the script and what it started are killed and the outcome says so."""
    directory = directory_of(place, workload)
    inside = Path("/") / directory.relative_to(place.root)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o755, parents=True)
    try:
        workload.prepare(directory, scale)
        if user:
            entry = pwd.getpwnam(user)
            for path in (directory, *directory.rglob("*")):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        variables = {"PATH": PATH, "HOME": str(inside), "LC_ALL": "C.UTF-8", "RUN": launcher, "PYTHONDONTWRITEBYTECODE": "1"}
        variables["PORT"] = str(20000 + os.getpid() % 5000 * 2 + workload.port)  # testers that run side by side on one machine differ
        variables |= workload.environment(scale)
        # The directory is entered inside, where its path means the same as to the programs. The process group is what
        # is killed when time is over.
        script = f'cd "$HOME" || exit 125\n{workload.script}'
        argv = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), "setsid", "--wait", "bash", "-c", script]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            before = time.monotonic()
            process = place.popen(argv, user, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
            timed_out = False
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
                if on_timeout:
                    on_timeout()
                kill_session(process.pid)
                status = process.wait(10)
            seconds = time.monotonic() - before
            output.seek(0)
            errors.seek(0)
            return Outcome(status, output.read(), errors.read(), collect(directory), seconds, timed_out)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def descendants(pid: int) -> list[int]:
    """Returns the pids of all that descend from the process, itself first."""
    found = [pid]
    for known in found:
        try:
            for task in os.listdir(f"/proc/{known}/task"):
                found += map(int, Path(f"/proc/{known}/task/{task}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def kill_session(pid: int) -> None:
    """Kills what we started, and all that it started."""
    for one in reversed(descendants(pid)):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def first_difference(name: str, native: bytes, moved: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(native, moved, strict=False)) if a != b), min(len(native), len(moved)))
    start = max(0, at - 40)
    return (
        f"{name} differs at byte {at} of {len(native)} natively, {len(moved)} moved:\n"
        f"  native {native[start : at + 80]!r}\n  moved  {moved[start : at + 80]!r}"
    )


def differences(native: Outcome, moved: Outcome) -> list[str]:
    """Returns a line or three for each thing that is not the same."""
    found = []
    if moved.timed_out:
        found.append(f"did not end within {moved.seconds:.0f} s (natively {native.seconds:.1f} s)")
    if native.status != moved.status:
        found.append(f"exit status {native.status} natively, {moved.status} moved")
    if native.output != moved.output:
        found.append(first_difference("stdout", native.output, moved.output))
    if native.errors != moved.errors:
        found.append(first_difference("stderr", native.errors, moved.errors))
    for name in sorted(native.files.keys() | moved.files.keys()):
        if name not in moved.files:
            found.append(f"file {name} is missing")
        elif name not in native.files:
            found.append(f"file {name} is there, natively not")
        elif native.files[name] != moved.files[name]:
            found.append(first_difference(f"file {name}", native.files[name], moved.files[name]))
    return found
