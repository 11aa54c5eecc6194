"""What this node knows of its cluster, itself included: it measures itself, informs others by gossip, and hears them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from balancer.decisions.admission import recheck
from balancer.decisions.process import Settings
from balancer.gossip.gossip import Gossip
from balancer.lending.owner import Stage
from balancer.load.load import LoadEstimator
from balancer.load.view import View
from node.cluster.front.connections import PROTOCOL_VERSION
from node.cluster.gossiping import Gossiping
from node.cluster.keys.certificates import Certificates
from node.cluster.peers import Peers
from node.cluster.processors import Processors
from node.common import sampling
from node.common.config import Config
from node.common.periodic import periodically
from node.common.tasks import Tasks
from node.guests.guest import Guest
from node.guests.guests import Guests
from node.moves.home_process import HOME
from node.moves.moves import Mover
from node.owner.lending import Lending
from node.owner.pressure import Waits

REPORTED_WITHIN, SENDS_WITHIN = 0.2, 0.5
"""Seconds after which the load of this node is passed to gossip, if something is to be sent, and if nothing is."""
LENDS_PERIOD = 0.5
"""Seconds between two checks whether the node lends, if nothing has happened."""
PRESSURE_PERIOD = 1.0


class ClusterView:
    """Keeps this node's load vector, and its view of the others."""

    def __init__(
        self, config: Callable[[], Config], mover: Mover, guests: Guests, peers: Peers, lending: Lending, processors: Processors,
        own: Callable[[], Iterable[int]], speed: float, incarnation: int, certificates: Certificates,
    ) -> None:  # fmt: skip
        """mover: has learned what moves cost; own: pids of farhome's own programs besides the daemon; incarnation: of
        this daemon's gossip."""
        self._config = config
        self._mover = mover
        self._guests = guests
        self._lending = lending
        self._processors = processors
        self._waits = Waits()
        self._clock = time.monotonic
        self.gossip = Gossip(config().name, self._clock, random.Random(), signatures=certificates)
        self.gossiping = Gossiping(self.gossip, peers, self._speak_again)
        self.estimator = LoadEstimator(sampling.cores(), speed, self._clock)
        self._incarnation = incarnation
        self._threads = sampling.RunnableThreads(own)
        self.memory_free, self.memory_total = sampling.memory()
        self._tasks = Tasks()
        self._lent_in: tuple[int, bool, Stage] | None = None
        self._lent_at, self._is_lent = 0.0, False
        self._reported_at = float("-inf")

    def start(self) -> None:
        """Measure and report until close(). Errors: OSError."""
        self._threads.start()
        self._feel()
        self._update_gossip()
        self._tasks.spawn(periodically("the load", self.send_gossip, lambda: SENDS_WITHIN))
        self._tasks.spawn(periodically("pressure", self._feel, lambda: PRESSURE_PERIOD))

    def _take_samples(self) -> None:
        """What has been counted since the last time."""
        guests = sum(guest.runnable for guest in self._guests.all())
        for at, runnable in self._threads.take():
            self.estimator.sample(runnable, self.memory_free, self.memory_total, guests, at)

    def _feel(self) -> None:
        self.memory_free, self.memory_total = sampling.memory()
        self.estimator.feel(self._waits.poll())

    def _update_gossip(self) -> None:
        self._take_samples()
        config, self._reported_at = self._config(), self._clock()
        self.gossiping.update_self(
            self.estimator.vector(
                name=config.name, incarnation=self._incarnation, address=config.address, port=config.port,
                guests=len(self._guests.all()), lending=self._lends(), blocked=self._guests.blocked,
                version=PROTOCOL_VERSION, stage=self._lending.state.stage, owner_idle=self._lending.sight.idle,
                processor=self._processors.own.digest,
            )
        )  # fmt: skip

    def _lends(self) -> bool:
        """Whether the node would take a guest. What takes long to find out is found out again when guests or the owner's state have
        changed, and now and then; a node that sends one gets it exactly."""
        now, state = self._clock(), (len(self._guests.all()), self._guests.blocked, self._lending.state.stage)
        if state != self._lent_in or now - self._lent_at >= LENDS_PERIOD:
            self._lent_in, self._lent_at, self._is_lent = state, now, self._guests.lends() is None
        return self._is_lent

    def policy_changed(self) -> None:
        """The owner's policy is another one."""
        self._lent_in = None

    def send_gossip(self) -> None:
        """Pass this node's load to gossip, and send what is due."""
        if not self._tasks:
            return  # nothing has been seen of this node yet
        self._update_gossip()
        self.gossiping.tick()

    def _speak_again(self) -> None:
        """Sends what is due."""
        if self._clock() - self._reported_at > REPORTED_WITHIN:
            self._update_gossip()
        self.gossiping.tick()

    def greet(self, name: str) -> None:
        """Send a node that has just come into touch everything at once: it need not wait for its turn in the gossip."""
        self._update_gossip()
        self.gossiping.send(self.gossip.introduce(name))

    def correct(self, name: str) -> None:
        """Send the load to a node that has expected a lower one."""
        self._update_gossip()
        self.gossiping.send(self.gossip.greet(name))

    def guest_accepted(self, guest: Guest) -> None:
        """Counts at once, in full until it can have come."""
        self.estimator.inflate(guest.key, guest.runnable, self._mover.cost.takes(guest.memory))
        self._update_gossip()

    def guest_left(self, guest: Guest) -> None:
        """A guest has gone, or has not come: counts at once."""
        self.estimator.relieve(guest.key, guest.runnable)
        self._update_gossip()

    def process_moved(self, pid: int, before: str, after: str, runnable: float) -> None:
        """A process of this node has moved, on anyone's request; a hop changes nothing here."""
        if before == HOME != after:
            self.estimator.relieve(pid, runnable)
        elif before != HOME == after:
            self.estimator.inflate(pid, runnable, hold=0.0)  # it runs already

    def recheck(self, slowdown: float, runnable: float, memory: int, coming: int) -> str | None:
        """Why a guest that somebody's balancer sends would be no better off here, by what this node knows of itself now; coming: bytes
        of guests that are on their way."""
        own = self.view().own
        return None if own is None else recheck(own, slowdown, runnable, memory, coming, self.settings())

    def view(self) -> View:
        """What this node knows of all, itself as of now."""
        self._update_gossip()
        return self.gossip.known.view()

    def settings(self) -> Settings:
        """The rules' figures, with the cost of moves as learned here."""
        return replace(Settings(), cost=self._mover.cost)

    def close(self) -> None:
        """Stop measuring and reporting."""
        self._tasks.cancel()
        self._threads.stop()
        self.gossiping.close()
