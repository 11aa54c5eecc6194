"""Answering other node daemons: mutual TLS 1.3, framed msgpack. It runs in the front (node/cluster/front/program.py), without rights.

The first message is ``hello`` with the version of the protocol; a caller without a certificate may say nothing but ``join``.
Other peers are refused with one line in the log, before any memory is spent on them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernel_helpers.common.errors import FarhomeError
from node.cluster.front.connections import (
    HANDSHAKE_TIMEOUT,
    PROTOCOL_VERSION,
    PeerRefused,
    certificate_der,
    certificate_name,
    message_of,
    open_stream,
)
from node.cluster.front.limited_log import LimitedLog
from node.cluster.front.pending import PendingConnections, Place
from node.cluster.keys.pki import KeyStore
from node.common.message_streams import close, read_message, write_message
from node.common.names import format_endpoint
from wire.frames import MESSAGE_LIMIT, Message, WireError

FREE_METHOD = "removals"
"""What a peer may ask before it says hello: it asks so before it listens itself."""
FIRST_MESSAGE_LIMIT = 1 << 14
"""Bytes of a message of somebody who has not yet said a valid hello."""
CONNECTIONS = 1024
"""Of peers that are known, with those that are pending."""
CONNECTIONS_OF_PEER = 8
"""Of one peer; the oldest gives way."""
REQUESTS = 64
"""Requests of one peer that are worked on at once; more wait in its own socket."""

log = logging.getLogger("mosd.peers")


@dataclass(frozen=True)
class Caller:
    """The caller: the name in its certificate (empty without one), and where from."""

    name: str
    address: str
    certificate: bytes = b""


class Content(Exception):
    """Who asked has what it wanted, and goes."""


Handler = Callable[[Caller, str, dict[str, Any]], Awaitable[Any]]


class PeerServer:
    """Accepts peers on one address; each request goes to the handler."""

    def __init__(self, keys: KeyStore, handle: Handler, join: Callable[[Caller, dict[str, Any]], Awaitable[Any]]) -> None:
        self._keys = keys
        self._handle = handle
        self._join = join
        self._context: ssl.SSLContext | None = None
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_known: Callable[[str], bool] = lambda address: False
        """Whether that is the address of a member."""
        self.seen: Callable[[bytes], None] = lambda certificate: None
        """Is shown the certificate of each peer."""
        self._pending = PendingConnections(time.monotonic, random.Random())
        self._served: dict[str, dict[asyncio.Task[None], bytes]] = {}
        self.limited_log = LimitedLog(log)

    def reload(self) -> None:
        """Reads keys and certificates again, for connections that come later. Errors: PkiError."""
        self._context = self._keys.server_context()

    def start(self, listener: socket.socket) -> None:
        """Accepts connections there. Errors: PkiError."""
        self.reload()
        self._listener = listener
        self._spawn(self._accept_loop(listener))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept_loop(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors: others will be closed; a busy loop would not help.
                log.warning("cannot accept a peer: %s", error)
                await asyncio.sleep(0.5)
                continue
            self._receive(sock, address[0], format_endpoint(address[0], address[1]))
            await asyncio.sleep(0)  # however many come, those that are here are looked after

    def _receive(self, sock: socket.socket, address: str, where: str) -> None:
        """Gives a connection a place, and begins to serve it."""
        place = self._pending.enter(address, self.is_known(address))
        if place is None or len(self._tasks) >= CONNECTIONS:
            if place is not None:
                self._pending.leave(place)
            reported = f"turned a connection from {address} away: there are too many that have not said whose they are"
            self.limited_log.warn("crowd", address, reported)
            sock.close()
            return
        task = self._spawn(self._serve(sock, address, where, place))
        task.add_done_callback(lambda _: None if place.begun else sock.close())
        place.drop, place.speaks = task.cancel, lambda: _has_spoken(sock)

    async def _speaks(self, sock: socket.socket) -> None:
        """Waits until the other side has said something. Errors: TimeoutError."""
        loop = asyncio.get_running_loop()
        spoken = loop.create_future()
        loop.add_reader(sock, _settle, spoken)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                await spoken
        finally:
            loop.remove_reader(sock)

    async def _serve(self, sock: socket.socket, address: str, where: str, place: Place) -> None:
        writer: asyncio.StreamWriter | None = None
        stranger = place.begun = True
        name = ""
        try:
            assert self._context is not None
            sock.setblocking(False)
            await self._speaks(sock)
            place.silent = False
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await open_stream(sock, self._context, server_side=True)
            name = certificate_name(writer)
            caller = Caller(name, where, certificate_der(writer))
            if not name:
                await self._serve_join(reader, writer, caller)
                return
            if (why := self._keys.refusal(caller.certificate)) is not None:
                await self._refuse_removed(reader, writer, caller, why)
            self.seen(caller.certificate)
            await self._expect_hello(reader, writer, caller)
            self._pending.leave(place)
            stranger = False
            await self._serve_peer(reader, writer, caller)
        except (OSError, WireError, TimeoutError) as error:
            # What an established peer's death looks like is no refusal; all the rest is.
            if stranger or isinstance(error, WireError):
                reported = f"refused peer {where}{f' ({name})' if name else ''}: {message_of(error)}"
                self.limited_log.warn(type(error).__name__, name or address, reported)
        except Content:
            pass
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("peer %s (%s) met a fault", where, name)
        finally:
            self._pending.leave(place)
            if writer is not None:
                close(writer)
            else:
                sock.close()

    async def _serve_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        task = asyncio.current_task()
        assert task is not None
        mine = self._served.setdefault(caller.name, {})
        if len(mine) >= CONNECTIONS_OF_PEER:
            next(iter(mine)).cancel()
        mine[task] = caller.certificate
        try:
            await self._serve_requests(reader, writer, caller)
        finally:
            del mine[task]
            if not mine and self._served.get(caller.name) is mine:
                del self._served[caller.name]

    def drop(self, name: str) -> None:
        """Ends the connections of a node that was taken out of the cluster."""
        for task, certificate in list(self._served.get(name, {}).items()):
            if self._keys.refusal(certificate) is not None:
                task.cancel()

    async def _refuse_removed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller, why: str) -> None:
        """Shows a node that was taken out that it was, if it asks; whatever else it wants is refused. Errors: WireError."""
        message = await read_message(reader, FIRST_MESSAGE_LIMIT, HANDSHAKE_TIMEOUT)
        if message is not None and message.get("method") == FREE_METHOD:
            await self._answer(writer, caller, message, lambda: self._handle(caller, FREE_METHOD, {}))
        elif message is not None:
            await write_message(writer, {"id": message.get("id"), "error": {"kind": "removed", "message": why}})
        raise WireError(why)

    async def _serve_join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        """The two requests of a join; anything else by somebody without a certificate ends the connection."""
        for _ in range(2):
            message = await read_message(reader, FIRST_MESSAGE_LIMIT, HANDSHAKE_TIMEOUT)
            if message is None:
                return
            if message.get("method") != "join":
                raise WireError("it has no certificate and wants something other than to join")
            if not await self._answer(writer, caller, message, partial(self._join, caller, _parameters(message))):
                return

    async def _expect_hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        message = await read_message(reader, FIRST_MESSAGE_LIMIT, HANDSHAKE_TIMEOUT)
        if message is not None and message.get("method") == FREE_METHOD:
            await self._answer(writer, caller, message, lambda: self._handle(caller, FREE_METHOD, {}))
            if (message := await read_message(reader, FIRST_MESSAGE_LIMIT, HANDSHAKE_TIMEOUT)) is None:
                raise Content
        if message is None:
            raise WireError("it went away before it said hello")
        parameters = _parameters(message)
        problem = None
        if message.get("method") != "hello":
            problem = "its first message is not hello"
        elif parameters.get("version") != PROTOCOL_VERSION:
            problem = f"it speaks version {parameters.get('version')!r:.40} of the protocol, this node {PROTOCOL_VERSION}"
        elif parameters.get("name") != caller.name:
            problem = f"it says that it is {parameters.get('name')!r:.80}, its certificate says {caller.name!r}"
        if problem:
            await write_message(writer, {"id": message.get("id"), "error": {"kind": "hello", "message": problem}})
            raise WireError(problem)
        await self._answer(writer, caller, message, lambda: self._handle(caller, "hello", parameters))

    async def _serve_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        """Answers requests as they finish, several at once: a reservation must not hold up gossip."""
        room = asyncio.Semaphore(REQUESTS)
        tasks: set[asyncio.Task[bool]] = set()
        try:
            while (message := await read_message(reader, MESSAGE_LIMIT)) is not None:
                await room.acquire()
                task = asyncio.create_task(self._answer_request(writer, caller, message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: room.release())
        finally:
            for task in tasks:
                task.cancel()

    async def _answer_request(self, writer: asyncio.StreamWriter, caller: Caller, message: Message) -> bool:
        try:
            method, parameters = str(message.get("method")), _parameters(message)
            return await self._answer(writer, caller, message, lambda: self._handle(caller, method, parameters))
        except (OSError, WireError, TimeoutError):
            close(writer)  # the read loop meets the end and leaves
            return False

    async def _answer(self, writer: asyncio.StreamWriter, caller: Caller, message: Message, work: Callable[[], Awaitable[Any]]) -> bool:
        """Sends the result of work or the sentence of its error; whether it was a result."""
        identity = message.get("id")
        try:
            answer: Message = {"id": identity, "result": await work()}
        except PeerRefused as refusal:
            answer = {"id": identity, "error": {"kind": refusal.kind, "message": str(refusal)}}
        except (FarhomeError, ValueError, TypeError, KeyError, OSError, TimeoutError) as error:
            reported = f"{str(message.get('method'))[:40]} of {caller.name or caller.address} failed: {message_of(error)}"
            self.limited_log.warn(f"failed {type(error).__name__}", caller.name or caller.address.rpartition(":")[0], reported)
            answer = {"id": identity, "error": {"kind": "failed", "message": message_of(error)}}
        await write_message(writer, answer)
        return "error" not in answer

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        if self._listener is not None:
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _has_spoken(sock: socket.socket) -> bool:
    try:
        return len(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 0
    except OSError:
        return False


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _parameters(message: Message) -> dict[str, Any]:
    parameters = message.get("params", {})
    if not isinstance(parameters, dict):
        raise WireError("the parameters of a request are no map")
    return parameters
