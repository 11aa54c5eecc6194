"""mosd: puts the parts of a node together, begins and ends them, and passes events between them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from typing import Any

from engine.leaving.processor import own_processor, why_too_old
from kernel_helpers.common.errors import FarhomeError
from node.balancing.balancing import Balancer
from node.balancing.beginning import Beginnings
from node.balancing.cluster_view import ClusterView
from node.cluster import incarnation
from node.cluster.clustering import SIGNED_PERIOD, Clustering
from node.cluster.contacts import PERIOD as CONTACTS_PERIOD
from node.cluster.contacts import Contacts
from node.cluster.file_tree import PERIOD as FILES_PERIOD
from node.cluster.file_tree import FileTree
from node.cluster.front.connections import PeerError
from node.cluster.front.front import Front
from node.cluster.front.peer_server import Caller
from node.cluster.keys.certificates import Certificates
from node.cluster.keys.pki import KeyStore
from node.cluster.peers import Peers
from node.cluster.processors import Processors
from node.cluster.spreading import PERIOD as SPREADING_PERIOD
from node.common import config as configuration
from node.common import sampling
from node.common.config import Config, ConfigError, InForce
from node.common.names import format_endpoint
from node.common.paths import Paths
from node.common.periodic import periodically
from node.common.tasks import Tasks
from node.guests.guest import Guest, Surroundings
from node.guests.guests import Guests
from node.guests.orphans import Orphans
from node.moves import lineage
from node.moves.checkpoints import PERIOD as CHECKPOINT_PERIOD
from node.moves.checkpoints import Checkpoints
from node.moves.home_process import HOME, HomeProcess
from node.moves.moves import Mover
from node.moves.parting import part_from
from node.moves.registry import Registry
from node.owner.accounts import PERIOD as ACCOUNTS_PERIOD
from node.owner.accounts import Accounts
from node.owner.ledger import Ledger
from node.owner.lending import Lending
from node.programs import programs as starting
from node.programs.programs import Programs
from node.requests.commands import Commands
from node.requests.control import ControlServer
from node.requests.parts import Parts
from node.requests.peer_requests import PeerRequests

ADOPT_PERIOD = 0.5
GUEST_PERIOD = 1.0
ORPHANS_PERIOD = 2.0
CHECKPOINT_TIMEOUT = 120.0
"""Seconds within which a home has taken a process back that could not go in time, and has made a checkpoint of it."""
AFTER_START = 0.2

log = logging.getLogger("mosd")


def notify_systemd(state: str) -> None:
    """Report the state to systemd (or another supervisor that has set NOTIFY_SOCKET); see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        log.warning("cannot notify %s: %s", address, error)


class Daemon:
    """One node's mosd: `parts` is what it consists of."""

    def __init__(self, paths: Paths, config: Config, programs: Programs | None = None) -> None:
        programs = programs or Programs()
        self.paths = paths
        self._programs = programs
        self._stopping = asyncio.Event()
        self.parts = self._made_of(InForce(config), programs)
        self._peer_requests = PeerRequests(self.parts)
        self._control = ControlServer(paths.socket, Commands(self.parts).handle)

    def _made_of(self, in_force: InForce, programs: Programs) -> Parts:
        """The parts, each given what it needs of those before it; events for a later one go by way of this daemon."""
        paths, keys, tasks = self.paths, KeyStore(self.paths.pki), Tasks()
        certificates, this_incarnation = Certificates(keys), incarnation.begin(paths.incarnation)
        registry = Registry(paths.registry, self._process_ended, lineage.listen())
        processors = Processors(own_processor().restricted(in_force.config.cpu_flags), time.monotonic, self._get_acquainted)
        front = Front(keys, lambda: incarnation.begin(paths.incarnation), self._answer_peer, self._let_in)
        peers = Peers(keys, front, self._hello, self._address_of, processors.judge)
        mover = Mover(paths, lambda: in_force.config, registry, peers, programs, self._process_moved)
        guests = Guests(
            paths, lambda: in_force.config, lambda: in_force.policy, programs, self._surroundings, self._guest_accepted, self._recheck,
            lambda: keys.cluster() if keys.exists() else "", self._guest_left,
        )  # fmt: skip
        ledger = Ledger(paths.ledger)
        lending = Lending(paths, lambda: in_force.policy, guests, self._own_programs, self._checkpoint_at_home, self._speak)
        speed = in_force.config.speed if in_force.config.speed is not None else sampling.calibrate_speed()
        cluster = ClusterView(
            lambda: in_force.config, mover, guests, peers, lending, processors, self._own_programs, speed, this_incarnation, certificates
        )
        balancer = Balancer(lambda: in_force.config, registry, mover, peers, processors, cluster, paths.mfs, paths.programs)
        return Parts(
            started=time.time(), in_force=in_force, reload=self.reload, tasks=tasks, keys=keys, front=front, peers=peers,
            cluster=cluster, contacts=Contacts(paths, in_force, front, peers, cluster.gossip, cluster.greet),
            clustering=Clustering(
                paths, in_force, keys, certificates, front, peers, cluster.gossiping, this_incarnation, self._part_from
            ),
            processors=processors, files=FileTree(paths, lambda: in_force.config, keys, peers, cluster.gossip.known.peers),
            registry=registry, mover=mover, checkpoints=Checkpoints(paths, registry, mover, tasks.spawn), balancer=balancer,
            beginnings=Beginnings(registry, mover, balancer.journal, tasks.spawn),
            guests=guests, orphans=Orphans(guests, peers.call), lending=lending, ledger=ledger, accounts=Accounts(ledger, guests, registry),
        )  # fmt: skip

    # -- life ------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Errors: FarhomeError, OSError at the start."""
        loop, node = asyncio.get_running_loop(), self.parts
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: node.tasks.spawn(self._reload_by_signal()))
        too_old = why_too_old(own_processor())
        if too_old is not None:
            raise FarhomeError(too_old)
        self._check_alone()
        self.paths.make_run_directories()
        try:
            if node.keys.exists():
                node.front.start()  # it takes a moment, in which there is enough to do
            for entry in node.registry.load():
                node.mover.ended(entry)
            await node.mover.restore()
            await node.guests.restore()
            starting.hosts.alone = node.config.own_programs
            node.contacts.recall()
            await node.clustering.fetch_removals(node.contacts.seeds() | set(node.cluster.gossip.known.peers().values()))
            await node.clustering.begin()
            node.lending.start()
            node.cluster.start()
            node.balancer.start()
            self._do_again_and_again()
            await self._control.start()
            log.info("node %s is ready at %s", node.name, format_endpoint(node.config.address, node.config.port))
            notify_systemd(f"READY=1\nMAINPID={os.getpid()}")
            node.tasks.spawn(self._make_moves_quicker())
            await self._stopping.wait()
            notify_systemd("STOPPING=1")
        finally:
            await self._close()

    def _do_again_and_again(self) -> None:
        node, spawn = self.parts, self.parts.tasks.spawn
        renewal = node.clustering.renewal
        spawn(periodically("the search for children", node.registry.adopt_children, lambda: ADOPT_PERIOD))
        spawn(periodically("the search for nodes", self._look_for_nodes, lambda: CONTACTS_PERIOD))
        spawn(periodically("the memory of guests", self._keep_to_lent_memory, lambda: GUEST_PERIOD, delayed=True))
        spawn(periodically("guests that wait for their homes", node.orphans.poll, lambda: ORPHANS_PERIOD, delayed=True))
        spawn(periodically("the ledger", node.accounts.poll, lambda: ACCOUNTS_PERIOD, delayed=True))
        spawn(periodically("the checkpoints", node.checkpoints.poll, lambda: CHECKPOINT_PERIOD, delayed=True))
        spawn(periodically("those who were removed", node.clustering.spreading.poll, lambda: SPREADING_PERIOD))
        spawn(periodically("the certificate", renewal.poll, renewal.period, delayed=True))
        spawn(periodically("what was signed", node.clustering.report_signed, lambda: SIGNED_PERIOD, delayed=True))
        spawn(periodically("the file tree", node.files.poll, lambda: FILES_PERIOD))

    async def _make_moves_quicker(self) -> None:
        """What moves would otherwise begin with; not before the node has said that it is there."""
        await asyncio.sleep(AFTER_START)
        if self._programs != Programs():  # what it can fork
            return
        try:
            starting.zygote.start(starting.environment())
            await starting.rehearse(self.paths.images / "rehearsal")
        except OSError as error:
            log.warning("moves begin slowly: %s", error)

    def _check_alone(self) -> None:
        """Errors: FarhomeError if another daemon has our socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.paths.socket))
            except OSError:
                return
        raise FarhomeError(f"a mosd is already running here ({self.paths.socket} answers)")

    async def _close(self) -> None:
        node = self.parts
        node.tasks.cancel()
        await self._control.close()
        node.clustering.spreading.close()
        await node.cluster.gossiping.leave()
        await node.front.settle()
        await node.files.close()
        node.balancer.close()
        node.cluster.close()
        node.lending.close()
        node.peers.close()
        node.front.close()
        node.mover.close()
        node.guests.close()
        starting.hosts.close()
        starting.zygote.close()
        node.accounts.poll()
        node.ledger.close()
        if not node.guests.all():
            node.guests.groups.remove_all()
        node.registry.close()

    # -- events between parts ------------------------------------------------------------------------------------------------

    async def _look_for_nodes(self) -> None:
        self.parts.front.check_alive()
        await self.parts.contacts.poll(self.parts.clustering.listens)

    async def _keep_to_lent_memory(self) -> None:
        """Keeps guests within the memory that the owner lends: the greatest goes home."""
        if (found := self.parts.guests.in_excess()) is not None:
            key, kind = found
            those = f"the guests of class {kind}" if kind else "the guests"
            why = f"{those} on {self.parts.name} use more memory than it lends"
            log.info("guest %s goes home: %s", key, why)
            await self.parts.guests.expel(key, why)

    def _own_programs(self) -> list[int]:
        """Pids of deputies and remotes, and of the programs that they share."""
        front = [self.parts.front.pid] if self.parts.front.pid else []
        return [*self.parts.mover.deputies.pids(), *self.parts.guests.remotes(), *self.parts.files.pids(), *front]

    def _surroundings(self) -> Surroundings:
        return self.parts.lending.surroundings(
            (self.parts.cluster.memory_free, self.parts.cluster.memory_total), self.parts.cluster.estimator.load
        )

    async def _checkpoint_at_home(self, key: str, reason: str) -> None:
        """A guest has not gone in time: its home is to take it, whole, and to make a checkpoint of it."""
        guest = next((guest for guest in self.parts.guests.all() if guest.key == key), None)
        if guest is None:
            return
        try:
            await self.parts.peers.call(guest.home, "expel", {"pid": guest.pid, "reason": reason, "checkpoint": True}, CHECKPOINT_TIMEOUT)
        except PeerError as error:
            log.warning("guest %s is not taken home: %s", key, error)

    def _guest_accepted(self, guest: Guest) -> None:
        self.parts.cluster.guest_accepted(guest)

    def _guest_left(self, guest: Guest) -> None:
        self.parts.accounts.left(guest)
        self.parts.cluster.guest_left(guest)

    def _recheck(self, slowdown: float, guest: Guest, coming: int) -> str | None:
        return self.parts.cluster.recheck(slowdown, guest.runnable, guest.memory, coming)

    def _process_moved(self, pid: int, before: str, after: str, runnable: float) -> None:
        self.parts.cluster.process_moved(pid, before, after, runnable)

    def _process_ended(self, entry: HomeProcess) -> None:
        if entry.where != HOME:
            log.info("process %d ended while it was on %s", entry.pid, entry.where)
        self.parts.mover.ended(entry)
        self.parts.accounts.ended(entry)
        self.parts.balancer.ended(entry)

    def _hello(self) -> dict[str, Any]:
        return self._peer_requests.hello()

    async def _answer_peer(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        return await self._peer_requests.answer(caller, method, parameters)

    async def _let_in(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        return await self.parts.clustering.join(caller, parameters)

    def _get_acquainted(self, name: str) -> None:
        self.parts.tasks.spawn(self._say_hello(name))

    async def _say_hello(self, name: str) -> None:
        try:
            await self.parts.peers.connection(name)
        except PeerError as error:
            log.debug("%s is not asked about its processor: %s", name, error)

    def _speak(self) -> None:
        self.parts.cluster.send_gossip()

    def _address_of(self, name: str) -> tuple[str, int] | None:
        return self.parts.cluster.gossip.membership.address_of(name)

    def _part_from(self, names: list[str]) -> None:
        """Ends what this node has with others, which were taken out of the cluster."""
        node = self.parts
        for name in names:
            node.files.forget(name)
            node.tasks.spawn(part_from(name, node.guests, node.registry, node.mover))
        node.tasks.spawn(node.files.poll())

    # -- configuration ---------------------------------------------------------------------------------------------------

    async def reload(self) -> None:
        """Reads the configuration anew; what cannot be changed live is refused. Errors: ConfigError, the old one stays."""
        node = self.parts
        new = configuration.load(self.paths.config)
        for key in ("name", "address", "port", "cpu_flags"):
            if getattr(new, key) != getattr(node.config, key):
                raise ConfigError(f"{self.paths.config}: {key} changes only when mosd is restarted")
        node.in_force.replace(new)
        starting.hosts.alone = new.own_programs
        node.lending.apply_policy()
        node.cluster.policy_changed()
        await node.clustering.begin()
        node.tasks.spawn(node.files.poll())
        if not node.policy.enabled:
            node.tasks.spawn(node.guests.expel(None, "the node does not lend any more"))
        for key, reason in node.guests.denied().items():
            node.tasks.spawn(node.guests.expel(key, reason))
        log.info("configuration reloaded")

    async def _reload_by_signal(self) -> None:
        try:
            await self.reload()
        except FarhomeError as error:
            log.error("%s", error)
