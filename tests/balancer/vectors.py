"""Load vectors for tests."""

from __future__ import annotations

from dataclasses import replace

from balancer.load.load import LoadVector

GIB = 1 << 30


def node(name: str, runnable: float = 0.0, **changes: object) -> LoadVector:
    """Return the vector of a node of one core and the yardstick's speed that lends, 12 of its 16 GiB free."""
    vector = LoadVector(name, 1, 1, "10.0.0.1", 7226, runnable, runnable, 1.0, 1.0, 12 * GIB, 16 * GIB, 0, True, False, 1)
    return replace(vector, **changes)  # type: ignore[arg-type]
