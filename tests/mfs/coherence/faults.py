"""Faults: links are cut and servers killed in the midst of rounds. What is cut off may see errors; no actor ever sees wrong data."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.mfs.coherence.controller import ERRORS, Actor, Coherence, Hangs, Stale, agrees
from tests.mfs.coherence.model import Change, Check, Tree

RETURN = 30.0
"""Seconds in which all works again after the end of a fault."""


class Unsure:
    """Changes that ended with an error during a fault: made, half made or not."""

    def __init__(self, coherence: Coherence) -> None:
        self.coherence = coherence
        self.changes: list[tuple[Actor, Change, frozenset[str]]] = []

    @property
    def names(self) -> frozenset[str]:
        """Names of files that are not to be judged until it is known."""
        return frozenset(name for _, _, names in self.changes for name in names)

    def add(self, writer: Actor, change: Change) -> None:
        names, _ = self.coherence.tree.touched(writer.number, change)
        self.changes.append((writer, change, frozenset(names)))

    def settle(self) -> None:
        """Finds out at home what has become of them, which must be one of what may have."""
        for writer, change, names in self.changes:
            checks: list[Check] = [check for name in sorted(names) for check in (["stat", name], ["read", name], ["readlink", name])]
            seen = self.coherence.home.check(checks)
            for tree in self._possible(writer.number, change):
                if all(agrees(tree.expected(0, check), one) for check, one in zip(checks, seen, strict=True)):
                    self.coherence.tree = tree
                    break
            else:
                check, wrong = next(pair for pair in zip(checks, seen, strict=True) if not agrees(tree.expected(0, pair[0]), pair[1]))
                self.coherence.report.stale.append(
                    Stale(self.coherence.report.rounds, writer.place.name, ["unsure", *change], "home", "no call", check,
                          tree.expected(0, check), wrong, None)
                )  # fmt: skip
                self.coherence.lost = True
        self.changes = []

    def _possible(self, writer: int, change: Change) -> list[Tree]:
        """The tree without the change; with its first call only, which makes or empties the file; with all of it."""
        made = [change]
        if change[0] in ("create", "replace"):
            made.append([change[0], change[1], "", *change[3:]])
        trees = [self.coherence.tree]
        for one in made:
            trees.append(self.coherence.tree.copy())
            trees[-1].apply(writer, one)
        return trees


def during(coherence: Coherence, who: set[int], rounds: int, start: Callable[[], None], end: Callable[[], None]) -> None:
    """Rounds while the actors `who` are cut off by a fault, until all of them have returned. Errors: Hangs if one does not."""
    coherence.round()
    unsure = Unsure(coherence)
    coherence.cut_off = set(who)
    start()
    try:
        for _ in range(rounds):
            failed = coherence.round(without=unsure.names, hold=False)
            if failed:
                unsure.add(*failed)
            if coherence.lost:
                break
    finally:
        end()
    for number in who:
        _returned(coherence, coherence.actors[number])
    if not coherence.lost:
        unsure.settle()
        for number in who:
            _let_go(coherence, coherence.actors[number])
    coherence.cut_off = set()
    coherence.round()


def _returned(coherence: Coherence, actor: Actor) -> None:
    """Waits until an actor sees the names of its directory without an error. What it sees is judged later."""
    end = time.monotonic() + RETURN
    while "error" in (seen := actor.check([["names", ""]])[0]):
        if time.monotonic() > end:
            raise Hangs(f"{actor.place.name} still sees error {seen['error']} after {RETURN:.0f} s")
        time.sleep(0.05)


def _let_go(coherence: Coherence, actor: Actor) -> None:
    """Releases the slots that an actor holds and cannot use any more after the fault."""
    held = coherence.tree.held[actor.number]
    for slot in list(held):
        if actor.check([["fstat", slot]])[0].get("error") in ERRORS or actor.check([["pread", slot]])[0].get("error") in ERRORS:
            actor.do("release", slot)
            del held[slot]
            coherence.report.errors += 1
