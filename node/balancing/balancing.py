"""Where home's processes are to run: decisions, made by the pure rules of `balancer/`, and acted on."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from balancer.decisions.decide import PERIOD, decide, next_interval
from balancer.decisions.journal import Journal
from balancer.decisions.placement import place, placings
from balancer.decisions.process import Decision, Process
from balancer.load.view import View
from kernel_helpers.common.errors import MoveRefused
from node.balancing.at_exec import AtExec
from node.balancing.cluster_view import ClusterView
from node.balancing.traffic import TrafficMeter
from node.cluster.front.connections import PeerError
from node.cluster.peers import Peers
from node.cluster.processors import Processors
from node.common import process
from node.common.config import Config
from node.common.periodic import periodically
from node.common.tasks import Tasks
from node.moves.home_process import HOME, HomeProcess
from node.moves.move import Manner, MoveFailed
from node.moves.moves import Mover
from node.moves.registry import Registry

USAGE_PERIOD = 2.0
USAGE_TIMEOUT = 3.0
BEST = "best"
PLACED_AT_ONCE = 3
"""Moves of processes that want the best node: it is the others' turn then, so that the first arrive soon."""
BEGUN_AT_ONCE = 12
"""Those of programs that have not begun. They are small, and mostly wait for other nodes to make a place."""
TURN_WITHIN = 3.0
"""Seconds after which a process that is to be placed begins at home even if it is not its turn yet; mosrun does not wait for longer
than 5."""
MOST_WAITING = 64
"""Programs that wait for their turn, each with a connection to the daemon: more begin at home at once."""
BEGINS_WITHIN = 1.0
"""Seconds after which a program whose turn it is, and that has not begun, is not waited for."""

log = logging.getLogger("mosd.balancer")


class _Crowd:
    """Reports when nobody is inside."""

    def __init__(self) -> None:
        self.none = asyncio.Event()
        self.none.set()
        self._count = 0

    async def __aenter__(self) -> None:
        self._count += 1
        self.none.clear()

    async def __aexit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self.none.set()


async def _happens_within(seconds: float, event: asyncio.Event) -> bool:
    """Whether it happens in time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


class Balancer:
    """Keeps this node's home processes where they are best off."""

    def __init__(
        self, config: Callable[[], Config], registry: Registry, mover: Mover, peers: Peers, processors: Processors, cluster: ClusterView,
        tree: Path, programs: Path,
    ) -> None:  # fmt: skip
        """tree: where all nodes' files are; programs: where it is kept what programs have used."""
        self._config = config
        self._registry = registry
        self._mover = mover
        self._peers = peers
        self._processors = processors
        self._cluster = cluster
        self._rng = random.Random()
        self._clock = time.monotonic
        self.decisions: dict[int, Decision] = {}
        self.journal = Journal()
        self.traffic = TrafficMeter(registry, mover, lambda: str(tree) if config().mfs.is_direct else None)
        self.at_exec = AtExec(config, registry, mover, cluster, self, programs)
        self._tasks = Tasks()
        self._leaving = 0.0
        """Runnable threads of processes that are on their way from here to other nodes."""
        self._placing = asyncio.Semaphore(PLACED_AT_ONCE)
        self._begin_away = asyncio.Semaphore(BEGUN_AT_ONCE)
        self._unplaced = _Crowd()
        """programs that want the best node, of which it is not known yet that they stay"""
        self._beginning: dict[int, asyncio.Event] = {}
        """of those that have not begun"""
        self._staying: dict[int, float] = {}
        """Their runnable threads, as far as they stay."""

    def start(self) -> None:
        """Runs the loops until close()."""
        self.at_exec.start()
        self._tasks.spawn(periodically("the use of processors", self._ask_all_usage, lambda: USAGE_PERIOD, delayed=True))
        self._tasks.spawn(periodically("what processes read and write", self.traffic.poll, self.traffic.period))
        self._tasks.spawn(periodically("the balancer", self.decide, lambda: next_interval(PERIOD, self._rng), delayed=True, shared=False))

    # -- what processes use ------------------------------------------------------------------------------------------------

    async def _ask_all_usage(self) -> None:
        """Asks the nodes that our processes are on how much of their processors those have used."""
        away: dict[str, list[HomeProcess]] = {}
        for entry in self._registry:
            if entry.state == "away":
                away.setdefault(entry.where, []).append(entry)
        await asyncio.gather(*(self._ask_usage(name, entries) for name, entries in away.items()), return_exceptions=True)

    async def _ask_usage(self, name: str, entries: list[HomeProcess]) -> None:
        try:
            answer = await self._peers.call(name, "usage", {"pids": [entry.pid for entry in entries], "reads": True}, USAGE_TIMEOUT)
            reported = {int(pid): float(cpu) for pid, cpu, *_ in answer}
            reads = {int(pid): int(more[0]) for pid, _, *more in answer if more}
        except (PeerError, ValueError, TypeError) as error:
            log.debug("usage on %s: %s", name, error)
            return
        for entry in entries:
            if 0 <= (cpu := reported.get(entry.pid, -1.0)) < 1e12:
                self._registry.used(entry, cpu)
                self.traffic.has_read_there(entry, reads.get(entry.pid, 0))

    def started(self, pid: int) -> None:
        """A process of this node has begun: counts at once."""
        self._cluster.estimator.inflate(pid, hold=0.0)
        self._begun(pid)
        if (entry := self._registry.get(pid)) is not None:
            self.at_exec.begun(entry)

    def ended(self, entry: HomeProcess) -> None:
        """A process of this node has ended; one that was at home counts as gone."""
        if entry.where == HOME:
            self._cluster.estimator.end(entry.pid)
        self._begun(entry.pid)

    def _begun(self, pid: int) -> None:
        self._staying.pop(pid, None)
        if (begun := self._beginning.pop(pid, None)) is not None:
            begun.set()

    def view_ahead(self) -> View:
        """The view less the processes that are on their way out: not all are to leave what the first of them leave idle."""
        return self._cluster.view().with_own(-self._leaving)

    # -- decisions ---------------------------------------------------------------------------------------------------------

    def figures(self, entry: HomeProcess) -> Process:
        """The process as the decisions see it."""
        return self._figures(entry, self._processors.unfit(self._cluster.view()))

    def _figures(self, entry: HomeProcess, unfit: dict[str, str]) -> Process:
        """The process as the decisions see it; their clock is ours, monotonic. unfit: nodes where none of ours can go on, and why."""
        offset = self._clock() - time.time()
        stat, rates = process.read_stat(entry.pid), self.traffic.of(entry)
        resident = stat.resident if stat and entry.where == HOME else entry.resident
        return Process(
            pid=entry.pid, cpu_seconds=self._registry.cpu_seconds(entry, time.time(), stat), memory=max(entry.memory, resident),
            where=entry.where,
            arrived=entry.since + offset, moved=tuple(moment + offset for moment in entry.recent),
            runnable=entry.runnable(stat), moving=self._mover.is_moving(entry.pid),
            locked=entry.locked, home_only=entry.home_only, wanted=entry.wanted or None, not_before=entry.not_before + offset,
            unfit=unfit, files=rates.files, calls=rates.calls,
            trusted=frozenset(entry.trust) if entry.trust else None,
        )  # fmt: skip

    def place(self, entry: HomeProcess, away: bool) -> Decision:
        """The best node for a process whose user asks, now; with away, its home and where it is do not count."""
        view = self._cluster.view()
        decision = place(view, self.figures(entry), self._rng, self._cluster.settings(), away)
        self.journal.record(time.time(), decision, entry.where)
        return decision

    def decide(self) -> None:
        """Makes a decision for every home process and starts the one that is a move."""
        entries = [entry for entry in self._registry if entry.state in ("home", "leaving", "away", "hopping", "coming")]
        for entry in entries:
            if entry.wanted == BEST:
                self._registry.update(entry.pid, wanted="")
                self._tasks.spawn(self._place_best(entry))
        entries = [entry for entry in entries if entry.wanted != BEST]
        if not self._config().balance:
            # What its user wants is done even where nothing is balanced.
            entries = [entry for entry in entries if entry.wanted]
        if not entries:
            self.decisions = {}
            return
        view = self._cluster.view()
        unfit = self._processors.unfit(view)
        mine = [self._figures(entry, unfit) for entry in entries]
        made = decide(view, mine, self._clock(), self._rng, self._cluster.settings())
        self.decisions = {decision.pid: decision for decision in made}
        for decision, figures in zip(made, mine, strict=True):
            self.journal.record(time.time(), decision, figures.where)
            if decision.target is not None:
                self._tasks.spawn(self._make(decision))
            else:
                self._settle_wish(decision.pid)

    def _settle_wish(self, pid: int) -> None:
        """A wish that has come true is done with: the process is the balancer's and its user's to move again."""
        entry = self._registry.get(pid)
        if entry is not None and entry.wanted and entry.wanted == (self._config().name if entry.where == HOME else entry.where):
            self._registry.update(pid, wanted="")

    async def turn(self, entry: HomeProcess) -> None:
        """Returns when a program may begin that wants the best node: when it can be placed at once, or, if it stays, when those have left
        that are being placed. Were all of many to begin together, they would take each other, and who moves them, the processor."""
        self._registry.update(entry.pid, wanted="")
        its_turn, begun = asyncio.Event(), asyncio.Event()
        self._beginning[entry.pid] = begun
        self._tasks.spawn(self._place_new(entry, its_turn, begun))
        if len(self._beginning) <= MOST_WAITING:
            await _happens_within(TURN_WITHIN, its_turn)

    async def _place_new(self, entry: HomeProcess, its_turn: asyncio.Event, begun: asyncio.Event) -> None:
        runnable = entry.runnable()

        def view() -> View:
            """As if it had begun, and those that stay."""
            return self.view_ahead().with_own(sum(self._staying.values()) + (0.0 if begun.is_set() else runnable))

        async with self._unplaced, self._begin_away:
            if begun.is_set():  # it has waited too long
                async with self._placing:
                    await self._place(entry, view)
                return
            if await self._place(entry, view, its_turn.set):
                its_turn.set()
                return
        if begun.is_set():
            return
        self._staying[entry.pid] = runnable
        await _happens_within(TURN_WITHIN, self._unplaced.none)
        its_turn.set()
        await _happens_within(BEGINS_WITHIN, begun)
        self._staying.pop(entry.pid, None)

    async def _place_best(self, entry: HomeProcess) -> None:
        async with self._placing:
            await self._place(entry, self.view_ahead)

    async def _place(self, entry: HomeProcess, view: Callable[[], View], begins: Callable[[], None] | None = None) -> bool:
        """Asks one node after the other until one takes it; false: it is to stay. begins: it has not begun, see move.Manner."""
        now = self._registry.get(entry.pid)
        if now is None or now.where != entry.where:
            return True
        figures = self.figures(now)
        for decision in placings(view, figures, self._rng, self._cluster.settings()):
            self.journal.record(time.time(), decision, now.where)
            if decision.target is None:
                return False
            if self._mover.is_moving(now.pid) or not await self.act(decision, begins):
                return True
        return False

    async def _make(self, decision: Decision) -> None:
        await self.act(decision)

    async def act(self, decision: Decision, begins: Callable[[], None] | None = None) -> bool:
        """Makes a move that was decided; returns whether another target might take the process where this one has not. begins: see
        move.Manner."""
        assert decision.target is not None
        log.info("process %d to %s: %s", decision.pid, decision.target, decision.reason)
        entry, leaving, runnable = self._registry.get(decision.pid), 0.0, 0.0
        if entry is not None:
            runnable = entry.runnable()
            self._cluster.gossip.known.sent(decision.target, runnable)

        def starts() -> None:
            """From now on it counts here, and is about to leave."""
            nonlocal leaving
            leaving = runnable if entry is not None and entry.where == HOME else 0.0
            self._leaving += leaving
            if begins is not None:
                begins()

        if begins is None:
            starts()
        try:
            await self._mover.move(decision.pid, decision.target, "balance", decision.slowdown, Manner(begins=begins and starts))
        except MoveRefused as error:  # logged and kept by the mover
            self.journal.concluded(decision.pid, decision.target, str(error))
            self._cluster.gossip.known.not_taken(decision.target, runnable)
            return isinstance(error, MoveFailed) and error.no_place
        finally:
            self._leaving -= leaving
        self.journal.concluded(decision.pid, decision.target, "made")
        self._settle_wish(decision.pid)
        return False

    def close(self) -> None:
        """Stops the loops."""
        self.at_exec.close()
        self._tasks.cancel()
