"""The front: reads what comes from the network, and has no rights. mosd starts it (node/cluster/front/supervisor.py), and does what takes
root.

It accepts connections, makes the handshakes of TLS in both directions, checks certificates, takes the messages apart, and opens
datagrams. What is left, plain values with bounds (node/cluster/front/values.py), it passes on to mosd::

    mosd  -- keys, sockets (as descriptors), what is to be sent: msgpack -->  front
          <-- requests, answers, datagrams, lines of the log: values -------

It has the key of this node's certificate, and never that of the cluster's authority.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import traceback  # noqa: F401  # the log needs it when no file can be read any more
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from balancer.gossip.opening import unpack
from balancer.gossip.plain import plain
from kernel_helpers.common.errors import FarhomeError
from node.cluster.front import reading, rights
from node.cluster.front.connections import PeerRefused, certificate_der, certificate_name, message_of, open_stream
from node.cluster.front.gossip_socket import GossipSocket
from node.cluster.front.peer_server import Caller, PeerServer
from node.cluster.front.pending import source_of
from node.cluster.front.pipe import HIGH, Pipe
from node.cluster.front.values import NotPlain, encode
from node.cluster.keys.certificates import Certificates, Doubtful, Known
from node.cluster.keys.pki import KeyStore
from node.common.message_streams import close, read_message
from node.common.names import check_name
from node.programs.priority import come_first
from wire.frames import MESSAGE_LIMIT, WireError

LONGEST = 4 << 20
"""Bytes of a message of mosd's."""
REQUESTS = 1024
"""Of all peers, that mosd works on at once."""
MOST_UNSENT = 2 * MESSAGE_LIMIT
"""Bytes that a peer has not taken, from which on its connection ends."""
NODES = 2048
"""Addresses that are kept to answer who introduces itself."""
REPORT_PERIOD = 0.25
"""Seconds after a datagram was dropped until that is reported to mosd, for all that were dropped meanwhile."""
LINE = 2000
"""Characters of a line of the log."""

log = logging.getLogger("mosd.front")


class Failed(FarhomeError):
    """mosd could not do what a peer asks for."""


class Program:
    """What it knows, and whom it speaks to."""

    def __init__(self, connection: socket.socket) -> None:
        self.over = asyncio.get_running_loop().create_future()
        self._pipe = Pipe(connection, LONGEST, self._take, self._end, descriptors=True)
        self._keys = KeyStore(Path("/"))
        self._certificates = Certificates(self._keys)
        self._certificates.met = lambda name, anew: self._report_certificate(self._certificates.get(name))
        self._context: ssl.SSLContext | None = None
        self._server = PeerServer(self._keys, self._handle, self._join)
        self._server.is_known = lambda address: source_of(address) in self._members
        self._server.seen = self._seen
        self._members: frozenset[str] = frozenset()
        self._gossip: GossipSocket | None = None
        self._addresses: dict[str, tuple[str, int]] = {}
        self._news: asyncio.TimerHandle | None = None
        self._room = asyncio.Semaphore(REQUESTS)
        self._number = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._writers: dict[int, tuple[asyncio.StreamWriter, bytes]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._acts: dict[str, Callable[..., None]] = {
            "keys": self._on_keys, "listen": self._on_listen, "datagrams": self._on_datagrams, "members": self._on_members,
            "removed": self._on_removed, "answer": self._on_answer, "refuse": self._on_refuse, "fail": self._on_fail,
            "connect": self._on_connect, "write": self._on_write, "hang up": self._on_hang_up, "send": self._on_send,
            "ask": self._on_ask, "open": self._on_open, "nonsense": self._on_nonsense, "there?": lambda: self.send("there"),
        }  # fmt: skip

    # -- mosd ------------------------------------------------------------------------------------------------------------

    def send(self, word: str, *values: Any) -> None:
        """Send mosd a message. Errors: NotPlain."""
        self._pipe.send(encode([word, *values]))

    def _take(self, body: bytes, descriptors: list[int]) -> None:
        word, *values = msgpack.unpackb(body, strict_map_key=False)
        self._acts[word](*values, *descriptors)

    def _end(self, why: str) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _on_keys(self, key: bytes, certificate: bytes, authority: bytes, removed: bytes) -> None:
        keys = self._keys
        for path, content in (
            (keys.node_key, key), (keys.node_certificate, certificate), (keys.authority_certificate, authority),
            (keys.directory / "removed", removed),
        ):  # fmt: skip
            path.write_bytes(content)
        self._context = keys.client_context()
        self._server.reload()
        if self._gossip is not None:
            self._gossip.reload()

    def _on_listen(self, descriptor: int) -> None:
        self._server.start(socket.socket(fileno=descriptor))

    def _on_datagrams(self, incarnation: int, descriptor: int) -> None:
        made = GossipSocket(
            self._keys, incarnation, self._addresses.get, self._hear, lambda size: self.send("spent", size), self._certificates
        )
        made.changed = self._on_dropped
        made.start(socket.socket(fileno=descriptor))
        self._gossip = made

    def _on_members(self, addresses: list[str]) -> None:
        self._members = frozenset(addresses)

    def _on_removed(self, name: str) -> None:
        """Somebody was taken out, as the keys have shown before."""
        self._server.drop(name)
        for number, (_, certificate) in list(self._writers.items()):
            if self._keys.refusal(certificate) is not None:
                self._tasks[number].cancel()
        known = self._certificates.get(name)
        if known is not None and self._keys.removals.bars(name, known.since):
            self._certificates.drop(name)
            if self._gossip is not None:
                self._gossip.drop(name)

    # -- requests of peers -----------------------------------------------------------------------------------------------

    async def _join(self, caller: Caller, parameters: dict[str, Any]) -> Any:
        try:
            parameters = reading.of_join(parameters)
        except PeerRefused as error:
            self._server.limited_log.warn("join", caller.address.rpartition(":")[0], f"refused peer {caller.address}: {error}")
            raise
        return await self._ask_mosd(caller, "join", parameters)

    async def _handle(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        """What mosd answers. Errors: PeerRefused, Failed, ValueError."""
        if method == "gossip":
            parameters = reading.of_gossip(parameters)
        elif method == "renew":
            parameters = reading.of_renewal(caller.certificate, parameters)
        return await self._ask_mosd(caller, method, parameters)

    async def _ask_mosd(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        async with self._room:
            await self._pipe.has_room()
            self._number += 1
            number, answer = self._number, asyncio.get_running_loop().create_future()
            self.send("request", number, caller.name, caller.address[:100], method[:64], parameters)
            self._asked[number] = answer
            try:
                return await answer
            finally:
                del self._asked[number]
                if answer.cancelled():
                    self.send("cancel", number)

    def _settle(self, number: int, settle: Callable[[asyncio.Future[Any]], None]) -> None:
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            settle(answer)

    def _on_answer(self, number: int, result: Any) -> None:
        self._settle(number, lambda answer: answer.set_result(result))

    def _on_refuse(self, number: int, kind: str, why: str) -> None:
        self._settle(number, lambda answer: answer.set_exception(PeerRefused(kind, why)))

    def _on_fail(self, number: int, why: str) -> None:
        self._settle(number, lambda answer: answer.set_exception(Failed(why)))

    def _seen(self, certificate: bytes) -> None:
        """Somebody has shown a certificate over TLS."""
        if self._certificates.name_of(certificate) is not None:
            self._report_certificate(self._certificates.meet(certificate))
            return
        try:
            self._certificates.meet(certificate)
        except Doubtful as doubt:
            log.debug("%s", doubt)

    def _report_certificate(self, known: Known | None) -> None:
        if known is not None:
            point = known.key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
            self.send("met", known.name, known.der, point, known.since.timestamp(), known.until.timestamp(), known.serial)

    # -- connections to peers --------------------------------------------------------------------------------------------

    def _on_connect(self, number: int, where: str, expected: str, descriptor: int) -> None:
        task = asyncio.get_running_loop().create_task(self._speak(number, socket.socket(fileno=descriptor), where, expected))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _speak(self, number: int, sock: socket.socket, where: str, expected: str) -> None:
        """One connection to a peer, from the handshake to the end."""
        writer: asyncio.StreamWriter | None = None
        why = "the connection ended"
        try:
            assert self._context is not None
            sock.setblocking(False)
            reader, writer = await open_stream(sock, self._context, server_side=False)
            name, certificate = certificate_name(writer), certificate_der(writer)
            check_name(name)
            if expected and name != expected:
                raise WireError(f"{where} is {name}, not {expected}")
            if (why_none := self._keys.refusal(certificate)) is not None:
                raise WireError(f"{name} is no peer: {why_none}")
            self._seen(certificate)
            self._writers[number] = writer, certificate
            known = self._certificates.get(name)
            self.send("connected", number, name, known.since.timestamp() if known is not None else 0.0)
            while (message := await read_message(reader)) is not None:
                await self._pipe.has_room()
                self.send("message", number, message)
        except WireError as error:
            why = str(error)
        except NotPlain as error:
            why = f"not a message: {error}"
        except (OSError, TimeoutError, ValueError) as error:
            why = f"{expected or where} cannot be reached: {message_of(error)}"
        finally:
            self._writers.pop(number, None)
            if writer is not None:
                close(writer)
            else:
                sock.close()
            self.send("closed", number, why[:500])

    def _on_write(self, number: int, data: bytes) -> None:
        writer, _ = self._writers.get(number, (None, b""))
        if writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write(data)
            if writer.transport.get_write_buffer_size() > MOST_UNSENT:
                self._on_hang_up(number)

    def _on_hang_up(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    # -- gossip ----------------------------------------------------------------------------------------------------------

    def _on_send(self, name: str, host: str, port: int, data: bytes) -> None:
        if name not in self._addresses and len(self._addresses) >= NODES:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[name] = host, port
        if self._gossip is not None:
            self._gossip.send(name, data)

    def _on_ask(self, host: str, port: int) -> None:
        if self._gossip is not None:
            self._gossip.ask((host, port))

    def _hear(self, name: str, data: bytes) -> None:
        """Errors: ValueError: it is nonsense."""
        opened = plain(unpack(data))
        if self._pipe.waiting < HIGH:
            self.send("datagram", name, opened)

    def _on_open(self, name: str, data: bytes) -> None:
        try:
            self.send("opened", name, plain(unpack(data)))
        except ValueError as error:
            log.debug("gossip to %s: %s", name, error)

    def _on_nonsense(self, example: str) -> None:
        if self._gossip is not None:
            self._gossip.count("nonsense", example)

    def _on_dropped(self) -> None:
        if self._news is None:
            self._news = asyncio.get_running_loop().call_later(REPORT_PERIOD, self._report_dropped)

    def _report_dropped(self) -> None:
        self._news = None
        if self._gossip is not None:
            self.send("dropped", dict(self._gossip.dropped))


class ToMosd(logging.Handler):
    """Has mosd write the log."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program

    def emit(self, record: logging.LogRecord) -> None:
        """As logging.Handler has it."""
        try:
            self._program.send("log", record.levelno, record.name[:40], self.format(record)[-LINE:].encode(errors="replace").decode())
        except Exception:
            self.handleError(record)


async def serve(connection: socket.socket, level: int) -> None:
    """Until mosd closes its end."""
    program = Program(connection)
    logging.basicConfig(handlers=[ToMosd(program)], level=level, format="%(message)s")
    program.send("ready")
    await program.over


def main() -> int:
    """`python -m node.cluster.front.program DESCRIPTOR LEVEL`, started by the node daemon."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    come_first()
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # whatever OpenSSL reads of files it reads now
    with asyncio.Runner() as runner:
        runner.get_loop()
        gc.freeze()
        rights.give_up(os.getppid())
        for standard in (1, 2):
            os.close(standard)  # 0 is nothing, too; what there is to say goes to mosd
        runner.run(serve(connection, int(sys.argv[2])))
    os._exit(0)  # connections end with the process


if __name__ == "__main__":
    sys.exit(main())
