"""What a person looks at: the state of the nodes' screen, and what MOSIX's keys make of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.drawings.chart import NUMBERINGS, VIEWS
from monitor.picture import Node, Picture

STEP = 10
"""Nodes that up and down go over."""
KEYS = (
    ("l L", "load, load on a logarithmic scale"),
    ("s m u", "speed; memory used and free (+); utilisability (1 - waiting for memory)"),
    ("w v V a", "numbering below the bars: wide, vertical, tight, automatic"),
    ("d", "all dead nodes, or only those that died within a day"),
    ("t", "totals of all nodes, or not"),
    ("left right", "choose a node; up and down: ten at a time; Home and End"),
    ("Enter", "go into it: node, process, why; Esc: back"),
    ("/", "only nodes, or processes, with a text; Enter keeps it, Esc ends it"),
    ("m", "in a list of processes: move the chosen one; h: home at once"),
    ("space", "look at once"),
    ("mouse", "a click chooses, a second one goes in; the wheel goes up and down"),
    ("?", "this page"),
    ("q", "quit"),
)


@dataclass(frozen=True)
class Outlook:
    """`chosen` is a node's name; "" is the node that is asked."""

    view: str = "l"
    numbering: str = "a"
    dead: bool = False
    total: bool = False
    chosen: str = ""
    wanted: str = ""

    def nodes(self, picture: Picture) -> list[Node]:
        """Return the nodes that are shown, in their order."""
        return [node for node in picture.nodes if (self.dead or picture.is_shown(node)) and self.wanted.lower() in node.name.lower()]

    def index(self, picture: Picture) -> int:
        """Return which of them is chosen; the first if the chosen one is not shown any more."""
        names = [node.name for node in self.nodes(picture)]
        name = self.chosen or picture.node
        return names.index(name) if name in names else 0

    def at(self, picture: Picture, index: int) -> Outlook:
        """With another node chosen, the nearest that there is."""
        nodes = self.nodes(picture)
        return replace(self, chosen=nodes[min(max(0, index), len(nodes) - 1)].name) if nodes else self

    def pressed(self, key: str, picture: Picture) -> Outlook:
        """Return what it is after a key; the same if the key means nothing here."""
        if key in VIEWS:
            return replace(self, view=key)
        if key in NUMBERINGS:
            return replace(self, numbering=key)
        if key == "d":
            return replace(self, dead=not self.dead)
        if key == "t":
            return replace(self, total=not self.total)
        steps = {"left": -1, "right": 1, "up": -STEP, "down": STEP, "home": -len(picture.nodes), "end": len(picture.nodes)}
        return self.at(picture, self.index(picture) + steps[key]) if key in steps else self
