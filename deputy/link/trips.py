"""How many calls home has made for one program while it was away: one trip each."""

from __future__ import annotations

from kernel_helpers.link.ends.home import HomeLink


class Trips:
    """Those of all processes of a tree, also of those that have ended."""

    def __init__(self) -> None:
        self._before = 0
        self._links: set[HomeLink] = set()

    def begin(self, link: HomeLink) -> None:
        """A process is away."""
        self._links.add(link)

    def end(self, link: HomeLink) -> None:
        """Its calls come by that link no more, which is still open. Once is enough, twice is no error."""
        if link in self._links:
            self._links.remove(link)
            self._before += link.calls[0]

    @property
    def total(self) -> int:
        """Until now."""
        return self._before + sum(link.calls[0] for link in self._links)


__all__ = ["Trips"]
