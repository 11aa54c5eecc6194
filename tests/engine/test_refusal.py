"""Every thing that keeps a process at home is named; ordinary programs are not refused."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.leaving.peculiar import by_asking
from engine.leaving.refusal import why_not
from kernel_helpers.process import seizing

PRELUDE = """
import ctypes, mmap, os, signal, sys, tempfile, time
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), 'failed')
    return result
"""
MAPPED = (
    "fd = os.memfd_create('x'); os.ftruncate(fd, 4096); libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + "
    "[ctypes.c_long]; libc.mmap.restype = ctypes.c_void_p; libc.mmap(None, 4096, 3, {flags}, fd, 0); os.close(fd)\n"
)
"""Memory with a name that is not open any more."""
READY = "\nprint('up', flush=True)\nsys.stdin.read()\n"


@contextlib.contextmanager
def python(source: str, *prefix: str) -> Iterator[int]:
    process = subprocess.Popen([*prefix, "/usr/bin/python3", "-c", PRELUDE + source + READY], stdin=-1, stdout=-1, process_group=0)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with a child that has not asked yet to die with it
        process.communicate()


@pytest.mark.parametrize(
    "source",
    [
        "",
        "import threading; [threading.Thread(target=time.sleep, args=(99,), daemon=True).start() for _ in range(4)]",
        "import sqlite3, ssl, socket, select; s=socket.socket(); e=select.epoll(); e.register(s)",
        "m = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m[0] = 1",
        "f = open('/etc/passwd', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)",
        "f = open('/dev/zero', 'r+b'); m = mmap.mmap(f.fileno(), 4096, flags=mmap.MAP_PRIVATE)",
        MAPPED.format(flags=2),
        MAPPED.format(flags=1),
        "m = mmap.mmap(-1, 4096)",
        "os.open('/proc/self/limits', os.O_RDONLY); os.open('/proc/1/status', os.O_RDONLY); os.open('/proc/self', os.O_RDONLY)",
        "os.open('/dev/null', os.O_RDWR); signal.setitimer(signal.ITIMER_REAL, 1000)",
    ],
)
def test_ordinary_programs_may_move(source: str) -> None:
    with python(source) as pid:
        assert why_not(pid) is None


def test_a_descriptor_that_arrives_in_a_moment_keeps_no_process_at_home() -> None:
    """A descriptor that is in transit between any two processes could be that of a memfd."""

    def receive() -> None:
        time.sleep(0.05)
        for descriptor in socket.recv_fds(far, 1, 1)[1]:
            os.close(descriptor)

    near, far = socket.socketpair()
    with near, far, open("/dev/null", "rb") as something, python(MAPPED.format(flags=1)) as pid, ThreadPoolExecutor(1) as pool:
        socket.send_fds(near, [b"x"], [something.fileno()])
        reason = why_not(pid)
        assert reason is not None and "may be on its way" in reason
        pool.submit(receive)
        assert why_not(pid) is None


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("m = mmap.mmap(-1, 4096)\nif not os.fork(): libc.prctl(1, 9), signal.pause()", "anonymous memory with process"),
        ("f = tempfile.NamedTemporaryFile(prefix='shared-'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096)", "/shared-"),
        ("fd = os.memfd_create('x'); os.ftruncate(fd, 4096); m = mmap.mmap(fd, 4096)", "memfd:x mapped shared, and it has that open"),
        ("fd = os.memfd_create('x'); os.ftruncate(fd, 4096); m = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE)", "(memfd) that it has open"),
        (MAPPED.format(flags=1) + "if not os.fork(): libc.prctl(1, 9), signal.pause()", "memfd:x mapped shared, and so has process"),
        (MAPPED.format(flags=1).replace("os.close", "libc.mmap(None, 4096, 1, 2, fd, 0); os.close"), "writable, and privately as well"),
        ("a, b = __import__('socket').socketpair()\n"
         + MAPPED.format(flags=1).replace("os.close", "__import__('socket').send_fds(a, [b'x'], [fd]); os.close"), "may be on its way"),
        ("f = tempfile.NamedTemporaryFile(prefix='kept-'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096, prot=1, flags=2)",
         "which is open for writing"),
        ("f = tempfile.TemporaryFile(); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096, prot=1, flags=2)", "which is open for writing"),
        ("i = check(libc.shmget(0, 4096, 0o1600)); libc.shmat.restype = ctypes.c_void_p; libc.shmat(i, None, 0); "
         "libc.shmctl(i, 0, None)", "System V shared memory"),
        ("check(libc.syscall(323, 1))", "userfaultfd"),
        ("check(libc.syscall(206, 8, ctypes.byref(ctypes.c_ulong(0))))", "asynchronous I/O"),
        ("b = ctypes.create_string_buffer(120); check(libc.syscall(425, 4, b))", "io_uring"),
        ("os.open('/proc/self/maps', os.O_RDONLY); os.open('/proc/self/stat', os.O_RDONLY)", "/proc/self/maps (descriptor"),
        ("os.open('/proc/thread-self/mem', os.O_RDWR)", "/proc/self/mem (descriptor"),
        ("t = ctypes.c_void_p(); check(libc.timer_create(2, None, ctypes.byref(t)))", "counts its processor time (timer_create)"),
        ("os.chroot('/')\nd = tempfile.mkdtemp()\nos.rmdir(d)\nos.chroot('/usr')", "root directory"),
    ],
)  # fmt: skip
def test_the_reason_against_a_move_is_named(source: str, named: str) -> None:
    try:
        with python(source) as pid:
            reason = why_not(pid)
            assert reason is not None and named in reason
    except AssertionError as error:
        if "up" in str(error) and named in ("io_uring", "userfaultfd", "asynchronous I/O"):
            pytest.skip(f"this kernel does not let a program have {named}")
        raise


@pytest.mark.parametrize(("which", "reason"), [("VIRTUAL", True), ("PROF", True), ("REAL", False)])
def test_a_timer_that_counts_processor_time_is_found_when_it_stands_still(which: str, reason: bool) -> None:
    with python(f"signal.setitimer(signal.ITIMER_{which}, 1000)") as pid:
        assert why_not(pid) is None
        with seizing.seize(pid) as frozen:
            found = by_asking(frozen)
    assert found == ("it has a timer that counts its processor time (setitimer)" if reason else None)


@pytest.mark.parametrize(("option", "named"), [("-m", "mount"), ("-U", "user"), ("-pf", "pid")])
def test_other_namespaces_are_named(option: str, named: str) -> None:
    with python("", "unshare", option) as pid:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            inner = [int(word) for word in children.read().split()]
        reason = why_not(inner[0] if inner else pid)
        assert reason is not None and f"{named} namespace" in reason
        for child in inner:
            os.kill(child, 9)


def test_tracer_is_named_unless_it_is_the_one_that_asks() -> None:
    with python("") as pid, seizing.seize(pid):
        assert why_not(pid) == f"it is traced by process {os.getpid()}"
        assert why_not(pid, traced_by=os.getpid()) is None


def test_kernel_threads_zombies_and_absent_processes_are_refused() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert why_not(process.pid) == "it has ended"
    process.wait()
    with pytest.raises(ProcessLookupError):
        why_not(process.pid)
    assert why_not(2) == "it is part of the kernel" or os.readlink("/proc/self/ns/pid") != os.readlink("/proc/1/ns/pid")
