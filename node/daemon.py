"""mosd: puts the parts of a node together and answers commands and peers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from balancer.policy import LendingPolicy
from kernel_helpers.errors import FarhomeError, MoveRefused
from node import config as configuration
from node import join, process, sampling
from node.balancing import Balancer
from node.config import Config, ConfigError, format_endpoint, parse_endpoint
from node.control import BadRequest, Client, ControlServer, NotPermitted
from node.guests import Guests
from node.moves import Mover, MoveReport
from node.paths import Paths
from node.peers import PROTOCOL_VERSION, Caller, PeerError, PeerRefused, Peers, PeerServer
from node.pki import KeyStore, PkiError
from node.programs import Programs
from node.registry import HOME, HomeProcess, Registry

ADOPT_PERIOD = 0.5
SEED_PERIOD = 2.0
GUEST_PERIOD = 1.0

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
        self.paths = paths
        self.config = config
        self.policy: LendingPolicy = configuration.lending_policy(config)
        self.keys = KeyStore(paths.pki)
        self.started = time.time()
        self.stopping = asyncio.Event()
        self.registry = Registry(paths.registry, self._process_ended)
        self.peers = Peers(self.keys, self._hello, self._peer_address)
        self.peer_server = PeerServer(self.keys, self._on_peer, self._on_join)
        self._peer_server_runs = False
        self.mover = Mover(paths, lambda: self.config, self.registry, self.peers, programs)
        self.guests = Guests(
            paths, lambda: self.config, lambda: self.policy, programs, lambda: self.balancer.memory_free, sampling.owner_idle,
            lambda count: self.balancer.guest_accepted(count),
        )  # fmt: skip
        speed = config.speed if config.speed is not None else sampling.calibrate_speed()
        self.balancer = Balancer(lambda: self.config, self.registry, self.mover, self.guests, self.peers, speed)
        self.control = ControlServer(paths.socket, self._on_command)
        self._tasks: set[asyncio.Task[None]] = set()
        self._commands: dict[str, Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "register": self._register, "ps": self._ps, "migrate": self._migrate, "status": self._status, "nodes": self._nodes,
            "reload": self._reload, "block": self._block, "unblock": self._unblock, "expel": self._expel, "bring": self._bring,
            "why": self._why,
        }  # fmt: skip

    # -- life ------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Errors: FarhomeError, OSError at the start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload_by_signal)
        self._check_alone()
        self.paths.make_run_directories()
        try:
            self.guests.groups.prepare(self.policy.cpu_share, self.policy.max_memory)
            self.registry.load()
            await self.mover.restore()
            await self.guests.restore()
            self._start_peers()
            self.balancer.start()
            self._spawn(self._adopt_loop())
            self._spawn(self._seed_loop())
            self._spawn(self._guest_loop())
            await self.control.start()
            log.info("node %s is ready at %s", self.config.name, format_endpoint(self.config.address, self.config.port))
            notify_systemd(f"READY=1\nMAINPID={os.getpid()}")
            await self.stopping.wait()
            notify_systemd("STOPPING=1")
        finally:
            await self._close()

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
        self.balancer.close()
        await self.peer_server.close()
        self.peers.close()
        self.mover.close()
        self.guests.close()
        if not self.guests.all():
            self.guests.groups.remove_all()
        self.registry.close()

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start_peers(self) -> None:
        """Listens for peers once this node is in a cluster. Errors: FarhomeError."""
        if not self.keys.exists():
            log.info("this node is in no cluster yet (mosctl cluster init, or join)")
            return
        if self.keys.name() != self.config.name:
            raise ConfigError(f"{self.paths.config}: name is {self.config.name}, but the node joined its cluster as {self.keys.name()}")
        self.peers.reload()
        if self._peer_server_runs:
            self.peer_server.reload()
            return
        try:
            self.peer_server.start(self.config.address, self.config.port)
        except OSError as error:
            where = format_endpoint(self.config.address, self.config.port)
            raise ConfigError(f"{self.paths.config}: cannot listen at {where}: {error.strerror}") from None
        self._peer_server_runs = True

    async def _adopt_loop(self) -> None:
        while True:
            self.registry.adopt_children()
            await asyncio.sleep(ADOPT_PERIOD)

    async def _guest_loop(self) -> None:
        """Keeps guests within the memory that the owner lends: the greatest goes home."""
        while True:
            await asyncio.sleep(GUEST_PERIOD)
            key = self.guests.in_excess()
            if key is not None:
                log.info("guest %s goes home: the guests use more memory than this node lends", key)
                await self.guests.expel(key, f"the guests on {self.config.name} use more memory than it lends")

    async def _seed_loop(self) -> None:
        """Dials seeds until their names are known; gossip keeps what it brings."""
        done: set[tuple[str, int]] = set()
        while True:
            if self._peer_server_runs:
                if not self.peers.connected():
                    done.clear()         # alone again: seeds are where to look for the others
                for endpoint in self._seeds() - done:
                    try:
                        await self.peers_dial(endpoint)
                        done.add(endpoint)
                    except PeerError as error:
                        log.debug("seed %s: %s", format_endpoint(*endpoint), error)
            await asyncio.sleep(SEED_PERIOD)

    async def peers_dial(self, endpoint: tuple[str, int]) -> None:
        """Gets to know the node at that address. Errors: PeerError."""
        connection = await self.peers.dial(*endpoint)
        self.balancer.gossip.learn(connection.name, str(connection.hello.get("address", endpoint[0])), int(connection.hello.get("port", endpoint[1])))

    def _seeds(self) -> set[tuple[str, int]]:
        seeds = set(self.config.peers)
        try:
            seeds |= {parse_endpoint(line) for line in self.paths.seeds.read_text(encoding="ascii").split()}
        except (OSError, ValueError):
            pass
        return seeds - {(self.config.address, self.config.port)}

    def _process_ended(self, entry: HomeProcess) -> None:
        self.mover.ended(entry.pid)
        if entry.where != HOME:
            log.info("process %d ended while it was on %s", entry.pid, entry.where)

    # -- peers -------------------------------------------------------------------------------------------------------------

    def _hello(self) -> dict[str, Any]:
        return {"version": PROTOCOL_VERSION, "name": self.config.name, "address": self.config.address, "port": self.config.port}

    def _peer_address(self, name: str) -> tuple[str, int] | None:
        return self.balancer.gossip.peers().get(name)

    async def _on_join(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = join.answer_join(self.keys, self.config.name, caller, parameters)
        except (PeerRefused, ValueError, PkiError) as error:
            log.warning("refused peer %s: %s", caller.address, error)
            raise PeerRefused("join", str(error)) from None
        if "certificate" in answer:
            log.info("node %s joined the cluster from %s", parameters["name"], caller.address)
        return answer

    async def _on_peer(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        if method == "hello":
            address, port = parameters.get("address"), parameters.get("port")
            if isinstance(address, str) and isinstance(port, int) and 0 < port < 65536:
                self.balancer.gossip.learn(caller.name, address, port)
            return self._hello()
        if method == "gossip":
            payload = parameters.get("payload")
            if not isinstance(payload, bytes):
                raise ValueError("gossip without a payload")
            return self.balancer.gossip.receive(payload)
        if method == "reserve":
            return await self.guests.reserve(caller, parameters)
        if method == "cancel":
            await self.guests.cancel(caller, str(parameters.get("key")))
            return True
        if method == "expel":
            return await self._expelled(caller, parameters)
        if method == "ping":
            return True
        raise PeerRefused("method", f"unknown method {method[:40]!r}")

    async def _expelled(self, caller: Caller, parameters: dict[str, Any]) -> bool:
        """A node sends one of our processes home."""
        pid, reason = parameters.get("pid"), str(parameters.get("reason", ""))[:200]
        entry = self.registry.get(pid) if isinstance(pid, int) else None
        if entry is None or entry.where != caller.name:
            return False
        await self.mover.move(entry.pid, HOME, reason)
        self.registry.update(entry.pid, why=reason)
        return True

    # -- commands ------------------------------------------------------------------------------------------------------------

    async def _on_command(self, client: Client, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        command = self._commands.get(operation)
        if command is None:
            raise BadRequest(f"unknown operation {operation!r}")
        return await command(client, request)

    async def _register(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """mosrun tells of itself: the peer of this connection, which becomes the program when it closes it by exec."""
        stat = process.read_stat(client.pid)
        if stat is None:
            raise BadRequest("no such process")
        job, wanted, memory = request.get("job", ""), request.get("node", ""), request.get("memory", 0)
        command = request.get("command", "")
        if not isinstance(job, str) or len(job) > 64 or not isinstance(wanted, str) or not isinstance(command, str):
            raise BadRequest("job, node and command must be short texts")
        if not isinstance(memory, int) or not 0 <= memory < 1 << 60:
            raise BadRequest("memory must be a number of bytes")
        if wanted and wanted not in ("best", self.config.name) and wanted not in self.balancer.gossip.peers():
            raise BadRequest(f"no node {wanted} is known")
        entry = HomeProcess(
            client.pid, stat.starttime, client.uid, job=job, command=command[:200], home_only=bool(request.get("home_only")),
            locked=bool(request.get("locked")), memory=memory, wanted=wanted, state="starting", since=time.time(),
        )  # fmt: skip
        self.registry.add(entry)
        self._spawn(self._started(client, entry))
        return {}

    async def _started(self, client: Client, entry: HomeProcess) -> None:
        """The connection is closed by exec (or by the end): from now on the process may move."""
        await client.closed.wait()
        current = self.registry.get(entry.pid)
        if current is None or current.starttime != entry.starttime:
            return
        self.registry.update(entry.pid, state="home", command=process.command_line(entry.pid) or entry.command)
        if entry.wanted:
            self.balancer.decide()

    def _visible(self, client: Client, everybody: bool) -> list[HomeProcess]:
        return [entry for entry in self.registry if everybody or client.may_act_on(entry.uid)]

    def _movable(self, client: Client, pid: object) -> HomeProcess:
        """The process that a command names. Errors: MoveRefused, NotPermitted."""
        if not isinstance(pid, int):
            raise BadRequest("pid must be a number")
        entry = self.registry.get(pid)
        if entry is None:
            self.registry.adopt_children()
            entry = self.registry.get(pid)
        if entry is None:
            known = process.read_stat(pid) is not None
            raise MoveRefused(pid, "it was not started by mosrun" if known else "there is no such process")
        if not client.may_act_on(entry.uid):
            raise NotPermitted(f"process {pid} belongs to {process.user_name(entry.uid)}")
        return entry

    async def _ps(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("guests"):
            return {"guests": await self.guests.rows()}
        self.registry.adopt_children()
        self.registry.refresh_commands()
        now, job = time.time(), request.get("job")
        rows = [entry.row(now) for entry in self._visible(client, bool(request.get("all"))) if job is None or entry.job == job]
        return {"processes": sorted(rows, key=lambda row: row["pid"])}

    async def _migrate(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        entry, target = self._movable(client, request.get("pid")), request.get("target")
        if not isinstance(target, str):
            raise BadRequest("target must be home, out, balance or a node")
        if target in ("out", "balance"):
            decision = self.balancer.place(entry, away=target == "out")
            if decision.target is None:
                if target == "out":
                    raise MoveRefused(entry.pid, decision.reason)
                return {"pid": entry.pid, "where": entry.where, "frozen_ms": 0.0, "total_ms": 0.0, "moved": False, "reason": decision.reason}
            target = decision.target
        elif target not in (HOME, self.config.name) and target not in self.balancer.gossip.peers():
            raise BadRequest(f"no node {target} is known")
        if request.get("async"):
            self._spawn(self._move_quietly(entry.pid, target))
            return {"pid": entry.pid, "where": entry.where, "target": target, "started": True}
        return _told(await self.mover.move(entry.pid, target))

    async def _move_quietly(self, pid: int, target: str) -> None:
        try:
            await self.mover.move(pid, target)
        except MoveRefused:
            pass                                 # the registry's why tells

    async def _status(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        entries = list(self.registry)
        cluster = self.keys.cluster() if self.keys.exists() else None
        refusal = self.guests.lends()
        return {
            "name": self.config.name, "address": self.config.address, "port": self.config.port, "version": PROTOCOL_VERSION,
            "cluster": cluster, "authority": self.keys.is_authority(), "uptime": time.time() - self.started, "pid": os.getpid(),
            "processes": len(entries), "away": sum(1 for entry in entries if entry.where != HOME), "guests": len(self.guests.all()),
            "blocked": self.guests.blocked, "lending": refusal is None, "why_not_lending": refusal or "",
            "balance": self.config.balance, "interception": self.config.interception,
            "peers": sorted(self.balancer.gossip.peers()), "connected": sorted(self.peers.connected()),
        }  # fmt: skip

    async def _nodes(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        return {"nodes": self.balancer.view().rows()}

    async def _reload(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        self.reload()
        return {"name": self.config.name}

    def reload(self) -> None:
        """Reads the configuration anew; what cannot be changed live is refused. Errors: ConfigError, the old one stays."""
        new = configuration.load(self.paths.config)
        for key in ("name", "address", "port"):
            if getattr(new, key) != getattr(self.config, key):
                raise ConfigError(f"{self.paths.config}: {key} changes only when mosd is restarted")
        self.config, self.policy = new, configuration.lending_policy(new)
        self.guests.groups.prepare(self.policy.cpu_share, self.policy.max_memory)
        self._start_peers()
        if not self.policy.enabled:
            self._spawn(self._send_all_guests_home("the node does not lend any more"))
        log.info("configuration reloaded")

    async def _send_all_guests_home(self, reason: str) -> list[str]:
        return await self.guests.expel(None, reason)

    def _reload_by_signal(self) -> None:
        try:
            self.reload()
        except FarhomeError as error:
            log.error("%s", error)

    async def _block(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        self.guests.block(True)
        return {"guests": len(self.guests.all())}

    async def _unblock(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        self.guests.block(False)
        return {}

    async def _expel(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        key = request.get("guest")
        keys = [guest.key for guest in self.guests.all()]
        if key is not None and key not in keys:
            raise BadRequest(f"there is no guest {key}")
        left = await self.guests.expel(key, f"{self.config.name} wants its machine back")
        return {"expelled": [k for k in ([key] if key else keys) if k not in left], "left": left}

    async def _bring(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """Brings the client's processes home (root: everybody's), all or those of a job."""
        job = request.get("job")
        entries = [e for e in self._visible(client, False) if e.where != HOME and (job is None or e.job == job)]
        outcomes = await asyncio.gather(*(self.mover.move(entry.pid, HOME) for entry in entries), return_exceptions=True)
        home = [entry.pid for entry, outcome in zip(entries, outcomes, strict=True) if not isinstance(outcome, BaseException)]
        failed = {str(e.pid): str(o) for e, o in zip(entries, outcomes, strict=True) if isinstance(o, BaseException)}
        return {"home": home, "failed": failed}

    async def _why(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """What is known of why a process is where it is, also of one that has ended."""
        pid = request.get("pid")
        if isinstance(pid, int) and self.registry.get(pid) is None and pid in self.registry.ended:
            ended = self.registry.ended[pid]
            if not client.may_act_on(ended.uid):
                raise NotPermitted(f"process {pid} belongs to {process.user_name(ended.uid)}")
            return {**ended.row(time.time()), "state": "ended" if ended.state != "lost" else "lost", "decision": "it has ended"}
        entry = self._movable(client, pid)
        decision = self.balancer.decisions.get(entry.pid)
        return {
            **entry.row(time.time()),
            "decision": decision.reason if decision else ("balancing is off" if not self.config.balance else "nothing has been decided yet"),
            "target": decision.target if decision else None,
        }  # fmt: skip


def _told(report: MoveReport) -> dict[str, Any]:
    return {
        "pid": report.pid, "where": report.where, "frozen_ms": report.frozen_ms, "total_ms": report.total_ms, "bytes": report.size,
        "engine": report.engine, "moved": report.engine != "none",
    }  # fmt: skip
