"""A home end of the link, made before its process stands still: its memory costs time for each thread."""

from __future__ import annotations

import os
from contextlib import suppress

from engine.context.capture import inner_tids
from kernel_helpers.link.ends.home import HomeLink


class LinkAhead:
    """That of one process, by the threads that it has now; to be closed."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._link: HomeLink | None = None

    def foresee(self) -> None:
        """The process is about to stand still. take() reports what goes wrong."""
        with suppress(OSError, MemoryError):
            tids = sorted(map(int, os.listdir(f"/proc/{self._pid}/task")), key=lambda tid: tid != self._pid)
            self._make(list(inner_tids(self._pid, tids).values()))

    def take(self, threads: list[int]) -> HomeLink:
        """One for these threads, as the program knows them, which is the caller's from here on. Errors: OSError, MemoryError."""
        link = self._make(threads)
        self._link = None
        return link

    def _make(self, threads: list[int]) -> HomeLink:
        if self._link is not None and self._link.threads != threads:
            self.close()
        if self._link is None:
            self._link = HomeLink(threads)
        return self._link

    def close(self) -> None:
        """Once is enough, twice is no error."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


__all__ = ["LinkAhead"]
