"""Calls to other node daemons: mutual TLS 1.3, framed msgpack, one outgoing connection to each peer.

A connection is of the node that opened it: it asks, the other answers (see peer_server). The front has the socket, and makes the handshake
(node/cluster/front/front.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from node.cluster.front.connections import (
    HANDSHAKE_TIMEOUT,
    PROTOCOL_VERSION,
    Channel,
    PeerError,
    PeerRefused,
    connect_socket,
    message_of,
)  # fmt: skip
from node.cluster.front.front import Front
from node.cluster.keys.pki import KeyStore
from node.common.names import format_endpoint
from wire.frames import Message, encode

CALL_TIMEOUT = 10.0


class PeerConnection:
    """Our connection to one peer: asks, and gives each answer to who waits for it."""

    def __init__(self, channel: Channel) -> None:
        self.name = channel.name
        self.since = channel.since
        self.hello: dict[str, Any] = {}
        self.unfit: str | None = None
        """Why no process of this node can go on there, by its hello."""
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
        """Return the answer to one question of those that need no hello; the connection ends. Errors: PeerError."""
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
            raise PeerError(f"{expected or where} cannot be reached: {message_of(error)}") from None
        return cls(await front.connect(sock, where, expected))

    def _take(self, message: Message) -> None:
        identity = message.get("id", -1)
        future = self._waiting.pop(identity, None) if isinstance(identity, int) else None
        if future is not None and not future.done():
            future.set_result(message)

    async def call(self, method: str, parameters: dict[str, Any], timeout: float = CALL_TIMEOUT) -> Any:
        """Return the peer's result. Errors: PeerRefused with its reason, PeerError (gone, silent for timeout seconds)."""
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
                future.exception()  # if the connection ended while we still wrote, that has been reported already
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
        """Connects to the node at that address. Errors: PeerError."""
        return self._kept(await PeerConnection.open(self.front, host, port, self._hello(), None))

    async def ask(self, endpoint: tuple[str, int], method: str, parameters: dict[str, Any]) -> Any:
        """Return the answer to one question of those that need no hello. Errors: PeerError."""
        return await PeerConnection.ask(self.front, *endpoint, method, parameters)

    def _kept(self, connection: PeerConnection) -> PeerConnection:
        """The connection itself, or the one to the same peer that somebody else has made meanwhile. Errors: PeerError: the peer was removed
        while the connection was made."""
        if self._keys.removals.bars(connection.name, connection.since):
            connection.close()
            raise PeerError(f"{connection.name} was removed from the cluster")
        old = self._connections.get(connection.name)
        if old is not None and not old.closed:
            connection.close()
            return old
        connection.unfit = self._judge(connection.name, connection.hello)
        self._connections[connection.name] = connection
        return connection

    async def connection(self, name: str) -> PeerConnection:
        """Return the connection to that peer. Errors: PeerError."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            known = self._connections.get(name)
            if known is not None and not known.closed:
                return known
            address = self._address(name)
            if address is None:
                raise PeerError(f"no node {name} is known")
            return self._kept(await PeerConnection.open(self.front, *address, self._hello(), name))

    async def call(self, name: str, method: str, parameters: dict[str, Any], timeout: float = CALL_TIMEOUT) -> Any:
        """Return the result of one call of that peer. Errors: PeerRefused, PeerError (also when no connection comes within `timeout`
        seconds: others may be in front of us, each waiting for a dead node in its turn)."""
        try:
            async with asyncio.timeout(timeout):
                connection = await self.connection(name)
        except TimeoutError:
            raise PeerError(f"{name} did not answer within {timeout:g} s") from None
        return await connection.call(method, parameters, timeout)

    async def why_unfit(self, name: str) -> str | None:
        """Return why no process of this node can go on there, in one sentence, or None. Errors: PeerError."""
        return (await self.connection(name)).unfit

    def hello_of(self, name: str) -> dict[str, Any]:
        """Return what a peer that we are connected to has said of itself."""
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
