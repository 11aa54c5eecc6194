"""One side of a race, in a node: `racer.py swap DIRECTORY`, `racer.py move DIRECTORY OUTSIDE` or `racer.py walk DIRECTORY SECONDS`.

In DIRECTORY `way` is by turns a directory of ours and a symbolic link to what is outside (`swap`), or `deep` is by turns there and outside
(`move`); until it is killed. `walk` meanwhile goes both ways, changes what it comes to, and prints everything that it has read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, EXCHANGE = -100, 2
PATIENCE = 10
"""Seconds."""


def swap(directory: str) -> None:
    one, other = (os.path.join(directory, name).encode() for name in ("way", "other"))
    while True:
        if libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, EXCHANGE):
            raise OSError(ctypes.get_errno(), "renameat2")


def move(directory: str, outside: str) -> None:
    one, other = os.path.join(directory, "deep"), os.path.join(outside, "deep")
    while True:
        os.rename(one, other)
        os.rename(other, one)


def read_at(directory: int, name: str) -> str:
    file = os.open(name, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(file, 100).decode()
    finally:
        os.close(file)


def damage_at(directory: int, name: str) -> str:
    file = os.open(f"{name}/made", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=directory)
    os.close(file)
    os.unlink(f"{name}/made", dir_fd=directory)
    os.chmod(f"{name}/secret", 0o640, dir_fd=directory)
    return ""


def listed_at(directory: int, name: str) -> str:
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    try:
        return " ".join(os.listdir(opened))
    finally:
        os.close(opened)


def found(directory: str) -> int:
    """Opens a directory that is moved away now and then. Errors: OSError."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:  # ESTALE: moved between two steps of the walk, as docs/files.md says (C5)
            if error.errno not in (errno.ENOENT, errno.ESTALE) or time.monotonic() > end:
                raise


def walk(directory: str, seconds: float) -> None:
    seen, turns = set(), 0
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    inner = found(os.path.join(directory, "deep/in"))
    end = time.monotonic() + seconds
    ways = (
        (read_at, top, "way/secret"), (listed_at, top, "way"), (damage_at, top, "way"), (read_at, top, "way/../secret"),
        (read_at, inner, "../../secret"), (read_at, inner, "secret"), (listed_at, inner, "../.."), (damage_at, inner, "../.."),
        (read_at, top, "deep/in/../../secret"),
    )  # fmt: skip
    while time.monotonic() < end:
        for act, where, name in ways:
            try:
                seen.add(act(where, name))
            except OSError as error:
                seen.add(f"error {error.errno}")
            turns += 1
    print(turns, sorted(seen))


if __name__ == "__main__":
    if sys.argv[1] == "swap":
        swap(sys.argv[2])
    elif sys.argv[1] == "move":
        move(sys.argv[2], sys.argv[3])
    else:
        walk(sys.argv[2], float(sys.argv[3]))
