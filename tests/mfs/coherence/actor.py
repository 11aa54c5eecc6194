"""A program inside a node that changes and checks files on request: `actor.py BASE NUMBER SHARED PIPE...`.

Requests are lines of JSON on standard input; it answers each with one line. Paths are relative to BASE. What orders a change before a check
never goes through the file system: NUMBER is this actor's, SHARED a descriptor of memory that all actors map, in which byte N counts
how often actor N was called, and PIPE the descriptors of pipes, for each actor its reading and its writing end.

  {"do": [WHAT, ...], "call": [[N, HOW], ...]}     does it, calls the others (at once, also after an error), then answers
  {"check": [[WHAT, ...], ...]}                     checks, and answers
  both with "await": HOW                           before that, answers, and waits to be called; HOW is pipe, memory or signal
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

BOUND = 300.0
"""Seconds to wait for a call: the caller may be held up by a disk for half a minute."""
MOST = 1 << 20
"""Largest number of bytes of a file that are checked."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
libc = ctypes.CDLL(None, use_errno=True)


def digest(data: bytes) -> list[object]:
    """Length, hash and beginning: the part that is compared and reported."""
    return [len(data), hashlib.md5(data).hexdigest(), data[:24].decode("latin-1")]


class Files:
    """Changes and checks of files below one directory."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.held: dict[int, int] = {}
        """descriptors by slot"""
        self.maps: dict[int, mmap.mmap] = {}
        self.copy = os.memfd_create("copy")

    def path(self, name: str) -> str:
        return os.path.join(self.base, name)

    # changes

    def _write(self, name: str, flags: int, text: str, offset: int | None = None, mode: int = 0o644) -> None:
        file = os.open(self.path(name), os.O_WRONLY | flags, mode)
        try:
            if offset is None:
                os.write(file, text.encode())
            else:
                os.pwrite(file, text.encode(), offset)
        finally:
            os.close(file)

    def create(self, name: str, text: str, mode: int) -> None:
        self._write(name, os.O_CREAT | os.O_EXCL, text, mode=mode)

    def replace(self, name: str, text: str) -> None:
        self._write(name, os.O_TRUNC, text)

    def write(self, name: str, offset: int, text: str) -> None:
        self._write(name, 0, text, offset)

    def append(self, name: str, text: str) -> None:
        self._write(name, os.O_APPEND, text)

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self.path(name), size)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path(old), self.path(new))

    def exchange(self, one: str, other: str) -> None:
        if libc.renameat2(AT_FDCWD, self.path(one).encode(), AT_FDCWD, self.path(other).encode(), RENAME_EXCHANGE):
            raise OSError(ctypes.get_errno(), "renameat2")

    def unlink(self, name: str) -> None:
        os.unlink(self.path(name))

    def link(self, old: str, new: str) -> None:
        os.link(self.path(old), self.path(new), follow_symlinks=False)

    def symlink(self, target: str, name: str) -> None:
        os.symlink(target, self.path(name))

    def chmod(self, name: str, mode: int) -> None:
        os.chmod(self.path(name), mode)

    def utimes(self, name: str, changed: int) -> None:
        os.utime(self.path(name), ns=(changed, changed))

    def setxattr(self, name: str, attribute: str, value: str) -> None:
        os.setxattr(self.path(name), attribute, value.encode())

    def removexattr(self, name: str, attribute: str) -> None:
        os.removexattr(self.path(name), attribute)

    def mkdir(self, name: str) -> None:
        os.mkdir(self.path(name), 0o755)

    def rmdir(self, name: str) -> None:
        os.rmdir(self.path(name))

    def hold(self, slot: int, name: str, writable: bool, mapped: int) -> None:
        """Keeps the file open, and so many bytes of it mapped (none: 0)."""
        self.release(slot)
        self.held[slot] = os.open(self.path(name), os.O_RDWR if writable else os.O_RDONLY)
        if mapped:
            self.maps[slot] = mmap.mmap(self.held[slot], mapped, mmap.MAP_SHARED, mmap.PROT_READ)

    def release(self, slot: int) -> None:
        if slot in self.maps:
            self.maps.pop(slot).close()
        if slot in self.held:
            os.close(self.held.pop(slot))

    def pwrite(self, slot: int, offset: int, text: str) -> None:
        os.pwrite(self.held[slot], text.encode(), offset)

    def ftruncate(self, slot: int, size: int) -> None:
        os.ftruncate(self.held[slot], size)

    def clear(self) -> None:
        """Removes all files."""
        for entry in os.scandir(self.base):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

    def count(self, name: str, times: int) -> None:
        """Adds one to the number in the file, so many times, each under a lock."""
        file = os.open(self.path(name), os.O_RDWR)
        try:
            for _ in range(times):
                fcntl.lockf(file, fcntl.LOCK_EX)
                os.pwrite(file, b"%08d" % (int(os.pread(file, 8, 0)) + 1), 0)
                fcntl.lockf(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def race(self, allowed: list[int], times: int, what: str, *arguments: Any) -> list[int]:
        """Does it so many times, with the turn's number for every {}; returns which turns did not end with an allowed error."""
        won = []
        for turn in range(times):
            try:
                getattr(self, what)(*(word.format(turn) if isinstance(word, str) else word for word in arguments))
                won.append(turn)
            except OSError as error:
                if error.errno not in allowed:
                    raise
        return won

    # checks

    def stat(self, name: str) -> dict[str, int]:
        return self._shown(os.lstat(self.path(name)))

    def fstat(self, slot: int) -> dict[str, int]:
        return self._shown(os.fstat(self.held[slot]))

    @staticmethod
    def _shown(status: os.stat_result) -> dict[str, int]:
        shown = {"kind": stat.S_IFMT(status.st_mode), "mode": stat.S_IMODE(status.st_mode), "mtime": status.st_mtime_ns}
        if not stat.S_ISDIR(status.st_mode):  # sizes and links of directories are each file system's own
            shown |= {"size": status.st_size, "nlink": status.st_nlink}
        return shown

    def read(self, name: str) -> list[object]:
        file = os.open(self.path(name), os.O_RDONLY)
        try:
            return digest(os.read(file, MOST))
        finally:
            os.close(file)

    def pread(self, slot: int) -> list[object]:
        return digest(os.pread(self.held[slot], MOST, 0))

    def map(self, slot: int, size: int) -> list[object]:
        """Its first bytes as they are mapped, copied by the kernel: a page that is not there is an error then, not the end."""
        with memoryview(self.maps[slot]) as whole, whole[:size] as part:
            os.ftruncate(self.copy, 0)
            os.pwrite(self.copy, part, 0)
        return digest(os.pread(self.copy, size, 0))

    def names(self, name: str) -> list[str]:
        return sorted(os.listdir(self.path(name)))

    def lines(self, name: str) -> dict[str, int]:
        """Returns how often each line is in the file."""
        with open(self.path(name), encoding="utf-8") as file:
            return collections.Counter(file.read().splitlines())

    def readlink(self, name: str) -> str:
        return os.readlink(self.path(name))

    def xattr(self, name: str, attribute: str) -> str:
        return os.getxattr(self.path(name), attribute, follow_symlinks=False).decode()


class Calls:
    """Being called by other actors, and calling them."""

    def __init__(self, number: int, shared: int, pipes: list[int]) -> None:
        self.number, self.shared = number, shared
        self.memory = mmap.mmap(shared, 4096)
        self.reading, self.writing = pipes[::2], pipes[1::2]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    def call(self, number: int, how: str) -> None:
        if how == "memory":
            self.memory[number] = (self.memory[number] + 1) % 256
        else:
            os.write(self.writing[number], b"x")

    def ready(self, how: str) -> Callable[[], None]:
        """Returns a function that waits for the next call. Errors: TimeoutError."""
        before = self.memory[self.number]

        def wait() -> None:
            if how == "pipe":
                os.read(self.reading[self.number], 1)
            elif how == "signal":
                if signal.sigtimedwait({signal.SIGUSR1}, BOUND) is None:
                    raise TimeoutError("no signal came")
            else:
                self._watch(before)

        return wait

    def _watch(self, before: int) -> None:
        """Polls memory until it has changed: all the time as root, who can give way to others meanwhile. Errors: TimeoutError."""
        last = time.monotonic()
        end, polls, longest = last + BOUND, 0, 0.0
        is_root = os.getuid() == 0
        if is_root:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while self.memory[self.number] == before:
            if is_root:
                os.sched_yield()
            else:
                time.sleep(0.00002)
            now = time.monotonic()
            polls, longest, last = polls + 1, max(longest, now - last), now
            if now > end:
                calls = f"mapped {self.memory[:8].hex()}, read {os.pread(self.shared, 8, 0).hex()}, {before} before"
                raise TimeoutError(f"nothing came by memory ({calls}): {polls} polls, {longest:.3f} s between two of them at most")
        if is_root:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def tried(files: Files, what: list[Any]) -> dict[str, Any]:
    """Returns the result: a value, or the number of an error."""
    try:
        return {"value": getattr(files, what[0])(*what[1:])}
    except OSError as error:
        return {"error": error.errno}


def main() -> None:
    os.umask(0)
    files = Files(sys.argv[1])
    calls = Calls(int(sys.argv[2]), int(sys.argv[3]), [int(word) for word in sys.argv[4:]])

    def say(answer: object) -> None:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        order = json.loads(line)
        if "await" in order:
            wait = calls.ready(order["await"])
            say("ready")
            wait()
        if "do" in order:
            answer = tried(files, order["do"])
            for number, how in order.get("call", ()):
                calls.call(number, how)
            say(answer)
        else:
            say([tried(files, what) for what in order["check"]])


if __name__ == "__main__":
    main()
