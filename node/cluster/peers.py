"""Calls to other node daemons: mutual TLS 1.3, framed msgpack, one outgoing connection to each peer.

A connection is of the node that opened it: it asks, the other answers (see peer_server). The front has the socket, and makes the handshake
(node/cluster/front/front.py); what is here without mosd's rights is used there.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_helpers.errors import FarhomeError
from node.cluster.keys.pki import KeyStore
from node.common.message_streams import BUFFER
from node.common.names import format_endpoint
from wire.frames import Message, encode

if TYPE_CHECKING:
    from node.cluster.front.front import Front

PROTOCOL_VERSION = 1
HANDSHAKE_TIMEOUT = 5.0
CALL_TIMEOUT = 10.0

log = logging.getLogger("mosd.peers")


class PeerError(FarhomeError):
    """A peer cannot be reached, or did not answer as it should."""

    exit_code = 75


BUSY = "busy"
"""The kind of a refusal that may be none soon."""


class PeerRefused(PeerError):
    """The peer understood and said no; the message is its reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def certificate_name(writer: asyncio.StreamWriter) -> str:
    """The common name in the peer's checked certificate, "" if it gave none."""
    certificate = writer.get_extra_info("peercert") or {}
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


def certificate_der(writer: asyncio.StreamWriter) -> bytes:
    """The peer's certificate as it came, b"" if it gave none."""
    tls = writer.get_extra_info("ssl_object")
    return (tls.getpeercert(binary_form=True) or b"") if tls is not None else b""


async def open_stream(sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams over TLS on a connected socket, within the handshake's bound. Errors: OSError (ssl.SSLError), TimeoutError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    async with asyncio.timeout(HANDSHAKE_TIMEOUT):
        if server_side:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=context)
        else:
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock, ssl=context, server_hostname="")
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def connect_socket(host: str, port: int) -> socket.socket:
    """A connected TCP socket. Errors: OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANDSHAKE_TIMEOUT):
        family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A dead peer is noticed within 10 s even where nothing is said: 3 probes after 4 s of silence.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            await loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
    return sock


def say(error: BaseException) -> str:
    """The sentence of an error of a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this cluster ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no TLS ({error.reason or error})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


class Channel:
    """A connection to a peer as the front has it: messages that it sends come one by one, bytes of ours go out."""

    def __init__(self, write: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.write = write
        self.close = close
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """done when the peer has shown a certificate that counts; PeerError if it has not"""
        self.name = ""
        self.since = datetime.datetime.fromtimestamp(0, datetime.UTC)
        """from when on its certificate is valid"""
        self.take: Callable[[Message], None] = lambda message: None
        self.ended: Callable[[], None] = lambda: None


class PeerConnection:
    """Our connection to one peer: asks, and gives each answer to who waits for it."""

    def __init__(self, channel: Channel) -> None:
        self.name = channel.name
        self.since = channel.since
        self.hello: dict[str, Any] = {}
        self.unfit: str | None = None
        """Why no process of this node can go on there, by what its hello told."""
        self._channel = channel
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._next = 0
        self.closed = False
        channel.take, channel.ended = self._take, self.close

    @classmethod
    async def open(cls, front: Front, host: str, port: int, hello: dict[str, Any], expected: str | None) -> PeerConnection:
        """Connects and says hello. Errors: PeerError."""
        connection = await cls._connect(front, host, port, expected)
        try:
            result = await connection.call("hello", {"version": PROTOCOL_VERSION, **hello})
            connection.hello = result if isinstance(result, dict) else {}
        except BaseException:
            connection.close()
            raise
        return connection

    @classmethod
    async def ask(cls, front: Front, host: str, port: int, method: str, parameters: dict[str, Any]) -> Any:
        """The answer to one question of those that need no hello; the connection ends. Errors: PeerError."""
        connection = await cls._connect(front, host, port, None)
        try:
            return await connection.call(method, parameters, HANDSHAKE_TIMEOUT)
        finally:
            connection.close()

    @classmethod
    async def _connect(cls, front: Front, host: str, port: int, expected: str | None) -> PeerConnection:
        where = format_endpoint(host, port)
        try:
            sock = await connect_socket(host, port)
        except (OSError, TimeoutError) as error:
            raise PeerError(f"{expected or where} cannot be reached: {say(error)}") from None
        return cls(await front.connect(sock, where, expected))

    def _take(self, message: Message) -> None:
        identity = message.get("id", -1)
        future = self._waiting.pop(identity, None) if isinstance(identity, int) else None
        if future is not None and not future.done():
            future.set_result(message)

    async def call(self, method: str, parameters: dict[str, Any], timeout: float = CALL_TIMEOUT) -> Any:
        """The peer's result. Errors: PeerRefused with its reason, PeerError (gone, silent for timeout seconds)."""
        if self.closed:
            raise PeerError(f"{self.name} is not connected")
        self._next += 1
        identity = self._next
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = future
        try:
            async with asyncio.timeout(timeout):
                self._channel.write(encode({"id": identity, "method": method, "params": parameters}))
                message = await future
        except TimeoutError:
            self.close()
            raise PeerError(f"{self.name} did not answer within {timeout:g} s") from None
        finally:
            self._waiting.pop(identity, None)
            if future.done() and not future.cancelled():
                future.exception()  # if the connection ended while we still wrote, that has been told already
        failure = message.get("error")
        if isinstance(failure, dict):
            raise PeerRefused(str(failure.get("kind")), str(failure.get("message"))[:500])
        return message.get("result")

    def close(self) -> None:
        """Ends the connection; calls that wait fail."""
        self.closed = True
        self._channel.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(PeerError(f"{self.name} closed the connection"))
        self._waiting.clear()


class Peers:
    """Connections to all peers, made when needed."""

    def __init__(
        self, keys: KeyStore, front: Front, hello: Callable[[], dict[str, Any]], address: Callable[[str], tuple[str, int] | None],
        judge: Callable[[str, dict[str, Any]], str | None],
    ) -> None:  # fmt: skip
        """judge says, by name and hello of a peer, why it is unfit for this node's processes."""
        self._judge = judge
        self._keys = keys
        self.front = front
        self._hello = hello
        self._address = address
        self._connections: dict[str, PeerConnection] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def dial(self, host: str, port: int) -> PeerConnection:
        """A connection to whoever is at that address. Errors: PeerError."""
        return self._kept(await PeerConnection.open(self.front, host, port, self._hello(), None))

    async def ask(self, endpoint: tuple[str, int], method: str, parameters: dict[str, Any]) -> Any:
        """The answer to one question of those that need no hello. Errors: PeerError."""
        return await PeerConnection.ask(self.front, *endpoint, method, parameters)

    def _kept(self, connection: PeerConnection) -> PeerConnection:
        """The connection itself, or the one to the same peer that somebody else has made meanwhile."""
        old = self._connections.get(connection.name)
        if old is not None and not old.closed:
            connection.close()
            return old
        connection.unfit = self._judge(connection.name, connection.hello)
        self._connections[connection.name] = connection
        return connection

    async def connection(self, name: str) -> PeerConnection:
        """The connection to that peer. Errors: PeerError."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            known = self._connections.get(name)
            if known is not None and not known.closed:
                return known
            address = self._address(name)
            if address is None:
                raise PeerError(f"no node {name} is known")
            return self._kept(await PeerConnection.open(self.front, *address, self._hello(), name))

    async def call(self, name: str, method: str, parameters: dict[str, Any], timeout: float = CALL_TIMEOUT) -> Any:
        """The result of one call of that peer. Errors: PeerRefused, PeerError (also when no connection comes within `timeout`
        seconds: others may be in front of us, each waiting for a dead node in its turn)."""
        try:
            async with asyncio.timeout(timeout):
                connection = await self.connection(name)
        except TimeoutError:
            raise PeerError(f"{name} did not answer within {timeout:g} s") from None
        return await connection.call(method, parameters, timeout)

    async def why_unfit(self, name: str) -> str | None:
        """Why no process of this node can go on there, in one sentence, or None. Errors: PeerError."""
        return (await self.connection(name)).unfit

    def hello_of(self, name: str) -> dict[str, Any]:
        """What a peer that we are connected to has said of itself."""
        known = self._connections.get(name)
        return known.hello if known is not None and not known.closed else {}

    def drop(self, name: str) -> None:
        """Ends the connection to a node that was taken out of the cluster."""
        known = self._connections.get(name)
        if known is not None and self._keys.removals.bars(name, known.since):
            known.close()
            del self._connections[name]

    def hang_up(self, name: str) -> None:
        """Ends the connection to a peer; the next call makes another one."""
        if (known := self._connections.pop(name, None)) is not None:
            known.close()

    def connected(self) -> set[str]:
        """Names of the peers that there is a connection to."""
        return {name for name, connection in self._connections.items() if not connection.closed}

    def close(self) -> None:
        """Ends every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
