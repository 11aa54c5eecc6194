"""Answering other node daemons: mutual TLS 1.3, framed msgpack.

The first message is ``hello`` with the version of the protocol; a caller without a certificate may say nothing but ``join``.
Whoever does otherwise is refused with one line in the log, before any memory is spent on it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernel_helpers.errors import FarhomeError
from node.config import format_endpoint
from node.peers import HANDSHAKE_TIMEOUT, PROTOCOL_VERSION, PeerRefused, certificate_name, open_stream, say
from node.pki import KeyStore
from node.streams import close, read_message, write_message
from wire.frames import MESSAGE_LIMIT, Message, WireError

FIRST_MESSAGE_LIMIT = 1 << 14
"""Bytes of a message of somebody who has not yet said a valid hello."""
STRANGERS = 32
"""Connections that may be within handshake or join at once; more are closed at once."""
CONNECTIONS = 1024
REQUESTS = 64
"""Requests of one peer that are worked on at once; more wait in its own socket."""

log = logging.getLogger("mosd.peers")


@dataclass(frozen=True)
class Caller:
    """Who asks: the name in its certificate (empty without one), and where from."""

    name: str
    address: str


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
        self._strangers = 0

    def reload(self) -> None:
        """Reads keys and certificates again, for connections that come later. Errors: PkiError."""
        self._context = self._keys.server_context()

    def start(self, address: str, port: int) -> None:
        """Listens. Errors: OSError, PkiError."""
        self.reload()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((address, port))
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        self._spawn(self._accept_loop(listener))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            if self._strangers >= STRANGERS or len(self._tasks) >= CONNECTIONS:
                sock.close()
                continue
            self._spawn(self._serve(sock, format_endpoint(address[0], address[1])))

    async def _serve(self, sock: socket.socket, where: str) -> None:
        writer: asyncio.StreamWriter | None = None
        self._strangers += 1
        stranger = True
        name = ""
        try:
            assert self._context is not None
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await open_stream(sock, self._context, server_side=True)
            name = certificate_name(writer)
            caller = Caller(name, where)
            if not name:
                await self._serve_join(reader, writer, caller)
                return
            await self._expect_hello(reader, writer, caller)
            self._strangers -= 1
            stranger = False
            await self._serve_requests(reader, writer, caller)
        except (OSError, WireError, TimeoutError) as error:
            # What an established peer's death looks like is no refusal; all the rest is.
            if stranger or isinstance(error, WireError):
                log.warning("refused peer %s%s: %s", where, f" ({name})" if name else "", say(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("peer %s (%s) met a fault", where, name)
        finally:
            if stranger:
                self._strangers -= 1
            if writer is not None:
                close(writer)
            else:
                sock.close()

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
            close(writer)        # the read loop meets the end and leaves
            return False

    async def _answer(
        self, writer: asyncio.StreamWriter, caller: Caller, message: Message, work: Callable[[], Awaitable[Any]]
    ) -> bool:
        """Sends the result of work or the sentence of its error; whether it was a result."""
        identity = message.get("id")
        try:
            answer: Message = {"id": identity, "result": await work()}
        except PeerRefused as refusal:
            answer = {"id": identity, "error": {"kind": refusal.kind, "message": str(refusal)}}
        except (FarhomeError, ValueError, TypeError, KeyError, OSError, TimeoutError) as error:
            log.warning("%s of %s failed: %s", str(message.get("method"))[:40], caller.name or caller.address, say(error))
            answer = {"id": identity, "error": {"kind": "failed", "message": say(error)}}
        await write_message(writer, answer)
        return "error" not in answer

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        if self._listener is not None:
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _parameters(message: Message) -> dict[str, Any]:
    parameters = message.get("params", {})
    if not isinstance(parameters, dict):
        raise WireError("the parameters of a request are no map")
    return parameters
