"""The socket of the commands: the kernel reports the caller (SO_PEERCRED), and may do to a process what kill would let him."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.leaving.permission import Owner, owner_of_user
from kernel_helpers.common.errors import FarhomeError
from node.common.message_streams import BUFFER, close, read_message, write_message
from node.requests.caller import Caller
from wire.frames import Message, WireError

CONNECTIONS = 512
"""When there are so many, who comes takes the place of one that asks nothing of the user who has the most."""
CONNECTIONS_OF_USER = 128
REQUEST = 1 << 16
"""Bytes of a request: all that begin one and do not end it hold no more memory than that each."""
IDLE_TIMEOUT = 60.0
"""Seconds within which a client that is connected must ask something."""

log = logging.getLogger("mosd.control")

EX_USAGE, EX_NOPERM, EX_FAULT = 64, 77, 70


class NotPermitted(FarhomeError):
    """The user may not do that."""

    exit_code = EX_NOPERM


class BadRequest(FarhomeError):
    """The request makes no sense."""

    exit_code = EX_USAGE


@dataclass(frozen=True)
class Client:
    """Who is at the other end of a connection. closed is set when it has hung up. caller: the process that has connected; None: another
    node or a daemon's own thread asks."""

    pid: int
    uid: int
    closed: asyncio.Event
    caller: Caller | None = field(default=None, compare=False)

    @property
    def owner(self) -> Owner:
        """Whose rights it has."""
        return self.caller.owner if self.caller is not None else owner_of_user(self.uid)

    def require_root(self) -> None:
        """Errors: NotPermitted."""
        if self.uid != 0:
            raise NotPermitted("only root may do that")

    def may_act_on(self, uid: int) -> bool:
        """Return whether kill would let it signal that user's process."""
        return self.uid in (0, uid)


Handler = Callable[[Client, str, dict[str, Any]], Awaitable[dict[str, Any]]]


class ControlServer:
    """Listens for commands; each request is answered in order on its connection."""

    def __init__(self, path: Path, handle: Handler) -> None:
        self._path = path
        self._handle = handle
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_user: dict[int, dict[asyncio.Task[Any], bool]] = {}
        """Connections of each user, the oldest first, and whether they have asked something that is not answered yet."""

    async def start(self) -> None:
        """Listens. Errors: OSError."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(str(self._path))
        os.chmod(self._path, 0o666)
        listener.setblocking(False)
        self._server = await asyncio.start_unix_server(self._connected, sock=listener, limit=BUFFER, backlog=256)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = writer.get_extra_info("socket")
        try:
            caller = Caller.of(connection)
        except OSError as error:
            log.debug("a client is not known: %s", error)
            close(writer)
            return
        pid, uid = caller.pid, caller.owner.uid
        if len(self._by_user.get(uid, ())) >= CONNECTIONS_OF_USER or (len(self._tasks) >= CONNECTIONS and not self._make_room(uid)):
            caller.close()
            close(writer)
            return
        self._tasks.add(task)
        mine = self._by_user.setdefault(uid, {})
        mine[task] = False
        client = Client(pid, uid, asyncio.Event(), caller)
        try:
            while (message := await read_message(reader, REQUEST, IDLE_TIMEOUT)) is not None:
                mine[task] = True
                await write_message(writer, await self._answer(client, message))
                mine[task] = False
        except (OSError, WireError, TimeoutError) as error:
            log.debug("client %d: %s", pid, error)
        finally:
            client.closed.set()
            caller.close()
            self._tasks.discard(task)
            mine.pop(task, None)
            if not mine and self._by_user.get(uid) is mine:
                del self._by_user[uid]
            close(writer)

    def _make_room(self, uid: int) -> bool:
        """Hangs up on somebody of whom there are more than of that user; whether there was one."""
        if not self._by_user:
            return False
        greatest = max(self._by_user.values(), key=len)
        if len(greatest) <= len(self._by_user.get(uid, ())) + 1:
            return False
        idle = next((task for task, asks in greatest.items() if not asks), None)
        if idle is None:
            return False
        del greatest[idle]
        self._tasks.discard(idle)
        idle.cancel()
        return True

    async def _answer(self, client: Client, message: Message) -> Message:
        identity, operation = message.pop("id", None), message.pop("op", None)
        try:
            result = await self._handle(client, str(operation)[:40], message)
            answer: Message = {"ok": True, **result}
        except FarhomeError as error:
            answer = {"ok": False, "error": str(error), "code": error.exit_code}
        except (TypeError, ValueError, KeyError) as error:
            answer = {"ok": False, "error": f"the request makes no sense: {error}", "code": EX_USAGE}
        except OSError as error:
            answer = {"ok": False, "error": f"{error.filename or 'mosd'}: {error.strerror or error}", "code": 75}
        except Exception as error:
            log.exception("operation %s met a fault", operation)
            answer = {"ok": False, "error": f"mosd met a fault: {error}", "code": EX_FAULT}
        if identity is not None:
            answer["id"] = identity
        return answer

    async def close(self) -> None:
        """Stops listening and hangs up."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        self._path.unlink(missing_ok=True)
