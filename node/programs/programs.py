"""Deputies and remotes as the node daemon sees them: detached programs, each with a unix socket of its own.

They outlive the daemon, which finds their sockets again after a restart.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_helpers.common.errors import FarhomeError
from node.common import process
from node.common.config import Config
from node.common.message_streams import BUFFER, close, read_message
from node.programs.child import Started
from node.programs.forked import PREFIX
from node.programs.hosts import Hosts
from node.programs.zygote import Zygote
from wire import steps
from wire.frames import Message, WireError, encode

APPEAR_TIMEOUT = 40.0
"""Seconds within which a started program must have its socket."""
APPEAR_POLL, APPEAR_LOOK = 0.01, 0.0005
"""Seconds between two attempts to connect, and between two looks whether the socket has appeared."""
KEPT_LOGS = 100
"""Log files of deputies and remotes that are kept; they lie in memory."""
REQUEST_TIMEOUT = 10.0
REMOVAL_PERIOD = 0.2
"""Seconds between two attempts to take a socket away."""

_CREDENTIALS = struct.Struct("3i")
_PASSED_ON = ("PATH", "LANG", "FARHOME_BUILD", "FARHOME_RUN", "FARHOME_STATE", "FARHOME_LOG", steps.VARIABLE)

log = logging.getLogger("mosd.programs")
ROOT = Path(__file__).resolve().parents[2]


class ProgramError(FarhomeError):
    """A deputy or remote did not start, went away or did not answer."""

    exit_code = 75


@dataclass(frozen=True)
class Programs:
    """The commands that start a deputy and a remote."""

    deputy: tuple[str, ...] = (sys.executable, "-P", "-s", "-m", "deputy")
    remote: tuple[str, ...] = (sys.executable, "-P", "-s", "-m", "remote")


zygote = Zygote()
"""The daemon starts it; until then, and should it fail, programs are executed."""
hosts = Hosts(zygote, Config.own_programs)


def environment() -> dict[str, str]:
    """Return what programs are started with."""
    passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    return passed_on | {"PYTHONPATH": str(ROOT)}


async def rehearse(images: Path) -> None:
    """Has CRIU get to know the kernel, so that the first process that moves does not wait for it. No error."""
    await zygote.settled()
    try:
        with open(os.memfd_create("rehearsal", os.MFD_CLOEXEC), "rb") as said:
            ended = asyncio.Event()
            child = await hosts.execute([*PREFIX, "remote.sandbox.rehearsal", str(images), "trial"], said.fileno(), (), environment())
            child.watch(ended.set)
            await ended.wait()
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines() or ["it says nothing"]
    except OSError as error:
        log.warning("no rehearsal of moves: %s", error)
        return
    if child.returncode:
        log.warning("the rehearsal of a move failed: %s", last[-1])


EventHandler = Callable[[Message], None]


class Program:
    """One running deputy or remote and the connection to it."""

    def __init__(self, path: Path, what: str, on_event: EventHandler, on_gone: Callable[[Program], None]) -> None:
        self.path = path
        self.what = what
        self.pid = 0
        """Its process id, as soon as it is connected."""
        self.farewell = ""
        """Why it goes, when that is known: what is said to those who wait for an answer of it."""
        self.gone = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_detached = False
        self._socket: tuple[int, int] | None = None
        self._on_event = on_event
        self._on_gone = on_gone
        self._log: Path | None = None
        self._child: Started | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._sending: socket.socket | None = None
        """The same connection, to write to: what cannot be written must not take with it what is still to be read."""
        self._speaking = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._next = 0

    @classmethod
    async def start(
        cls, argv: Sequence[str], path: Path, log_path: Path, what: str, on_event: EventHandler, on_gone: Callable[[Program], None],
        descriptors: Sequence[int] = (),
    ) -> Program:  # fmt: skip
        """Starts a program in a session of its own and connects to its socket. Errors: ProgramError, OSError."""
        program = cls(path, what, on_event, on_gone)
        path.unlink(missing_ok=True)
        _remove_old_logs(log_path.parent)
        program._log = log_path
        program._child = await hosts.start(argv, log_path, descriptors, environment())
        program._child.watch(program._on_end)
        try:
            await program._connect(APPEAR_TIMEOUT)
        except BaseException:
            program.kill()
            path.unlink(missing_ok=True)  # if it had got that far
            raise
        return program

    @classmethod
    async def attach(cls, path: Path, what: str, on_event: EventHandler, on_gone: Callable[[Program], None]) -> Program:
        """Connects to a program that an earlier daemon started. Errors: ProgramError: nobody is there any more."""
        program = cls(path, what, on_event, on_gone)
        await program._connect(0.0)
        return program

    def _on_end(self) -> None:
        self._ended.set()
        if self._child is not None and self._child.returncode:
            log.warning("%s ended with status %d", self.what, self._child.returncode)
        if self._writer is None:
            self._finish()

    async def _connect(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self.path), limit=BUFFER)
                break
            except OSError as error:
                if self._child is not None and self._child.returncode is not None:
                    raise ProgramError(f"{self.what} ended as soon as it was started: {self.last_words()}") from None
                if loop.time() >= deadline:
                    raise ProgramError(f"{self.what} cannot be reached: {error.strerror or error}") from None
            await self._appear(loop.time() + APPEAR_POLL)
        self._writer, self._sending = writer, socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
        self._sending.setblocking(False)
        self.pid, self._socket = _peer(writer), _identity(self.path)
        self._task = loop.create_task(self._read(reader, writer))

    async def _appear(self, until: float) -> None:
        """Waits until its socket is there, or it has ended, or until then (of the loop): to look costs little, and to connect more."""
        loop = asyncio.get_running_loop()
        while not self.path.exists() and not self._ended.is_set() and loop.time() < until:
            await asyncio.sleep(APPEAR_LOOK)
        if not self._ended.is_set():
            await asyncio.sleep(APPEAR_LOOK)  # it listens a moment after

    def last_words(self) -> str:
        """Return the last line of its log, which says why it ended."""
        try:
            assert self._log is not None
            with open(self._log, "rb") as source:
                source.seek(max(0, source.seek(0, os.SEEK_END) - 4096))
                lines = source.read().decode("utf-8", "replace").split("\n")
            return next(line.strip()[:300] for line in reversed(lines) if line.strip())
        except (OSError, AssertionError, StopIteration):
            return "it says nothing"

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All that the program says is dealt with in the order in which it said it, answers, events and its end."""
        loop = asyncio.get_running_loop()
        try:
            while (message := await read_message(reader)) is not None:
                if "event" in message:
                    # After the tasks that wait for an answer that came before it.
                    loop.call_soon(self._on_event, message)
                    continue
                future = self._waiting.pop(message.get("id", -1), None)
                if future is not None and not future.done():
                    future.set_result(message)
        except (OSError, WireError) as error:
            log.warning("connection to %s: %s", self.what, error)
        finally:
            self._close()
            loop.call_soon(self._finish)

    def _close(self) -> None:
        if self._writer is not None:
            close(self._writer)
        if self._sending is not None:
            with suppress(OSError):
                self._sending.shutdown(socket.SHUT_RDWR)  # who speaks hears of it
            self._hushing = asyncio.get_running_loop().create_task(self._hush(self._sending))

    async def _hush(self, sending: socket.socket) -> None:
        async with self._speaking:
            sending.close()

    def _finish(self) -> None:
        if self.gone.is_set():
            return
        if not self._is_detached:
            self._remove_socket()
        self.gone.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ProgramError(self.farewell or f"{self.what} went away"))
        self._waiting.clear()
        self._on_gone(self)

    def _remove_socket(self, attempts: int = 5) -> None:
        """The program has taken it away itself, unless it was killed; by now another's may be there."""
        if self._socket is None or _identity(self.path) != self._socket:
            return
        stat = process.read_stat(self.pid)
        if stat is None or stat.state in "ZX":
            self.path.unlink(missing_ok=True)
        elif attempts:  # its end takes a moment
            asyncio.get_running_loop().call_later(REMOVAL_PERIOD, self._remove_socket, attempts - 1)

    async def request(self, op: str, timeout: float = REQUEST_TIMEOUT, **fields: Any) -> Message:
        """Return the answer to one request. Errors: ProgramError."""
        if self.gone.is_set():
            raise ProgramError(self.farewell or f"{self.what} is gone")
        self._next += 1
        identity = self._next
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = future
        try:
            async with asyncio.timeout(timeout):
                await self._say({"id": identity, "op": op, **fields})
                return await future
        except TimeoutError:
            raise ProgramError(f"{self.what} did not answer within {timeout:g} s") from None
        except OSError as error:
            raise ProgramError(f"{self.what} cannot be reached: {error.strerror or error}") from None
        finally:
            self._waiting.pop(identity, None)
            if future.done() and not future.cancelled():
                future.exception()  # if the program went away while we still wrote, that has been reported already

    async def _say(self, message: Message) -> None:
        """Errors: OSError."""
        async with self._speaking:
            if self._sending is None or self.gone.is_set():
                raise ConnectionResetError(errno.ECONNRESET, "the connection is closed")
            await asyncio.get_running_loop().sock_sendall(self._sending, encode(message))

    async def wait_gone(self, timeout: float) -> bool:
        """Return whether it has gone within timeout seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self.gone.wait()
        except TimeoutError:
            return False
        return True

    async def status(self, timeout: float) -> int | None:
        """The status that it ends with within timeout seconds; None: it goes on, or is no child of ours, and reports it to nobody."""
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            return None
        return self._child.returncode if self._child is not None else None

    def kill(self) -> None:
        """Ends the program at once, if it is our child."""
        if self._child is not None:
            self._child.kill()

    def detach(self) -> None:
        """Closes the connection; the program goes on."""
        self._is_detached = True
        self._on_gone = lambda _: None
        if self._writer is not None:
            self._close()
            self._task.cancel()
        if self._child is not None:
            self._child.forget()


def _identity(path: Path) -> tuple[int, int] | None:
    """Of a file, for as long as it is there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _peer(writer: asyncio.StreamWriter) -> int:
    """The process at the other end, which has listened there."""
    credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def _remove_old_logs(directory: Path) -> None:
    """Keeps the newest KEPT_LOGS files."""
    logs = list(directory.glob("*.log"))
    if len(logs) > KEPT_LOGS:
        for path in sorted(logs, key=lambda log_file: log_file.stat().st_mtime)[:-KEPT_LOGS]:
            path.unlink(missing_ok=True)
