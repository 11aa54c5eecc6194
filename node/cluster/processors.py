"""What the processors of other nodes can do, as far as this node knows: gossip carries a digest, a peer's hello the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from balancer.load.view import View
from engine.leaving.processor import Processor, why_unfit

MOST = 256
"""Kinds of processors that are remembered."""
ASK_PERIOD = 5.0


class Processors:
    """Says of nodes why no process of this one could go on there."""

    def __init__(self, own: Processor, clock: Callable[[], float], ask: Callable[[str], None]) -> None:
        """ask: says hello to a node, so that judge() hears what it reports."""
        self.own = own
        self._clock = clock
        self._ask = ask
        self._known: dict[int, Processor] = {own.digest: own}
        self._asked: dict[int, float] = {}

    def judge(self, name: str, hello: Mapping[str, Any]) -> str | None:
        """Return why no process of this node could go on at a peer that says that hello."""
        try:
            reported = Processor.from_wire(hello.get("processor"))
        except ValueError as error:
            return f"{name} cannot be judged: {error}"
        if len(self._known) < MOST:
            self._known[reported.digest] = reported
        return why_unfit(name, reported, self.own)

    def unfit(self, view: View) -> dict[str, str]:
        """Return the same of the nodes in a view, by name; one of a kind that is not known is asked."""
        found: dict[str, str] = {}
        for entry in view.others():
            name, digest = entry.vector.name, entry.vector.processor
            if digest == self.own.digest:
                continue
            reported = self._known.get(digest)
            if reported is None:
                self._ask_about(digest, name)
            why = why_unfit(name, reported, self.own) if reported is not None else f"what {name}'s processor can do is not known yet"
            if why is not None:
                found[name] = why
        return found

    def _ask_about(self, digest: int, name: str) -> None:
        now = self._clock()
        if now - self._asked.get(digest, float("-inf")) >= ASK_PERIOD:
            if len(self._asked) >= MOST:
                self._asked.clear()
            self._asked[digest] = now
            self._ask(name)
