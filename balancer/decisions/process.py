"""A process as the decisions see it, what may be decided about it, and what stands against a move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from balancer.decisions.cost import MoveCost
from balancer.lending.formats import format_size
from balancer.load.load import LoadVector
from balancer.load.view import Entry

HOME = "home"


@dataclass(frozen=True, slots=True)
class Process:
    """A home process of the deciding node, wherever it is now. Memory in bytes, times in seconds of the caller's clock.

    `where` is "home" or the node it is on; `arrived` when it came there (or started); `moved` the times of its moves
    of the last minute or more, the newest last; `runnable` how many of its threads usually want to run; `moving` that
    a move is under way; `not_before` before when no move is to be tried, after one that failed or was refused; `unfit` says
    of nodes why it cannot go on there; `files` at which place ("home" or a node) it reads and writes how many bytes, and `calls`
    how many calls home alone can answer, both for each second of processor time that it uses; `trusted` the nodes that it may be on,
    None: all.
    """

    pid: int
    cpu_seconds: float
    memory: int
    where: str = HOME
    arrived: float = 0.0
    moved: tuple[float, ...] = ()
    runnable: float = 1.0
    moving: bool = False
    locked: bool = False
    home_only: bool = False
    wanted: str | None = None
    not_before: float = 0.0
    immovable: str | None = None
    unfit: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, float] = field(default_factory=dict)
    calls: float = 0.0
    trusted: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The figures of the rules; gains in units of slowdown, times in seconds, memory in bytes.

    `sacrifice` is how much a process may lose by going to an idle core, for those that stay. `sample` is how many nodes are looked
    at for one process, `placings` how many are asked for one that is to be placed. A node takes one guest at a time that a balancer
    sends, but for small ones: together they may have up to `arriving` bytes. `seconds_per_byte` and `seconds_per_call` are how long a
    byte takes that is read or written at another place than where the process is, and a call that home answers. A move that takes
    away `large` of a process's slowdown need not wait for longer than `residency_large` after the last one; from `large_moves` quick
    ones on, each doubles that, too. Where memory is short, processes leave until there is `memory_relief` times as much free as is
    called short. None goes where all waits for memory or for a disk for more than `memory_stall` or `io_stall` of the time.
    """

    margin: float = 0.15
    sacrifice: float = 0.3
    home_margin: float = 0.1
    residency: float = 11.0
    residency_costs: float = 3.0
    residency_limit: float = 120.0
    large: float = 0.45
    residency_large: float = 7.0
    large_moves: int = 5
    quick: float = 300.0
    stale: float = 10.0
    sample: int = 4
    memory_floor: int = 256 << 20
    memory_floor_share: float = 0.05
    cost: MoveCost = field(default_factory=MoveCost)
    placings: int = 3
    arriving: int = 64 << 20
    retry_busy: float = 2.0
    retry_failed: float = 10.0
    seconds_per_byte: float = 1 / 50e6
    seconds_per_call: float = 1e-4
    memory_relief: float = 2.0
    memory_stall: float = 0.1
    io_stall: float = 0.5


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one process and why. `target` is a node, "home", or None: it stays where it is.

    `gain` is the difference of slowdowns, `saved` the wall seconds that the move is expected to save after its cost.
    `slowdown` is below what it has to be at the target, for its recheck(); None where somebody asked for the move.
    """

    pid: int
    target: str | None
    reason: str
    gain: float = 0.0
    saved: float = 0.0
    slowdown: float | None = None


def residency(process: Process, now: float, settings: Settings, share: float = 0.0) -> float:
    """Return the least seconds that a process stays where it came to; each quick move before the last doubles it. For a move that takes
    away such a share (0 to 1) of its slowdown they are fewer, as long as there have not been many."""
    recent = sum(1 for moved in process.moved if now - moved < settings.quick)
    move = settings.residency_costs * settings.cost.of(process.memory)
    least = max(settings.residency, move)
    stays = min(max(settings.residency_limit, least), least * 2.0 ** max(0, min(recent, 32) - 1))
    if share >= settings.large:
        return min(stays, max(settings.residency_large, move) * 2.0 ** max(0, min(recent, 32) - settings.large_moves))
    return stays


def why_never(process: Process, own: LoadVector) -> str | None:
    """Return why this process is not moved by itself, in one sentence, or None."""
    if process.moving:
        return "a move of it is under way"
    if process.home_only:
        return "it was started to stay at home"
    if process.locked and not process.wanted:
        return "it is locked against automatic moves"
    if process.immovable:
        return process.immovable
    if process.wanted and process.where == (HOME if process.wanted == own.name else process.wanted):
        return f"it is on {process.wanted}, where it is wanted"
    return None


def why_not_now(process: Process, now: float, settings: Settings) -> str | None:
    """Return why it is too early to try another move of this process, whatever it would gain, or None."""
    if now < process.not_before:
        return f"its last move failed or was refused; the next is tried in {process.not_before - now:.0f} s"
    return None


def why_not_again(process: Process, share: float, now: float, settings: Settings) -> str | None:
    """Return why it is too early, after its last move, for one that takes away such a share (0 to 1) of its slowdown, or None.

    The less there is to gain, the sooner it was an error of figures that are seconds old; of what would be halved, little was.
    """
    stayed, least = now - process.arrived, residency(process, now, settings, share)
    if process.moved and stayed < least:
        return f"it came {stayed:.0f} s ago and stays {least:.0f} s before it moves again"
    return None


def why_not_there(entry: Entry, process: Process, settings: Settings) -> str | None:
    """Return why this process cannot go to the node of this entry, in one sentence."""
    vector = entry.vector
    if entry.age > settings.stale:
        return f"nothing has been heard of {vector.name} for {entry.age:.0f} s"
    if entry.suspected:
        return f"{vector.name} does not answer now"
    if process.trusted is not None and vector.name not in process.trusted:
        return f"{vector.name} is none of the nodes that it may be on"
    if vector.name in process.unfit:
        return process.unfit[vector.name]
    if vector.memory_short:
        return f"memory is short on {vector.name}"
    for waits_for, share, most in (("memory", vector.memory_full, settings.memory_stall), ("a disk", vector.io_full, settings.io_stall)):
        if share is not None and share > most:
            return f"all on {vector.name} waits for {waits_for} {share:.0%} of the time"
    if not vector.accepts_guests:
        return f"{vector.name} takes no guests now"
    return why_no_memory(vector, process, settings)


def why_no_memory(vector: LoadVector, process: Process, settings: Settings) -> str | None:
    """Return why this process does not fit into the memory of a node, or None."""
    floor = max(settings.memory_floor, int(vector.memory_total * settings.memory_floor_share))
    if vector.memory_free - process.memory < floor:
        free, needed = format_size(vector.memory_free), format_size(process.memory)
        return f"{vector.name} has {free} of memory free, too little for {needed}"
    return None
