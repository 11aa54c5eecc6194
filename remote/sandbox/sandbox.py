"""The place that a guest lives in: namespaces of its own and a root that holds the home's mapped files and nothing else.

No file, device, network or process of the node can be named from inside. The C program `sandbox` makes it and works in
it; its process 1 ends with the process that created it, and everything inside with process 1.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from engine.context import altstack
from engine.criu import criu, kept
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.common.library import build_directory
from kernel_helpers.link.ends.kept_files import KeptFiles
from remote.sandbox import mounts
from remote.sandbox.identity import Identities
from wire.waking import ready

NUMBER_TIMEOUT = 5.0
"""Seconds for process 1 to set a number, or to show a file."""
WORK_TIMEOUT = 30.0
"""Seconds for the program to work in a sandbox."""
_FORBIDDEN = ("/proc", "/sys", "/.farhome")

log = logging.getLogger("remote.sandbox.sandbox")


def _program() -> str:
    return str(build_directory() / "sandbox")


def checked_target(path: str) -> str:
    """Return a path that a home names, if a file may appear there. Errors: FarhomeError."""
    parts = path.split("/")
    if (
        not path.startswith("/")
        or len(path) >= 4096
        or "\0" in path
        or any(part in ("", ".", "..") for part in parts[1:])
        or any(path == root or path.startswith(root + "/") for root in _FORBIDDEN)
        or (path.startswith("/dev/") and not path.startswith("/dev/shm/"))
    ):
        raise FarhomeError(f"a file cannot be shown to a guest at {path!r}")
    return path


def _bind(mode: str, source: str | os.PathLike[str], target: str) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in ("bind", mode, source, target))


def _file_requests(files: Iterable[tuple[str, str | os.PathLike[str]]]) -> bytes:
    return b"".join(_bind("ro", local, checked_target(path)) for path, local in files)


def _identity(local: str | os.PathLike[str]) -> tuple[object, ...]:
    """Distinguishes a file from one that has its name later. Errors: OSError."""
    status = os.stat(local)
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def cgroup_directories(name: str | None) -> list[str]:
    """Return the directories of cgroup `name` (relative to each hierarchy's mount point) that exist."""
    if not name:
        return []
    found: dict[tuple[int, int], str] = {}
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split()
            directory = os.path.join(point, name)
            if kind in ("cgroup", "cgroup2") and os.path.exists(os.path.join(directory, "cgroup.procs")):
                status = os.stat(directory)
                found.setdefault((status.st_dev, status.st_ino), directory)
    return list(found.values())


@dataclass
class Sandbox:
    """A live sandbox. Create it from a thread that lives as long as it is to: its end ends the sandbox."""

    key: str
    first: int
    """process 1 of the sandbox, as this process's pid namespace sees it"""
    _holder: subprocess.Popen[bytes] = field(repr=False)
    _numbers: socket.socket = field(repr=False)
    _shows: socket.socket = field(repr=False)
    _cgroups: list[str] = field(default_factory=list)
    clocks: tuple[int, int] | None = None
    """how many ns CLOCK_MONOTONIC and CLOCK_BOOTTIME run ahead of this node's"""
    identities: Identities | None = None
    """None: ids inside are those outside"""
    _shown: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """what is mounted at a path"""
    _is_confined: bool = False
    is_open: bool = False
    """between open_for_criu() and close_for_criu()"""
    kept: KeptFiles = field(default_factory=KeptFiles, repr=False)
    """files that its guests may map without a word of home"""
    _guests: int = 1
    _unheard: int = 0
    """answers of process 1 that nobody has taken"""

    @classmethod
    def create(
        cls,
        key: str,
        files: Iterable[tuple[str, str | os.PathLike[str]]],
        *,
        nodename: str | None = None,
        domainname: str | None = None,
        cgroup: str | None = None,
        images: str | os.PathLike[str] | None = None,
        clocks: tuple[int, int] | None = None,
        identities: Identities | None = None,
        timeout: float = 20.0,
    ) -> Sandbox:
        """`clocks`: how many ns CLOCK_MONOTONIC and CLOCK_BOOTTIME run ahead of this node's. `files`: (path at home, local file).
        `identities`: the ids of who lives in it, ours from here on; None: there is no user namespace. `images`: directory that CRIU shall
        restore from; until confine() it is there, and CRIU too. Errors: FarhomeError; nothing is left then."""
        try:
            return cls._create(key, list(files), nodename, domainname, cgroup, images, clocks, identities, timeout)
        except BaseException:
            if identities is not None:
                identities.release()
            raise

    @classmethod
    def _create(
        cls, key: str, files: list[tuple[str, str | os.PathLike[str]]], nodename: str | None, domainname: str | None, cgroup: str | None,
        images: str | os.PathLike[str] | None, clocks: tuple[int, int] | None, identities: Identities | None, timeout: float,
    ) -> Sandbox:  # fmt: skip
        requests = _file_requests(files) + _bind("dev", "/dev/null", "/dev/null")
        for word, value in (("hostname", nodename), ("domainname", domainname)):
            if value and value != "(none)":
                requests += word.encode() + b"\0" + os.fsencode(value) + b"\0"
        if clocks is not None:
            requests += b"clocks\0%d:%d\0" % clocks
        if identities is not None:
            lines = identities.lines().encode()
            requests += b"uids\0%b\0gids\0%b\0root\0%d\0" % (lines, lines, identities.first)
        if images is not None:
            requests += _bind("ro", criu.tool().root, criu.CRIU_INSIDE) + _bind("rw", images, criu.IMAGES_INSIDE)
        cgroups = cgroup_directories(cgroup)
        (numbers, first_end), (shows, holders_end) = socket.socketpair(), socket.socketpair()
        for ours in (numbers, shows):
            ours.settimeout(NUMBER_TIMEOUT)
        requests += b"numbers\0%d\0files\0%d\0" % (first_end.fileno(), holders_end.fileno())
        held = [identities.lock] if identities is not None and identities.lock >= 0 else []
        with first_end, holders_end, altstack.unused():
            holder = subprocess.Popen(
                [_program(), "create", *cgroups],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                pass_fds=(first_end.fileno(), holders_end.fileno(), *held),
            )  # fmt: skip
        assert holder.stdin and holder.stdout and holder.stderr
        try:
            try:
                holder.stdin.write(requests)
                holder.stdin.close()
            except BrokenPipeError:
                pass  # it says why
            answers = ready([holder.stdout.fileno()], timeout)
            line = holder.stdout.readline() if answers else b""
            if not line:
                holder.kill()
                reason = holder.stderr.read().decode(errors="replace").strip() if answers else "it takes too long"
                raise FarhomeError(f"the sandbox of {key} cannot be made: {reason}")
        except BaseException:
            holder.kill()
            holder.wait()
            holder.stdout.close()
            holder.stderr.close()
            numbers.close()
            shows.close()
            raise
        holder.stdout.close()
        holder.stderr.close()
        shown = {path: _identity(local) for path, local in files}
        sandbox = cls(key, int(line), holder, numbers, shows, cgroups, clocks, identities, shown)
        if images is not None:
            kept.hand_over_kernel_data(Path(f"/proc/{sandbox.first}/root"))
        return sandbox

    def _work(self, *arguments: str, requests: bytes = b"", timeout: float = WORK_TIMEOUT) -> None:
        try:
            result = subprocess.run([_program(), *arguments], input=requests, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise FarhomeError(f"the sandbox of {self.key} does not answer") from None
        if result.returncode:
            raise FarhomeError(f"the sandbox of {self.key}: {result.stderr.decode(errors='replace').strip()}")

    def add_files(self, files: Iterable[tuple[str, str | os.PathLike[str]]]) -> None:
        """More files; what is shown at such a path is hidden by them, unless it is the same. Errors: FarhomeError, OSError."""
        new = [(path, local) for path, local in files if self._shown.get(path) != _identity(local)]
        if self._is_confined:
            for path, local in new:
                self.show_file(path, local)
        elif new:
            self._work("mount", str(self.first), requests=_file_requests(new))
            self._shown |= {path: _identity(local) for path, local in new}

    def open_for_criu(self, images: str | os.PathLike[str]) -> None:
        """CRIU and an image directory appear inside, for a dump. Errors: FarhomeError."""
        requests = _bind("ro", criu.tool().root, criu.CRIU_INSIDE) + _bind("rw", images, criu.IMAGES_INSIDE)
        self._work("mount", str(self.first), requests=requests)
        self.is_open = True

    @property
    def has_own_ids(self) -> bool:
        """Whether ids inside are not those outside."""
        return self.identities is not None

    def hand_over(self, directory: str | os.PathLike[str]) -> None:
        """A directory of images, and what is in it, belongs to root inside. Errors: OSError."""
        if self.identities is not None:
            for path in (directory, *Path(directory).iterdir()):
                os.chown(path, self.identities.first, self.identities.first, follow_symlinks=False)

    def close_for_criu(self) -> None:
        """What open_for_criu() mounted is gone. Errors: FarhomeError."""
        kept.keep_kernel_data(Path(f"/proc/{self.first}/root"))
        self._work("unmount", str(self.first), criu.CRIU_INSIDE, criu.IMAGES_INSIDE)
        self.is_open = False

    def confine(self) -> None:
        """After the restore: only the mapped files, /proc and an empty /run are left, and the root is read-only.
        Errors: FarhomeError."""
        kept.keep_kernel_data(Path(f"/proc/{self.first}/root"))
        with self.confining():
            pass

    @contextmanager
    def confining(self) -> Iterator[None]:
        """As confine(), beside what is done inside, which is not CRIU's work. Errors: FarhomeError."""
        command = [_program(), "unmount", str(self.first), criu.CRIU_INSIDE, criu.IMAGES_INSIDE, "/dev/null", "-"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as work:
            try:
                yield
                _, errors = work.communicate(timeout=WORK_TIMEOUT)
            except subprocess.TimeoutExpired:
                work.kill()
                raise FarhomeError(f"the sandbox of {self.key} does not answer") from None
            except BaseException:
                work.kill()
                raise
        if work.returncode:
            raise FarhomeError(f"the sandbox of {self.key}: {errors.decode(errors='replace').strip()}")
        self._is_confined = True

    def enter_argv(self, argv: Sequence[str], *, uid: int = -1, gid: int = -1, last_pid: int = 0, join_cgroup: bool = True) -> list[str]:
        """`argv`, to be run inside, in the guest's cgroup; as user `uid` with all capabilities but CAP_SYS_RESOURCE when
        given; with pid `last_pid` + 1 inside when given."""
        cgroups = self._cgroups if join_cgroup else []
        return [_program(), "run", str(self.first), str(uid), str(gid), str(last_pid), *cgroups, "--", *argv]

    def vessel(self, pid: int) -> int:
        """Leaves a process inside that is `pid` there, has no descriptor and waits for ever; its id in this process's pid
        namespace. Errors: FarhomeError."""
        self._report(f"v{pid}", f"cannot make a process {pid}")
        return self.host_pid(pid)

    def ask_for_next_pid(self, number: int) -> None:
        """The next task that is born inside is to get this id. await_next_pid() is to be called before that. Errors: OSError."""
        self._ask(str(number - 1))

    def await_next_pid(self, number: int) -> None:
        """It gets it, if nobody has it. Errors: FarhomeError, OSError."""
        self._await(f"cannot give out the number {number}")

    def _report(self, words: str, failure: str) -> None:
        """Has process 1 do something. Errors: FarhomeError, OSError."""
        self._ask(words)
        self._await(failure)

    def _ask(self, words: str) -> None:
        while self._unheard:  # nobody has waited for that
            self._hear()
        self._numbers.sendall(words.encode())
        self._unheard += 1

    def _await(self, failure: str) -> None:
        if not self._hear():
            raise FarhomeError(f"the sandbox of {self.key} {failure}")

    def _hear(self) -> bool:
        answer = self._numbers.recv(1)
        self._unheard -= 1
        return answer == b"+"

    def show_file(self, path: str, local: str | os.PathLike[str]) -> None:
        """One more file, after confine(); it hides what was shown there. Errors: FarhomeError, OSError."""
        request = os.fsencode(checked_target(path))
        tree = mounts.detached(local)
        try:
            socket.send_fds(self._shows, [request], [tree])
            if self._shows.recv(1) != b"+":
                raise FarhomeError(f"the sandbox of {self.key} cannot show {path}")
        finally:
            os.close(tree)
        self._shown[path] = _identity(local)

    def open_file(self, path: str) -> BinaryIO | None:
        """A file that is shown, as the guest would open it; None: there is none. Errors: FarhomeError, OSError."""
        inside = f"/proc/{self.first}/root{checked_target(path)}"
        try:
            return open(inside, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def host_pid(self, inner: int) -> int:
        """The process that is `inner` inside, as this process's pid namespace sees it. Errors: ProcessLookupError."""
        namespace = os.stat(f"/proc/{self.first}/ns/pid").st_ino
        children = Path(f"/proc/{self.first}/task/{self.first}/children").read_text().split()
        for pid in [int(word) for word in children] or []:
            if _innermost(pid) == inner:
                return pid
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if os.stat(f"/proc/{entry}/ns/pid").st_ino == namespace and _innermost(int(entry)) == inner:
                        return int(entry)
                except OSError:
                    continue
        raise ProcessLookupError(f"no process {inner} in the sandbox of {self.key}")

    def join(self) -> None:
        """Another guest lives in it."""
        self._guests += 1

    def leave(self) -> None:
        """A guest has ended. The last one takes the sandbox with it."""
        self._guests -= 1
        if not self._guests:
            self.destroy()

    def destroy(self, timeout: float = 10.0) -> None:
        """Ends everything inside; when it returns, no process of it is left. Safe to call twice."""
        self._numbers.close()
        self._shows.close()
        self.kept.close()
        try:
            descriptor = os.pidfd_open(self.first)
        except ProcessLookupError:
            pass
        else:
            # Our child must be its parent still, else the number belongs to somebody else by now.
            if self._holder.poll() is None:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                ready([descriptor], timeout)
            os.close(descriptor)
        deadline = time.monotonic() + timeout
        try:
            self._holder.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("the sandbox of %s does not end", self.key)
            self._holder.kill()
            self._holder.wait()
        if self.identities is not None:
            self.identities.release()


def _innermost(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            for line in status:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
    except OSError:
        pass
    return -1
