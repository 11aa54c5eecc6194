"""The guests of one program: the one that it was started for, and the children that have been born here.

A process hands its filter on to its children, and with it their one listener: so they have one supervisor, one sandbox and one loop.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.store import FileStore
from remote.options import Options
from remote.remote import Remote
from wire import tree

if TYPE_CHECKING:
    from remote.homefiles import HomeFiles
    from remote.reception import Reception

log = logging.getLogger("remote")


class Tree(tree.Tree[Remote]):
    """See the module."""

    def __init__(self, options: Options) -> None:
        super().__init__(log)
        self.home_files: HomeFiles | None = None
        """where they read files of their home directly, as soon as one wants to"""
        self.store = FileStore(options.cache, options.lent_disk)
        """files of their home"""
        self.first = Remote(options, self)
        self.members.append(self.first)

    def run(self) -> int:
        """Until the last guest has gone. Returns 1 when none ever came."""
        try:
            self.live()
        finally:
            self.store.close()
            if self.home_files is not None:
                self.home_files.close()
        return 0 if self.first.guest is not None else 1

    def left(self, member: Remote) -> None:
        """Its guest has gone, and its memory with it."""
        self.released(member)

    def released(self, one: Remote) -> None:
        """The guest of that one has let go of its memory: its parent goes on if it has waited for that."""
        for other in self.members:
            if other is not one and other.guest is not None:
                other.guest.births.released_by(one.options.pid)

    def bear(self, parent: Remote, pid: int, reception: Reception, secret: bytes) -> Remote:
        """The remote of a child that `parent`'s guest is about to have, whose home connects at `reception`."""
        path = Path(parent.options.socket).with_name(f"{parent.options.home}-{pid}.sock")
        child = Remote(replace(parent.options, pid=pid, socket=path, secret=secret), self, reception)
        self.members.append(child)
        return child

    def has_others(self, than: Remote) -> bool:
        """Whether a guest is here besides that one."""
        return any(remote is not than for remote in self.members)
