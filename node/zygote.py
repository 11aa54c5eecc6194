"""Deputies and remotes without the time that a Python interpreter takes to start: forked from a process that has all they need.

The node daemon keeps one such process. What it forks becomes the daemon's own child (CLONE_PARENT), in a session of its own, with
descriptors, environment and command line as if it had been executed; it outlives both. The process ends when the daemon does.

    daemon  -- one datagram: msgpack {"argv": [...], "numbers": [...]}, with the descriptors, the log first -->  zygote
            <-- the child's process id, or -errno -----------------------------------------------------------
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import importlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgpack

from node.child import Child
from node.priority import come_first

ROOMS = {"deputy": "deputy.__main__", "remote": "remote.__main__", "deputy.host": "deputy.host", "remote.host": "remote.host"}
"""What it forks: the name of the program, and where its main() is."""
PREFIX = (sys.executable, "-P", "-s", "-m")
ANSWER_TIMEOUT = 15.0
"""Seconds, which only a process that is stuck takes: what a busy one forks later is nobody's."""
AGAIN = 10.0
"""Seconds until there is another one, if one is lost. Meanwhile programs are executed in the plain way."""

WARM = 10
"""Times after which the interpreter has adapted itself to a function."""

_PID = struct.Struct("=q")
_MOST_REQUEST = 1 << 16
_TITLE_ROOM = 1000
_CLONE = 56
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_SET_NAME, _PR_GET_TID_ADDRESS = 15, 40

log = logging.getLogger("mosd.zygote")


class Zygote:
    """The daemon's side. Without start(), and whenever something is wrong with it, spawn() returns None."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()
        self._ready = False
        self._again: asyncio.TimerHandle | None = None

    def start(self, environment: dict[str, str]) -> None:
        """Starts the process, which is of use as soon as it has read its modules; and another one, if that is lost. Errors: OSError."""
        self._environment = environment
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*PREFIX, "node.zygote", str(theirs.fileno()), " " * _TITLE_ROOM], stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True, cwd="/", env=environment,
            )  # fmt: skip
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._on_ready)

    def _on_ready(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket)
        try:
            self._ready = self._socket.recv(_PID.size) == _PID.pack(0)
        except OSError:
            self._ready = False
        if not self._ready:
            log.warning("programs are started the slow way: the process to fork them from did not start")

    async def spawn(self, argv: Sequence[str], log_file: int, descriptors: Sequence[int]) -> Child | None:
        """Starts what would be executed with argv; standard output and error go to log_file. None: execute it."""
        if not self._ready or self._socket is None or tuple(argv[:4]) != PREFIX or len(argv) < 5 or argv[4] not in ROOMS:
            return None
        request = msgpack.packb({"argv": list(argv), "numbers": list(descriptors)})
        try:
            async with self._turn, asyncio.timeout(ANSWER_TIMEOUT):
                socket.send_fds(self._socket, [request], [log_file, *descriptors])
                answer = await asyncio.get_running_loop().sock_recv(self._socket, _PID.size)
            (pid,) = _PID.unpack(answer)
        except (OSError, TimeoutError, struct.error) as error:
            if self._socket is not None:             # else somebody else has found it out
                log.warning("programs are started the slow way for a while: %s", error or "no answer")
                self.close()
                self._again = asyncio.get_running_loop().call_later(AGAIN, self._start_again)
            return None
        if pid < 0:
            log.warning("a program could not be forked: %s", os.strerror(-pid))
            return None
        return Child(pid)

    def _start_again(self) -> None:
        try:
            self.start(self._environment)
        except OSError as error:
            log.warning("programs are started the slow way: %s", error)

    def close(self) -> None:
        """Ends the process; what it forked goes on. Safe to call twice."""
        self._ready = False
        if self._again is not None:
            self._again.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


# -- the process itself ---------------------------------------------------------------------------------------------------


def _fork_to_parent() -> int:
    """fork(), but the child is our parent's. Errors: OSError."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the interpreter's lock
    address = ctypes.c_void_p()
    # Where the C library keeps its thread id: fork() has the kernel write it, so must we.
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_GET_TID_ADDRESS")
    libc.syscall.restype = ctypes.c_long
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(ctypes.c_long(_CLONE), ctypes.c_long(flags), None, None, address, None)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, "clone")
    return pid


def _show(argv: Sequence[str]) -> None:
    """Makes argv what ps shows of us."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    title = b"\0".join(os.fsencode(word) for word in argv)[: end - start - 1]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def _place(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Makes the received descriptors standard output and error and those numbers, and closes all others but 0."""
    high = [os.dup2(fd, 4000 + index, inheritable=False) for index, fd in enumerate(received)]
    for fd, number in zip([high[0], *high], [1, 2, *numbers], strict=True):
        os.dup2(fd, number)
    kept = {0, 1, 2, *numbers}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _become(argv: Sequence[str], received: Sequence[int], numbers: Sequence[int]) -> int:
    """The child's life; its exit status."""
    os.setsid()
    _place(received, numbers)
    _show(argv)
    sys.argv = [argv[4], *argv[5:]]
    try:
        return int(importlib.import_module(ROOMS[argv[4]]).main())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()


def _preload() -> None:
    """What they import and compute before they can do anything; nothing that opens a descriptor or starts a thread."""
    for module in ROOMS.values():
        importlib.import_module(module)
    import deputy.__main__
    import remote.__main__
    from engine import criu, mappings
    from kernel_helpers import filter as call_filter
    from kernel_helpers import inject, link, vmas

    # What the first use compiles and imports.
    deputy.__main__.parser().parse_args(["--pid", "1", "--socket", "s", "--node", "n", "--owner", "0:0:0"])
    remote.__main__.parser().parse_args(
        ["--home", "h", "--pid", "1", "--socket", "s", "--secret-fd", "0", "--address", "a", "--node", "n"]
    )
    socket.getaddrinfo("127.0.0.1", 1)
    for _ in range(WARM):
        mappings.read_mappings(os.getpid())
    call_filter.program()
    vmas.layout()
    inject.functions()
    link._native()
    with contextlib.suppress(Exception):
        criu.tool()
    gc.collect()
    gc.freeze()  # their memory is shared with ours, as nobody writes into it


def serve(connection: socket.socket) -> None:
    """Until the daemon closes its end."""
    while True:
        try:
            data, received, _, _ = socket.recv_fds(connection, _MOST_REQUEST, 16)
        except OSError:
            return  # it was killed
        if not data:
            return
        try:
            request = msgpack.unpackb(data)
            argv, numbers = request["argv"], request["numbers"]
            pid = _fork_to_parent()
            if pid == 0:
                os._exit(_become(argv, received, numbers))
        except OSError as error:
            pid = -(error.errno or errno.EIO)
        finally:
            for fd in received:
                os.close(fd)
        try:
            connection.send(_PID.pack(pid))
        except OSError:
            return


def main() -> int:
    """`python -m node.zygote DESCRIPTOR ROOM`, started by the node daemon."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    come_first()
    _show(["farhome: the process that deputies and remotes are forked from"])
    _preload()
    with contextlib.suppress(BrokenPipeError):
        connection.send(_PID.pack(0))
        serve(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
