# ruff: noqa: SIM115
"""A process that holds something that no checkpoint keeps: `held.py KIND`; says `ready` when it does, and then counts."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import sys
import tempfile
import time

libc = ctypes.CDLL(None, use_errno=True)
kept: list[object] = []
path = os.path.join(os.getcwd(), "file")
with open(path, "w") as made:
    made.write("content")


def timer() -> None:
    """timer_create(2)."""
    number = ctypes.c_void_p()
    if libc.timer_create(0, None, ctypes.byref(number)):
        raise OSError(ctypes.get_errno(), "timer_create")


def deleted() -> None:
    file = open(path)
    os.unlink(path)
    kept.append(file)


def locked(how: int) -> None:
    file = open(path)
    fcntl.flock(file, how)
    kept.append(file)


def locked_by_record() -> None:
    file = open(path, "r+")
    fcntl.lockf(file, fcntl.LOCK_EX)
    kept.append(file)


def asynchronous() -> None:
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    os.close(writing)
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)


def terminal() -> None:
    kept.append(os.openpty())


def fifo() -> None:
    os.mkfifo(path + ".fifo")
    kept.append(os.open(path + ".fifo", os.O_RDWR))


def own_namespace() -> None:
    if libc.unshare(0x04000000):  # CLONE_NEWUTS
        raise OSError(ctypes.get_errno(), "unshare")


def mapped_and_written() -> None:
    file = open(path, "r+b")
    kept.append((file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)))


def child() -> None:
    if not os.fork():
        signal.pause()


def subreaper() -> None:
    libc.prctl(36, 1, 0, 0, 0)


def working_directory() -> None:
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    os.rmdir(gone)


KINDS = {
    "pipe": lambda: kept.append(os.pipe()),
    "socket": lambda: kept.append(socket.socket()),
    "epoll": lambda: kept.append(select.epoll()),
    "eventfd": lambda: kept.append(os.eventfd(0)),
    "timerfd": lambda: libc.timerfd_create(1, 0),
    "memfd": lambda: kept.append(os.memfd_create("memory")),
    "inotify": libc.inotify_init,
    "pidfd": lambda: kept.append(os.pidfd_open(os.getpid())),
    "proc": lambda: kept.append(open("/proc/uptime")),
    "deleted": deleted,
    "flock": lambda: locked(fcntl.LOCK_SH),
    "lockf": locked_by_record,
    "async": asynchronous,
    "terminal": terminal,
    "fifo": fifo,
    "timer": timer,
    "namespace": own_namespace,
    "shared": lambda: kept.append(mmap.mmap(-1, 4096)),
    "mapped": mapped_and_written,
    "child": child,
    "subreaper": subreaper,
    "directory": working_directory,
    "nothing": lambda: None,
}

KINDS[sys.argv[1]]()
print("ready", flush=True)
while True:
    time.sleep(0.01)
