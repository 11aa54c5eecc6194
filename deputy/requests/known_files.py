"""Files of the system that processes of this program have mapped while they were away, known by key to the loops of all stubs.

A loop maps such a file aside as it opens it, and the guest maps it without a trip (kernel_helpers/link/home/files/aside.h). A guest knows
a file by its name, so one name must mean one file, and one file have one name, for all processes of the program: a name of which that is
not so is never one of these.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from engine.files.files import MappedFile
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.link.ends.kept_files import file_key

log = logging.getLogger("deputy")

MOST = 8192
"""Names that are looked after; with more of them no other file becomes known."""
_OF_NO_FILE = ("/dev/", "/memfd:", "/SYSV")


@dataclass(frozen=True)
class KnownFile:
    """inode: st_dev, st_ino."""

    file: MappedFile
    inode: tuple[int, int]


class KnownFiles:
    """Those of this program."""

    def __init__(self) -> None:
        self._by_key: dict[int, KnownFile] = {}
        self._keys: dict[str, int] = {}
        """by name, those whose loops may map them"""
        self._identities: dict[str, str] = {}
        self._names: dict[str, str] = {}
        """identity of each name, and the other way round (see engine.mappings.mappings.Mapping)"""
        self._ambiguous: set[str] = set()
        """names"""

    def note(self, name: str, identity: str) -> bool:
        """Take note of a file that a process has mapped, and what its guest calls it. Returns whether both mean one another alone in this
        program."""
        name = name.removesuffix(" (deleted)")
        if not name.startswith("/") or name.startswith(_OF_NO_FILE):
            return False
        if len(self._identities) == MOST and name not in self._identities:
            return False
        before, other = self._identities.setdefault(name, identity), self._names.setdefault(identity, name)
        if before != identity or other != name:
            for ambiguous in (name, other):
                self._ambiguous.add(ambiguous)
                if (key := self._keys.pop(ambiguous, 0)) != 0:
                    log.info("%s is mapped by asking: it has been another file", ambiguous)
                    HomeLink.forget_file(key)
        return name not in self._ambiguous

    def add(self, file: MappedFile, identity: str, inode: tuple[int, int], descriptor: int, home: HomeLink) -> None:
        """Add a file of the system that is open as `descriptor`; the process of `home` has it mapped aside."""
        key = file_key(file.path, file.sha256)
        if self.note(file.path, identity):
            self._by_key[key] = KnownFile(file, inode)
            with suppress(OSError):
                home.know_file(descriptor, key)
                self._keys[file.path] = key

    def of(self, key: int) -> KnownFile:
        """Return the file that a loop has mapped."""
        return self._by_key[key]


known_files = KnownFiles()

__all__ = ["KnownFile", "KnownFiles", "known_files"]
