"""The process that deputies and remotes are forked from: it has read all their modules, and holds nothing of the daemon's.

`begin()` forks it off the daemon, when that has read nothing yet but modules that both need: no configuration, no key. Where that cannot
be, and when one is lost, it is executed (`python -m node.programs.forked`). It reads the modules of its programs on request, so
that the daemon begins first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import importlib
import logging
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgpack

from node.programs.priority import come_first

ROOMS = {
    "deputy": "deputy.__main__", "remote": "remote.__main__", "deputy.host": "deputy.host", "remote.host": "remote.host",
    "remote.sandbox.rehearsal": "remote.sandbox.rehearsal",
}  # fmt: skip
"""What it forks: the name of the program, and where its main() is."""
PREFIX = (sys.executable, "-P", "-s", "-m")
SHARED = ("engine.leaving.refusal", "engine.files.store", "kernel_helpers.process.thread", "mfs.mounts", "wire.host")
"""Modules that the daemon needs as well."""
TITLE_BYTES = 1000
"""Bytes that a command line has to have for those of the programs to be shown in its place."""
PID = struct.Struct("=q")

WARM = 10
"""Times after which the interpreter has adapted itself to a function."""

_MOST_REQUEST = 1 << 16
_CLONE = 56
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_GET_TID_ADDRESS = 40


def begin() -> tuple[int, socket.socket] | None:
    """Forks it: its process id, and the socket to it. None: there is no room for command lines here. Errors: OSError.

    To be called before there is anything in this process that programs are not to have.
    """
    start, end = _title()
    if end - start < TITLE_BYTES:
        return None
    for module in SHARED:
        importlib.import_module(module)
    gc.freeze()  # what is there by now stays shared
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        show(sys.orig_argv[:-1])
        return pid, ours
    try:
        ours.close()
        os.setsid()
        os.chdir("/")
        with open("/dev/null", "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        _live(theirs)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


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


def _title() -> tuple[int, int]:
    """Where our command line lies."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
    return int(fields[45]), int(fields[46])


def show(argv: Sequence[str]) -> None:
    """Makes argv what ps shows of us."""
    start, end = _title()
    title = b"\0".join(os.fsencode(word) for word in argv)[: end - start - 1]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def _place(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Makes the received descriptors standard output and error and those numbers, and closes all others but 0."""
    beyond = max(2, *numbers, *received) + 1  # out of the way of all of them, and no higher: the limit of descriptors may be low
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, beyond) for fd in received]
    for fd, number in zip([high[0], *high], [1, 2, *numbers], strict=True):
        os.dup2(fd, number)
    kept = {0, 1, 2, *numbers}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _live_and_end(argv: Sequence[str], received: Sequence[int], numbers: Sequence[int]) -> NoReturn:
    """The child's life and end. Whatever fails, it never goes on as the process that it was forked from, on whose connection it would
    answer."""
    status = 1
    try:
        status = _become(argv, received, numbers)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _become(argv: Sequence[str], received: Sequence[int], numbers: Sequence[int]) -> int:
    """The child's life; its exit status."""
    os.setsid()
    gc.enable()  # the daemon has none while it reads its modules, and we were forked meanwhile
    _place(received, numbers)
    show(argv)
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
    """What they import and compute before they can do anything; nothing that leaves a descriptor open or starts a thread."""
    for module in ROOMS.values():
        importlib.import_module(module)
    import deputy.__main__
    import remote.__main__
    from engine.criu import criu
    from engine.mappings import mappings
    from kernel_helpers.calls import filter as call_filter
    from kernel_helpers.link.ends.native import native as link_functions
    from kernel_helpers.pages.tables import vmas
    from kernel_helpers.process.injection import native
    from wire import channel

    # What the first use compiles and imports.
    deputy.__main__.parser().parse_args(["--pid", "1", "--socket", "s", "--node", "n", "--owner", "0:0:0"])
    remote.__main__.parser().parse_args(["--home", "h", "--pid", "1", "--socket", "s", "--secret-fd", "0", "--address", "a", "--node", "n"])
    socket.getaddrinfo("127.0.0.1", 1)
    for _ in range(WARM):
        mappings.read_mappings(os.getpid())
    call_filter.program()
    call_filter.program(has_fixed_ids=True)
    vmas.layout()
    native.functions()
    link_functions()
    channel.rehearse()
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
                _live_and_end(argv, received, numbers)
        except OSError as error:
            pid = -(error.errno or errno.EIO)
        finally:
            for fd in received:
                os.close(fd)
        try:
            connection.send(PID.pack(pid))
        except OSError:
            return


def _live(connection: socket.socket) -> None:
    """Until the daemon closes its end; begins when that says with which environment."""
    come_first()
    show(["farhome: the process that deputies and remotes are forked from"])
    try:
        reported = connection.recv(_MOST_REQUEST)
    except OSError:
        return
    if not reported:
        return
    os.environ.clear()
    os.environ.update(msgpack.unpackb(reported))
    _preload()
    with contextlib.suppress(BrokenPipeError):
        connection.send(PID.pack(0))
        serve(connection)


def main() -> int:
    """`python -m node.programs.forked DESCRIPTOR ROOM`, started by the node daemon."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    _live(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
