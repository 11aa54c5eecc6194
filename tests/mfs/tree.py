"""Prints all attributes of a tree of files but its times of access and change: `tree.py DIRECTORY`. Equal trees print the same.

Of each file: kind, mode, owner, size, time of modification, extended attributes (access control lists among them), content, where data and
holes are to pages, and which other names it has in the tree.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator

PAGE = 4096


def data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the spans of data: from, to."""
    at = 0
    while at < size:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(file, at, os.SEEK_HOLE)
        yield at // PAGE, -(-end // PAGE)
        at = end


def content(path: str, size: int) -> str:
    digest = hashlib.md5()
    file = os.open(path, os.O_RDONLY)
    try:
        holes = list(data(file, size))
        os.lseek(file, 0, os.SEEK_SET)
        while piece := os.read(file, 1 << 20):
            digest.update(piece)
    finally:
        os.close(file)
    return f"{digest.hexdigest()} {holes}"


def main(top: str) -> None:
    links: dict[tuple[int, int], str] = {}
    for directory, directories, names in os.walk(top):
        directories.sort()
        for name in sorted([*directories, *names]):
            path = os.path.join(directory, name)
            shown, about = os.path.relpath(path, top), os.lstat(path)
            attributes = {one: os.getxattr(path, one, follow_symlinks=False) for one in sorted(os.listxattr(path, follow_symlinks=False))}
            line = f"{shown!r} {about.st_mode:o} {about.st_uid}:{about.st_gid} {about.st_mtime_ns} {attributes}"
            if stat.S_ISREG(about.st_mode):
                first = links.setdefault((about.st_dev, about.st_ino), shown) if about.st_nlink > 1 else shown
                line += f" {about.st_nlink} {first!r} {about.st_size} {content(path, about.st_size)}"
            elif stat.S_ISLNK(about.st_mode):
                line += f" -> {os.readlink(path)!r}"
            print(line)


if __name__ == "__main__":
    main(sys.argv[1])
