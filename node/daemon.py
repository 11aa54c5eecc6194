"""mosd: puts the parts of a node together and answers commands and peers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from typing import Any

from balancer.policy import LendingPolicy
from engine.processor import own_processor
from kernel_helpers.errors import FarhomeError
from node.balancing.balancing import Balancer
from node.balancing.beginning import Beginnings
from node.cluster import incarnation as life
from node.cluster.clustering import SIGNED_PERIOD, Clustering
from node.cluster.file_tree import PERIOD as FILES_PERIOD
from node.cluster.file_tree import FileTree
from node.cluster.front.connections import PROTOCOL_VERSION, PeerError, PeerRefused
from node.cluster.front.front import Front
from node.cluster.front.lobby import source_of
from node.cluster.front.peer_server import Caller
from node.cluster.keys.certificates import Certificates
from node.cluster.keys.pki import KeyStore
from node.cluster.peers import Peers
from node.cluster.processors import Processors
from node.cluster.spreading import PERIOD as SPREADING_PERIOD
from node.common import config as configuration
from node.common import sampling
from node.common.config import Config, ConfigError
from node.common.names import format_endpoint, parse_endpoint
from node.common.paths import Paths, write_atomically
from node.common.periodic import periodically
from node.guests.guest import Guest, Surroundings
from node.guests.guests import Guests
from node.moves import lineage
from node.moves.checkpoints import PERIOD as CHECKPOINT_PERIOD
from node.moves.checkpoints import Checkpoints
from node.moves.moves import Mover
from node.moves.registry import HOME, HomeProcess, Registry
from node.owner.accounts import PERIOD as ACCOUNTS_PERIOD
from node.owner.accounts import Accounts
from node.owner.ledger import Ledger
from node.owner.lending import Lending
from node.programs import programs as starting
from node.programs.programs import Programs
from node.requests.commands import Commands
from node.requests.control import ControlServer
from node.requests.watching import Watching

ADOPT_PERIOD = 0.5
SEED_PERIOD = 2.0
GUEST_PERIOD = 1.0
END_PATIENCE = 0.5
CHECKPOINT_TIMEOUT = 120.0
"""Seconds within which a home has taken a process back that could not go in time, and has made a checkpoint of it."""
AFTER_START = 0.2
FRONT_PATIENCE = 10.0
"""Seconds within which the front is there, even where there is too much to do."""

log = logging.getLogger("mosd")


def notify_systemd(state: str) -> None:
    """Tells systemd (or whoever set NOTIFY_SOCKET) how it is; see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        log.warning("cannot notify %s: %s", address, error)


class Daemon:
    """One node's mosd."""

    def __init__(self, paths: Paths, config: Config, programs: Programs | None = None) -> None:
        programs = programs or Programs()
        self._programs = programs
        self.paths = paths
        self.config = config
        self.policy: LendingPolicy = configuration.lending_policy(config)
        self.keys = KeyStore(paths.pki)
        self.certificates = Certificates(self.keys)
        self.started = time.time()
        self.stopping = asyncio.Event()
        self.registry = Registry(paths.registry, self._process_ended, lineage.listen())
        self.processors = Processors(own_processor().restricted(config.cpu_flags), time.monotonic, self._get_acquainted)
        self.front = Front(self.keys, lambda: life.begin(paths.life), self._on_peer, self._on_join)
        self.peers = Peers(self.keys, self.front, self._hello, self._peer_address, self.processors.judge)
        self._listens = False
        self._remembered: dict[str, tuple[str, int]] = {}
        self.mover = Mover(paths, lambda: self.config, self.registry, self.peers, programs, self._process_moved)
        self.checkpoints = Checkpoints(paths, self.registry, self.mover, self.spawn)
        self.guests = Guests(
            paths, lambda: self.config, lambda: self.policy, programs, self._surroundings, self._guest_accepted, self._recheck,
            lambda: self.keys.cluster() if self.keys.exists() else "", self._guest_left,
        )  # fmt: skip
        self.ledger = Ledger(paths.ledger)
        self.accounts = Accounts(self.ledger, self.guests, self.registry)
        self.lending = Lending(paths, lambda: self.policy, self.guests, self._own_programs, self._checkpoint_at_home, self._speak)
        speed = config.speed if config.speed is not None else sampling.calibrate_speed()
        self.life = life.begin(paths.life)
        self.balancer = Balancer(
            lambda: self.config, self.registry, self.mover, self.guests, self.peers, self.lending, self.processors, self._own_programs,
            speed, self.life, paths.mfs, certificates=self.certificates,
        )  # fmt: skip
        self.beginnings = Beginnings(self.registry, self.mover, self.balancer.journal, self.spawn)
        self.files = FileTree(paths, lambda: self.config, self.keys, self.peers, self.balancer.gossip.peers)
        self.clustering = Clustering(self, self.certificates)
        self.control = ControlServer(paths.socket, Commands(self).handle)
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialled: set[tuple[str, int]] = set()
        """seeds whose names are known"""

    # -- life ------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Errors: FarhomeError, OSError at the start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.spawn(self._reload_by_signal()))
        self._check_alone()
        self.paths.make_run_directories()
        try:
            if self.keys.exists():
                self.front.start()  # it takes a moment, in which there is enough to do
            self.registry.load()
            await self.mover.deputies.restore()
            await self.guests.restore()
            starting.hosts.alone = self.config.own_programs
            self._recall_peers()
            await self._hear_who_was_removed()
            await self.begin_peers()
            self.lending.start()
            self.balancer.start()
            self.spawn(periodically("the search for children", self.registry.adopt_children, lambda: ADOPT_PERIOD))
            self.spawn(periodically("the search for nodes", self._dial_seeds, lambda: SEED_PERIOD))
            self.spawn(periodically("the memory of guests", self._keep_to_lent_memory, lambda: GUEST_PERIOD, delayed=True))
            self.spawn(periodically("the ledger", self.accounts.look, lambda: ACCOUNTS_PERIOD, delayed=True))
            self.spawn(periodically("the checkpoints", self.checkpoints.look, lambda: CHECKPOINT_PERIOD, delayed=True))
            self.spawn(periodically("those who were removed", self.clustering.spreading.look, lambda: SPREADING_PERIOD))
            self.spawn(periodically("the certificate", self.clustering.renewal.look, self.clustering.renewal.period, delayed=True))
            self.spawn(periodically("what was signed", self.clustering.tell_signed, lambda: SIGNED_PERIOD, delayed=True))
            self.spawn(periodically("the file tree", self.files.look, lambda: FILES_PERIOD))
            await self.control.start()
            log.info("node %s is ready at %s", self.config.name, format_endpoint(self.config.address, self.config.port))
            notify_systemd(f"READY=1\nMAINPID={os.getpid()}")
            self.spawn(self._make_moves_quicker())
            await self.stopping.wait()
            notify_systemd("STOPPING=1")
        finally:
            await self._close()

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
        for task in self._tasks:
            task.cancel()
        await self.control.close()
        self.clustering.spreading.close()
        await self.balancer.gossiping.leave()
        await self.front.settle()
        await self.files.close()
        self.balancer.close()
        self.lending.close()
        self.peers.close()
        self.front.close()
        self.mover.deputies.close()
        self.guests.close()
        starting.hosts.close()
        starting.zygote.close()
        self.accounts.look()
        self.ledger.close()
        if not self.guests.all():
            self.guests.groups.remove_all()
        self.registry.close()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _hear_who_was_removed(self) -> None:
        """Before anybody is believed: who was taken out of the cluster while this node was off."""
        if self.keys.exists():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FRONT_PATIENCE):
                    await self.front.wait_until_ready()  # or others would seem to be silent
            self.clustering.spreading.read()
            known = {endpoint for name, endpoint in self.balancer.gossip.peers().items()}
            await self.clustering.spreading.ask_first(self._seeds() | known)

    async def begin_peers(self) -> None:
        """Listens for peers once this node is in a cluster. Errors: FarhomeError."""
        if not self.keys.exists():
            log.info("this node is in no cluster yet (mosctl cluster init, or join)")
            return
        if self.keys.name() != self.config.name:
            raise ConfigError(f"{self.paths.config}: name is {self.config.name}, but the node joined its cluster as {self.keys.name()}")
        self.front.start()
        if self.certificates.reload():
            self.balancer.gossip.sign_anew()
        self.clustering.spreading.read()
        try:
            await self.balancer.gossiping.open(self.front, self.life, self.config.address, self.config.port)
            await self.front.listen(self.config.address, self.config.port)
        except OSError as error:
            where = format_endpoint(self.config.address, self.config.port)
            raise ConfigError(f"{self.paths.config}: cannot listen at {where}: {error.strerror}") from None
        self._listens = True

    async def _keep_to_lent_memory(self) -> None:
        """Keeps guests within the memory that the owner lends: the greatest goes home."""
        if (found := self.guests.in_excess()) is not None:
            key, kind = found
            those = f"the guests of class {kind}" if kind else "the guests"
            why = f"{those} on {self.config.name} use more memory than it lends"
            log.info("guest %s goes home: %s", key, why)
            await self.guests.expel(key, why)

    async def _dial_seeds(self) -> None:
        """Dials seeds until their names are known; gossip keeps what it brings."""
        self.front.look()
        if self._listens:
            if not self.peers.connected():
                self._dialled.clear()  # alone again: seeds are where to look for the others
            for endpoint in self._seeds() - self._dialled:
                try:
                    await self.peers_dial(endpoint)
                    self._dialled.add(endpoint)
                except PeerError as error:
                    log.debug("seed %s: %s", format_endpoint(*endpoint), error)
        self._remember_peers()

    async def peers_dial(self, endpoint: tuple[str, int]) -> None:
        """Gets to know the node at that address. Errors: PeerError."""
        connection = await self.peers.dial(*endpoint)
        host, port = connection.hello.get("address", endpoint[0]), connection.hello.get("port", endpoint[1])
        if isinstance(host, str) and isinstance(port, int):
            self._met(connection.name, host, port)

    def _met(self, name: str, host: str, port: int) -> None:
        self.balancer.gossip.learn(name, host, port)
        self._remember_peers()
        self.balancer.greet(name)

    def _recall_peers(self) -> None:
        """Learns the addresses that a daemon before this one knew: no node is unknown just because we are new."""
        try:
            known = json.loads(self.paths.peers.read_bytes())
            for name, (host, port) in known.items():
                self.balancer.gossip.learn(str(name), str(host), int(port))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s is ignored: %s", self.paths.peers, error)

    def _remember_peers(self) -> None:
        peers = self.balancer.gossip.peers()
        if peers != self._remembered:
            self.front.know({source_of(host) for host, _ in peers.values()})
            try:
                write_atomically(self.paths.peers, json.dumps(peers).encode())
                self._remembered = peers
            except OSError as error:
                log.debug("%s: %s", self.paths.peers, error)

    def _seeds(self) -> set[tuple[str, int]]:
        seeds = set(self.config.peers)
        try:
            seeds |= {parse_endpoint(line) for line in self.paths.seeds.read_text(encoding="ascii").split()}
        except (OSError, ValueError):
            pass
        return seeds - {(self.config.address, self.config.port)}

    def _own_programs(self) -> list[int]:
        """Pids of deputies and remotes, and of the programs that they share."""
        front = [self.front.pid] if self.front.pid else []
        return [*self.mover.deputies.pids(), *self.guests.remotes(), *self.files.pids(), *front]

    def _surroundings(self) -> Surroundings:
        return self.lending.surroundings((self.balancer.memory_free, self.balancer.memory_total), self.balancer.estimator.load)

    async def _checkpoint_at_home(self, key: str, reason: str) -> None:
        """A guest has not gone in time: its home is to take it, whole, and to make a checkpoint of it."""
        guest = next((guest for guest in self.guests.all() if guest.key == key), None)
        if guest is None:
            return
        try:
            await self.peers.call(guest.home, "expel", {"pid": guest.pid, "reason": reason, "checkpoint": True}, CHECKPOINT_TIMEOUT)
        except PeerError as error:
            log.warning("guest %s is not taken home: %s", key, error)

    def _guest_accepted(self, guest: Guest) -> None:
        self.balancer.guest_accepted(guest)

    def _guest_left(self, guest: Guest) -> None:
        self.accounts.left(guest)
        self.balancer.guest_left(guest)

    def _recheck(self, slowdown: float, guest: Guest, coming: int) -> str | None:
        return self.balancer.recheck(slowdown, guest.runnable, guest.memory, coming)

    def _process_moved(self, pid: int, before: str, after: str, runnable: float) -> None:
        self.balancer.process_moved(pid, before, after, runnable)

    def _process_ended(self, entry: HomeProcess) -> None:
        self.mover.ended(entry.pid)
        self.accounts.ended(entry)
        self.balancer.ended(entry)
        if entry.where != HOME:
            log.info("process %d ended while it was on %s", entry.pid, entry.where)
            self.spawn(self._end_guest(entry))

    async def _end_guest(self, entry: HomeProcess) -> None:
        """The deputy tells the guest's side of its process's end; if that was lost with the deputy or the connection, a guest
        would wait for its home until link_timeout."""
        await asyncio.sleep(END_PATIENCE)
        if self.registry.get(entry.pid) is not None:
            return  # another process has its pid already
        try:
            await self.peers.call(entry.where, "cancel", {"key": f"{self.config.name}-{entry.pid}", "ended": True}, 3.0)
        except PeerError as error:
            log.debug("the end of process %d is not told to %s: %s", entry.pid, entry.where, error)

    # -- peers -------------------------------------------------------------------------------------------------------------

    def _hello(self) -> dict[str, Any]:
        return {
            "version": PROTOCOL_VERSION, "name": self.config.name, "address": self.config.address, "port": self.config.port,
            "processor": self.processors.own.to_wire(), "mfs_port": self.files.port(), "authority": self.keys.is_authority(),
        }  # fmt: skip

    def _get_acquainted(self, name: str) -> None:
        self.spawn(self._say_hello(name))

    async def _say_hello(self, name: str) -> None:
        try:
            await self.peers.connection(name)
        except PeerError as error:
            log.debug("%s is not asked about its processor: %s", name, error)

    def _speak(self) -> None:
        self.balancer.speak()

    def _peer_address(self, name: str) -> tuple[str, int] | None:
        return self.balancer.gossip.membership.address_of(name)

    async def _on_join(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        return await self.clustering.join(caller, parameters)

    async def _on_peer(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        if method == "hello":
            address, port = parameters.get("address"), parameters.get("port")
            if isinstance(address, str) and isinstance(port, int) and 0 < port < 65536:
                self._met(caller.name, address, port)
                self.files.learn(caller.name, address, parameters.get("mfs_port", 0))
            return self._hello()
        if method == "gossip":
            return self.balancer.gossiping.hear(caller.name, parameters.get("payload"))
        if method == "reserve":
            return await self._reserve(caller, parameters)
        if method == "usage":
            return await self.guests.usage(caller, parameters.get("pids"), parameters.get("reads") is True)
        if method == "cancel":
            await self.guests.cancel(caller, str(parameters.get("key")), parameters.get("ended") is True)
            return True
        if method == "expel":
            return await self._expelled(caller, parameters)
        if method == "processes":
            return await Watching(self).for_peer(parameters)
        if method == "ping":
            return True
        try:
            return await self.clustering.answer(caller, method, parameters)
        except LookupError:
            raise PeerRefused("method", f"unknown method {method[:40]!r}") from None

    async def _reserve(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self.guests.reserve(caller, parameters)
        except PeerRefused:
            self.balancer.correct(caller.name)
            raise

    async def _expelled(self, caller: Caller, parameters: dict[str, Any]) -> bool:
        """A node sends one of our processes home."""
        pid, reason = parameters.get("pid"), str(parameters.get("reason", ""))[:200]
        entry = self.registry.get(pid) if isinstance(pid, int) else None
        if entry is None or entry.where != caller.name:
            return False
        if parameters.get("checkpoint") is True:
            return await self.checkpoints.take_home(entry, reason)
        await self.mover.move(entry.pid, HOME, reason)
        self.registry.update(entry.pid, why=reason)
        return True

    # -- configuration ---------------------------------------------------------------------------------------------------

    async def reload(self) -> None:
        """Reads the configuration anew; what cannot be changed live is refused. Errors: ConfigError, the old one stays."""
        new = configuration.load(self.paths.config)
        for key in ("name", "address", "port", "cpu_flags"):
            if getattr(new, key) != getattr(self.config, key):
                raise ConfigError(f"{self.paths.config}: {key} changes only when mosd is restarted")
        self.config, self.policy = new, configuration.lending_policy(new)
        starting.hosts.alone = new.own_programs
        self.lending.apply_policy()
        self.balancer.policy_changed()
        await self.begin_peers()
        self.spawn(self.files.look())
        if not self.policy.enabled:
            self.spawn(self._send_all_guests_home("the node does not lend any more"))
        for key, reason in self.guests.denied().items():
            self.spawn(self.guests.expel(key, reason))
        log.info("configuration reloaded")

    async def _send_all_guests_home(self, reason: str) -> dict[str, str]:
        return await self.guests.expel(None, reason)

    async def _reload_by_signal(self) -> None:
        try:
            await self.reload()
        except FarhomeError as error:
            log.error("%s", error)
