"""What it costs a node, in one figure, to run one more process: processor and memory together; and what it saves the others to be without.

After Amir, Awerbuch, Barak, Borgstrom and Keren (TPDS 11(7), 2000): the cost of a resource grows exponentially with the share
of it that is in use, and a process goes where it makes the costs grow least. Processor time needs no such price here, since
what the process gets of it is known: the slowdown. Memory is dear only where it gets scarce, and costs as much as so many
others on the processor.
"""

from __future__ import annotations

from balancer.load.load import LoadVector, slowdown

FREE_OF_CHARGE = 0.5
"""The share of memory that costs nothing."""
DEAREST = 4.0
"""Units of slowdown that the last of the memory costs."""
LEAST_NODES, MOST_NODES = 4, 256
LASTING = 0.5
"""Threads, on average: fewer are none that want to run all the time."""


def memory_price(vector: LoadVector, more: int, nodes: int) -> float:
    """Return by how much the price of the node's memory grows with so many bytes more in use (fewer if negative).

    `nodes` is the base of the exponential: the more nodes there are to choose from, the sooner a full one is left alone.
    """
    used = vector.memory_total - vector.memory_free
    if max(used, used + more) <= FREE_OF_CHARGE * vector.memory_total:
        return 0.0
    return _price(vector, more, nodes) - _price(vector, 0, nodes)


def _price(vector: LoadVector, more: int, nodes: int) -> float:
    if not vector.memory_total:
        return 0.0
    used = (vector.memory_total - vector.memory_free + more) / vector.memory_total
    scarce = min(1.0, max(0.0, (used - FREE_OF_CHARGE) / (1 - FREE_OF_CHARGE)))
    base = min(MOST_NODES, max(LEAST_NODES, nodes))
    return float(DEAREST * (base**scarce - 1) / (base - 1))


def price(vector: LoadVector, runnable: float, memory: int, nodes: int) -> float:
    """Return what a process of so many threads and bytes that comes to the node would cost soon, in units of slowdown."""
    return vector.slowdown_soon(runnable) + memory_price(vector, memory, nodes)


def has_room(vector: LoadVector, runnable: float) -> bool:
    """Return whether the node has cores that nobody wants for so many more threads."""
    return vector.idle or max(vector.runnable, vector.forecast) + runnable <= vector.cores


def burden(vector: LoadVector, runnable: float) -> float:
    """Return by how much more all others on the node would be slowed down, added up, with a process of so many threads there: 0 where only
    what runs now and then (daemons) is."""
    others = vector.contending
    if others < LASTING:
        return 0.0
    return others * (slowdown(others + runnable, vector.cores, vector.speed) - slowdown(others, vector.cores, vector.speed))


def relief(vector: LoadVector, runnable: float) -> float:
    """Return by how much less all others on the node would be slowed down, added up, without a process of so many threads there: 0 where
    only what runs now and then (daemons) would be left."""
    contending = max(vector.contending, runnable)
    others = contending - runnable
    if others < LASTING:
        return 0.0
    return others * (slowdown(contending, vector.cores, vector.speed) - slowdown(others, vector.cores, vector.speed))
