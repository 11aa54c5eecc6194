"""Contests: all actors do the same at once, and what only one kernel can decide has been decided by one kernel.

Of those that make, take away or rename the same name one wins; what all append to a file is in it once; what is counted under a lock
adds up.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from typing import Any

from tests.mfs.coherence.controller import Coherence
from tests.mfs.coherence.model import Change

TURNS = 20
WON_BY_ONE: dict[str, tuple[list[Change], Callable[[int], list[Any]], int]] = {
    "create": ([], lambda me: ["create", "x{}", f"of {me}", 0o644], errno.EEXIST),
    "mkdir": ([], lambda me: ["mkdir", "x{}"], errno.EEXIST),
    "symlink": ([], lambda me: ["symlink", "nowhere", "x{}"], errno.EEXIST),
    "link": ([["create", "one", "", 0o644]], lambda me: ["link", "one", "x{}"], errno.EEXIST),
    "unlink": ([["race", [], TURNS, "create", "x{}", "", 0o644]], lambda me: ["unlink", "x{}"], errno.ENOENT),
    "rmdir": ([["race", [], TURNS, "mkdir", "x{}"]], lambda me: ["rmdir", "x{}"], errno.ENOENT),
    "rename": ([["race", [], TURNS, "create", "x{}", "", 0o644]], lambda me: ["rename", "x{}", f"of-{me}-{{}}"], errno.ENOENT),
}
"""By name: what home does before, what each actor does (its number is given), and the error of the losers."""
SHARED: dict[str, tuple[Change, Callable[[int], list[Any]], Callable[[int], dict[str, int]]]] = {
    "append": (
        ["create", "log", "", 0o644],
        lambda me: ["race", [], TURNS, "append", "log", f"{me}:{{}}\n"],
        lambda actors: {f"{me}:{turn}": 1 for me in range(actors) for turn in range(TURNS)},
    ),
    "count": (
        ["create", "log", f"{0:08}\n", 0o644],
        lambda me: ["count", "log", TURNS],
        lambda actors: {f"{actors * TURNS:08}": 1},
    ),
}
"""By name: what home does before, what each actor does, and the lines that are in the file at the end, by how many actors there are."""


def at_once(coherence: Coherence, change: Callable[[int], Change]) -> list[dict[str, Any]]:
    """Has all actors make a change, called by the same memory; returns their results. Errors: Hangs."""
    for actor in coherence.actors:
        actor.send({"do": change(actor.number), "await": "memory"})
        actor.hear()
    with mmap.mmap(coherence.shared, 4096) as memory:
        for actor in coherence.actors:
            memory[actor.number] = (memory[actor.number] + 1) % 256
    return [actor.hear() for actor in coherence.actors]


def contest(coherence: Coherence, name: str) -> list[str]:
    """Holds one contest on an empty tree and returns what was wrong. Errors: Hangs, OSError."""
    coherence.begin()
    wrong: list[str] = []
    before = WON_BY_ONE[name][0] if name in WON_BY_ONE else [SHARED[name][0]]
    for change in before:
        coherence.home.do(*change)
    if name in WON_BY_ONE:
        _, made, lost = WON_BY_ONE[name]
        answers = at_once(coherence, lambda me: ["race", [lost], TURNS, *made(me)])
        winners = [turn for answer in answers for turn in answer.get("value", [])]
        if sorted(winners) != list(range(TURNS)):
            wrong.append(f"{name}: of {TURNS} turns were won {sorted(winners)}: {answers}")
    else:
        _, done, lines = SHARED[name]
        answers = at_once(coherence, done)
        wrong += [f"{name}: {answer}" for answer in answers if "error" in answer]
        for actor in coherence.actors:
            seen = actor.check([["lines", "log"]])[0].get("value")
            if seen != lines(len(coherence.actors)):
                wrong.append(f"{name}: {actor.place.name} finds {seen}")
    coherence.lost = True  # its files are not those of the model
    listed = [actor.check([["names", ""]])[0] for actor in coherence.actors]
    wrong += [f"{name}: {actor.place.name} lists {seen}" for actor, seen in zip(coherence.actors, listed, strict=True) if seen != listed[0]]
    return wrong
