"""What one node knows of all nodes at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from balancer.load.load import LoadVector


@dataclass(frozen=True, slots=True)
class Entry:
    """A load vector as known here, and how old it is now, in seconds; `suspected`: it has not answered lately."""

    vector: LoadVector
    age: float
    suspected: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What one node knows of all at one moment, itself included; `entries` is by name of the node."""

    name: str
    entries: Mapping[str, Entry]

    @property
    def own(self) -> LoadVector | None:
        """The vector of the node whose view this is, if it has made one."""
        entry = self.entries.get(self.name)
        return entry.vector if entry else None

    def with_own(self, more: float) -> View:
        """Return the view as it will be with so many more runnable threads (fewer if negative) on this node itself."""
        entry = self.entries.get(self.name)
        if entry is None or not more:
            return self
        return replace(self, entries={**self.entries, self.name: replace(entry, vector=entry.vector.with_more(more))})

    def others(self) -> list[Entry]:
        """Return the entries of the other nodes, by name."""
        return [entry for name, entry in sorted(self.entries.items()) if name != self.name]

    def rows(self) -> list[dict[str, object]]:
        """Return one plain table row per node, as `mon` and `mosctl nodes` show it."""
        rows: list[dict[str, object]] = []
        for name, entry in sorted(self.entries.items()):
            vector = entry.vector
            row: dict[str, object] = {key: getattr(vector, key) for key in _ROW_KEYS}
            row |= {
                "owner_state": vector.stage.value, "closed_why": _why_closed(vector),
                "utilisability": None if vector.memory_full is None else 1 - vector.memory_full,
            }  # fmt: skip
            rows.append(row | {"age": round(entry.age, 3), "suspected": entry.suspected, "self": name == self.name})
        return rows


def _why_closed(vector: LoadVector) -> str:
    if vector.blocked:
        return "it is blocked by hand"
    if vector.owner_active:
        return "its owner has it"
    return "" if vector.lending else "its policy lends nothing now"


_ROW_KEYS = (
    "name", "address", "port", "runnable", "owner", "load", "cores", "speed",
    "memory_free", "memory_total", "guests", "lending", "blocked", "version", "owner_idle", "cpu_pressure", "memory_full", "io_full",
)  # fmt: skip
