"""The guests of one program: the one that it was started for, and the children that have been born here.

A process hands its filter on to its children, and with it their one listener: so they have one supervisor, one sandbox and one loop.
"""

from __future__ import annotations

import logging

from engine.files.store import FileStore
from remote.options import Options
from remote.remote import Remote, Shared
from wire import tree

log = logging.getLogger("remote")


class Tree(tree.Tree[Remote]):
    """See the module."""

    def __init__(self, options: Options) -> None:
        super().__init__(log)
        self._shared = Shared(FileStore(options.cache, options.lent_disk))
        self._first = Remote(options, self, self._shared)
        self.members.append(self._first)

    def run(self) -> int:
        """Until the last guest has gone. Returns 1 when none ever came."""
        try:
            self.live()
        finally:
            self._shared.store.close()
            if self._shared.home_files is not None:
                self._shared.home_files.close()
        return 0 if self._first.guest is not None else 1

    def left(self, member: Remote) -> None:
        """Its guest has gone, and its memory with it."""
        member.released()
