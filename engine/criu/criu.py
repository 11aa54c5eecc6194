"""CRIU, run on a stopped copy (dump) and in a sandbox (restore). Images are the only thing between the two."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.criu import images, inspection
from engine.criu.forkcopy import Copy
from engine.criu.kept import KEPT
from kernel_helpers.common.errors import FarhomeError, MoveRefused
from kernel_helpers.common.library import build_directory

CRIU_INSIDE = "/.farhome/criu"
IMAGES_INSIDE = "/.farhome/images"

# --shell-job: no terminal is ours to keep. Ghost files are what is mapped but deleted.
_COMMON = ("--shell-job", "--manage-cgroups=ignore", "--file-validation", "filesize", "-v2")
_DUMP = ("--ghost-limit", "1G")

# Reported as errors by CRIU, and of no consequence: no /dev/net/tun to probe, no right to raise its own limit of descriptors.
_HARMLESS = ("tun: Unable to create tun", "rlimit: Can't setup RLIMIT_NOFILE for self")

log = logging.getLogger("engine.criu")


class Place(Protocol):
    """What dump() and restore() need of a sandbox (remote.sandbox.sandbox.Sandbox)."""

    def enter_argv(
        self, argv: Sequence[str], *, uid: int = -1, gid: int = -1, last_pid: int = 0, join_cgroup: bool = True
    ) -> list[str]: ...
    @property
    def is_open(self) -> bool: ...
    def hand_over(self, directory: str | os.PathLike[str]) -> None: ...
    @property
    def has_own_ids(self) -> bool: ...
    def open_for_criu(self, images: str | os.PathLike[str]) -> None: ...
    def close_for_criu(self) -> None: ...
    def host_pid(self, inner: int) -> int: ...


@dataclass(frozen=True)
class Tool:
    """How CRIU is run: on the node, and inside a sandbox where `root` is mounted at CRIU_INSIDE."""

    argv: tuple[str, ...]
    root: str
    inside: tuple[str, ...]


@functools.cache
def tool() -> Tool:
    """Reads .build/criu, which tools/setup makes. Errors: FarhomeError."""
    path = build_directory() / "criu"
    try:
        command = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("exec "))
    except (OSError, StopIteration):
        raise FarhomeError(f"{path} is missing; run tools/setup") from None
    argv = tuple(word for word in shlex.split(command)[1:] if word != "$@")
    if len(argv) == 1:
        # The system's own: a sandbox has no loader and no libraries where it looks for them.
        criu = os.path.realpath(argv[0])
        libraries = "/usr/lib/x86_64-linux-gnu" if os.path.isdir("/usr/lib/x86_64-linux-gnu") else "/usr/lib64"
        loader = os.path.realpath("/lib64/ld-linux-x86-64.so.2")
        inside = tuple(
            CRIU_INSIDE + word.removeprefix("/usr") if word.startswith("/usr/") else word
            for word in (loader, "--library-path", libraries, criu)
        )
        return Tool(argv, "/usr", inside)
    paths = [part for word in argv if word.startswith("/") for part in word.split(":")]
    root = os.path.commonpath(paths)
    return Tool(argv, root, tuple(word.replace(root, CRIU_INSIDE) for word in argv))


def _credentials(pid: int) -> tuple[set[int], set[int]]:
    """User and group ids: real, effective, saved."""
    found: dict[str, set[int]] = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").split("\n"):
        name, _, value = line.partition(":")
        if name in ("Uid", "Gid"):
            found[name] = {int(word) for word in value.split()[:3]}
    return found["Uid"], found["Gid"]


def _dumping_user(copy: Copy, sandbox: Place | None) -> tuple[int, int]:
    """The user that CRIU has to be: asking another user's process for its limits takes CAP_SYS_RESOURCE. -1: root of the sandbox, -2: that
    of the node, who alone may look past the filter of a guest (PTRACE_O_SUSPEND_SECCOMP)."""
    if sandbox is not None and sandbox.has_own_ids:
        return -2, -1
    if images.has_capability(images.CAP_SYS_RESOURCE):
        return -1, -1
    uids, gids = _credentials(copy.pid)
    if uids == {0} and gids == {0}:
        return -1, -1
    if len(uids) > 1 or len(gids) > 1:
        raise MoveRefused(copy.source.pid, "it runs with mixed user ids, which takes CAP_SYS_RESOURCE to move")
    return uids.pop(), gids.pop()


def dump(copy: Copy, directory: Path, sandbox: Place | None = None, timeout: float = 120.0) -> None:
    """Dumps the copy into `directory`, as the process and threads that it is a copy of, and ends the copy.

    `sandbox`: where the copied guest lives (a hop); CRIU has to be in its namespaces. It is open for `directory` already, or
    is opened and closed here.
    Errors: FarhomeError (with CRIU's own reason), MoveRefused.
    """
    try:
        _dump(copy, directory, sandbox, timeout)
    except FarhomeError as error:
        # Landlock cannot be asked for; but it wants no_new_privs, and forbids what CRIU has its helper in the process do.
        if not isinstance(error, MoveRefused) and _has_no_new_privileges(copy.source.pid):
            raise MoveRefused(copy.source.pid, f"it seems to have restricted itself by Landlock ({error})") from error
        raise
    for name in ("dump.log", "stats-dump"):
        (directory / name).unlink(missing_ok=True)


def _has_no_new_privileges(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            return any(line.split() == ["NoNewPrivs:", "1"] for line in status)
    except FileNotFoundError:
        return False  # it has ended since it was copied


def _dump(copy: Copy, directory: Path, sandbox: Place | None, timeout: float) -> None:
    uid, gid = _dumping_user(copy, sandbox)
    seen = innermost if sandbox is not None else (lambda tid: tid)
    tids = {seen(tid): copy.inner_tids[source] for source, tid in copy.threads.items()}
    pid = seen(copy.pid)
    options = ["dump", "-t", str(pid), "-o", "dump.log", *_COMMON, *_DUMP]
    if uid >= 0:
        options.append("--unprivileged")
    if sandbox is None:
        with contextlib.suppress(OSError):
            KEPT.mkdir(parents=True, exist_ok=True, mode=0o700)
        helper = str(build_directory() / "sandbox")
        argv = [helper, "run", "0", str(uid), str(gid), "0", "--", *tool().argv, *options, "-D", str(directory)]
        try:
            _run(argv, directory / "dump.log", copy.source.pid, timeout)
        finally:
            (KEPT / "criu.kdat.tmp").unlink(missing_ok=True)  # left where /run is no tmpfs
    else:
        opened = not sandbox.is_open
        if opened:
            sandbox.open_for_criu(directory)
        try:
            sandbox.hand_over(directory)
            argv = sandbox.enter_argv([*tool().inside, *options, "-D", IMAGES_INSIDE], uid=uid, gid=gid, join_cgroup=False)
            _run(argv, directory / "dump.log", copy.source.pid, timeout)
        finally:
            if opened:
                sandbox.close_for_criu()
    images.renumber(directory, (pid, copy.inner_tids[copy.source.pid]), tids)
    images.strip(directory)


def restore(directory: Path, sandbox: Place, pid: int, timeout: float = 120.0) -> int:
    """Restores process `pid` from images, which are looked at and written anew first, group-stopped, no instruction of it executed, in a
    sandbox that was created with images=directory. Returns its id in our pid namespace. Errors: FarhomeError; nothing of it is left."""
    wanted = inspection.inspect(directory, pid)
    images.fit_limits(directory, pid)
    options = ["restore", "-o", "restore.log", *_COMMON, "--leave-stopped", "-d", "-D", IMAGES_INSIDE]
    if sandbox.has_own_ids:
        options.append("--unprivileged")
    sandbox.hand_over(directory)
    argv = sandbox.enter_argv([*tool().inside, *options], last_pid=_last_pid(wanted))
    _run(argv, directory / "restore.log", pid, timeout)
    return sandbox.host_pid(pid)


def _last_pid(wanted: list[int], room: int = 100) -> int:
    """A pid after which `room` numbers are free of the wanted ones, for CRIU itself and its helpers."""
    start = 300  # the kernel starts here again when it has used up all pids
    for tid in sorted(set(wanted)):
        if start <= tid <= start + room:
            start = tid + 1
    return start


def _run(argv: list[str], log_file: Path, pid: int, timeout: float) -> None:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(),
        start_new_session=True, close_fds=True,
    )  # fmt: skip
    try:
        output = process.communicate(timeout=timeout)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)  # CRIU dies with it
        process.communicate()
        raise FarhomeError(f"process {pid}: CRIU has not finished within {timeout:.0f} s") from None
    if process.returncode:
        try:
            text = log_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        log.warning("CRIU failed with status %d: %s", process.returncode, " ".join(argv))
        for line in (text or output).splitlines():
            if "Error" in line or "Warn" in line or not text:
                log.warning("CRIU: %s", line)
        last = next((line.strip() for line in reversed((text or output).splitlines()) if line.strip()), "nothing")
        why = telling_line(text) or telling_line(output) or f"it ended with status {process.returncode}, and said last: {last}"
        raise FarhomeError(f"process {pid}: CRIU: {why}")


def environment() -> dict[str, str]:
    """Return what CRIU runs with."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "XDG_RUNTIME_DIR": str(KEPT)}


def telling_line(text: str) -> str:
    """Return the first error of a CRIU log (those after it are its consequences), without time and source position."""
    found = re.findall(r"^[ \t]*(?:\([\d.]+\)\s*)?(?:\d+: )?Error \([^)]*\): (.*)$", text, re.MULTILINE)
    errors = [line for line in found if not line.startswith(_HARMLESS)]
    plain = [line.strip() for line in text.splitlines() if line.strip()]
    return (errors[0] if errors else plain[-1] if plain else "").strip()


def innermost(tid: int) -> int:
    """Return a thread's id as it sees it itself."""
    with open(f"/proc/{tid}/status", encoding="utf-8", errors="replace") as status:
        for line in status:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return tid
