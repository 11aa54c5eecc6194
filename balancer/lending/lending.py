"""To whom a node lends: users, groups, nodes and clusters that are allowed or denied, and classes of guests with priorities.

Where something is both allowed and denied, it is denied. A guest of a higher class finds room where one of a lower class has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from balancer.lending.conditions import Condition
from balancer.lending.mistakes import Mistake
from balancer.lending.values import Table

MOST_CLASSES = 100


@dataclass(frozen=True, slots=True)
class Borrower:
    """Whose process wants to be a guest: a user and his groups by their names at home, the home node, its cluster."""

    user: str
    node: str = ""
    groups: frozenset[str] = frozenset()
    cluster: str = ""

    @classmethod
    def parse(cls, text: str, cluster: str = "") -> Borrower:
        """Of user@node. Errors: ValueError."""
        user, at, node = text.partition("@")
        if not user or not at or not node:
            raise ValueError(f"{text!r} is not user@node")
        return cls(user, node, cluster=cluster)

    def __str__(self) -> str:
        return f"{self.user}@{self.node}"


@dataclass(frozen=True, slots=True)
class Borrowers:
    """Some borrowers: None is all. Who fits users or groups, and comes from one of the nodes and clusters, is one of them. A user may be
    written user@node; `*` within a name stands for anything."""

    users: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    clusters: frozenset[str] | None = None

    @classmethod
    def from_table(cls, table: Table) -> Borrowers:
        """Errors: Mistake."""
        return cls(table.names("users"), table.names("groups"), table.names("nodes"), table.names("clusters"))

    def includes(self, one: Borrower) -> bool:
        """Return whether it is one of them."""
        if self.users is None and self.groups is None:
            fits = True
        else:
            fits = _is_user(self.users or frozenset(), one) or any(_is_named(group, self.groups or frozenset()) for group in one.groups)
        return fits and _is_in(self.nodes, one.node) and _is_in(self.clusters, one.cluster)

    def names_any(self, one: Borrower) -> str | None:
        """Return what of it is named here, for a list of those that are denied; None if nothing is."""
        if self.users is not None and _is_user(self.users, one):
            return f"user {one.user}"
        for group in sorted(one.groups):
            if self.groups is not None and _is_named(group, self.groups):
                return f"group {group}"
        if self.nodes is not None and _is_named(one.node, self.nodes):
            return f"node {one.node}"
        if self.clusters is not None and _is_named(one.cluster, self.clusters):
            return f"cluster {one.cluster}"
        return None

    def sentence(self) -> str:
        """As people read it."""
        who, where = (
            [f"{word}{key} {', '.join(sorted(names))}" for key in keys if (names := getattr(self, key)) is not None]
            for word, keys in (("", ("users", "groups")), ("of ", ("nodes", "clusters")))
        )
        return " ".join([" and ".join(who) or "everybody", *where])


def _is_named(name: str, patterns: frozenset[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_in(patterns: frozenset[str] | None, name: str) -> bool:
    return patterns is None or _is_named(name, patterns)


def _is_user(patterns: frozenset[str], one: Borrower) -> bool:
    return any(fnmatchcase(str(one) if "@" in pattern else one.user, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Denied:
    """[lend.deny]: whatever of a borrower is named here denies it."""

    borrowers: Borrowers | None = None

    @classmethod
    def from_table(cls, table: Table) -> Denied:
        """Errors: Mistake."""
        given = any(table.has(key) for key in ("users", "groups", "nodes", "clusters"))
        borrowers = Borrowers.from_table(table)
        table.close()
        for key in ("users", "groups", "nodes", "clusters"):
            if table.has(key) and getattr(borrowers, key) is None:
                raise table.wrong(key, "denies everybody: lend nothing by enabled = false")
        return cls(borrowers if given else None)

    def denies(self, one: Borrower) -> str | None:
        """Return what of it is denied."""
        return self.borrowers.names_any(one) if self.borrowers is not None else None

    def sentence(self) -> str:
        """As people read it."""
        if self.borrowers is None:
            return "nobody"
        lists = {key: getattr(self.borrowers, key) for key in ("users", "groups", "nodes", "clusters")}
        return "; ".join(f"{key} {', '.join(sorted(names))}" for key, names in lists.items() if names is not None)


@dataclass(frozen=True, slots=True)
class GuestClass:
    """[[lend.class]]: guests of a kind, the priority that they have (greater goes first), and bounds of their own. Memory in bytes."""

    name: str
    priority: int = 0
    borrowers: Borrowers = field(default_factory=Borrowers)
    max_guests: int | None = None
    max_memory: int | None = None
    when: Condition | None = None

    @classmethod
    def from_table(cls, table: Table) -> GuestClass:
        """Errors: Mistake."""
        if not table.has("name"):
            raise Mistake(table.where, f"class {int(table.where[-1]) + 1} has no name")
        made = cls(
            name=table.text("name", ""), priority=table.count("priority", 0) or 0, borrowers=Borrowers.from_table(table),
            max_guests=table.count("max_guests"), max_memory=table.size("max_memory"), when=table.condition("when"),
        )  # fmt: skip
        table.close()
        return made


OTHERS = GuestClass("others")
"""The class of guests that belong to none."""


def classes_from(table: Table) -> tuple[GuestClass, ...]:
    """Return the classes of a policy, highest first. Errors: Mistake."""
    tables = table.tables("class")
    if len(tables) > MOST_CLASSES:
        raise table.wrong("class", f"has more than {MOST_CLASSES} classes")
    classes = [GuestClass.from_table(one) for one in tables]
    for index, one in enumerate(classes):
        if one.name == OTHERS.name or one.name in (before.name for before in classes[:index]):
            raise tables[index].wrong("name", f"{one.name!r} is a class already")
    return tuple(sorted(classes, key=lambda one: -one.priority))


def class_of(classes: Sequence[GuestClass], one: Borrower) -> GuestClass:
    """Return the highest class that a borrower belongs to."""
    return next((found for found in classes if found.borrowers.includes(one)), OTHERS)


@dataclass(frozen=True, slots=True)
class Present:
    """A guest that is here. memory in bytes; since: seconds, by any one clock."""

    key: str
    kind: GuestClass
    memory: int
    since: float


def make_room(present: Sequence[Present], priority: int, is_room: Callable[[Sequence[Present]], bool]) -> list[str] | None:
    """Keys of the guests that would have to go so that one of this priority has room: as few as do, of the lowest priority, the latest
    first. is_room: whether there would be, with those that stay. None if there is none even then."""
    staying = list(present)
    gone: list[Present] = []
    for one in sorted(present, key=lambda guest: (guest.kind.priority, -guest.since)):
        if is_room(staying):
            break
        if one.kind.priority >= priority:
            return None
        staying.remove(one)
        gone.append(one)
    if not is_room(staying):
        return None
    for one in list(gone):  # who went first may have been too small to matter
        if is_room([*staying, one]):
            staying.append(one)
            gone.remove(one)
    return [one.key for one in gone]
