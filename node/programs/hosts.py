"""How deputies and remotes are started: the first few of each in programs of their own, the rest in programs that they share.

A program of its own is better for who is in it: nothing that befalls another process can befall it. But each costs several MiB that
deputies could share, so beyond a number of them (`own_programs` of the configuration) a new one becomes a thread of a host (wire/host.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgpack

from node.programs.child import Child, Started
from node.programs.forked import PREFIX
from node.programs.priority import put_first
from node.programs.zygote import Zygote
from wire.host import MOST_REQUEST

MOST = 16
"""Trees in one host."""

log = logging.getLogger("mosd.hosts")


class Hosted:
    """A tree in a host: what Child is for a program."""

    def __init__(self, host: Host, number: int) -> None:
        self.returncode: int | None = None
        self._host = host
        self._number = number
        self._on_end: Callable[[], None] | None = None

    def watch(self, on_end: Callable[[], None]) -> None:
        """See node.child.Started."""
        self._on_end = on_end

    def forget(self) -> None:
        """See node.child.Started."""
        self._on_end = None

    def kill(self) -> None:
        """Asks its host to end it."""
        if self.returncode is None:
            self._host.end(self._number)

    def ended(self, status: int) -> None:
        """The host says so."""
        self.returncode = status
        if self._on_end is not None:
            self._on_end()


class Host:
    """One program with several trees."""

    def __init__(self, connection: socket.socket, child: Child) -> None:
        self.trees: dict[int, Hosted] = {}
        self.is_open = True
        self._connection = connection
        self._child = child
        self._next = 0
        child.watch(self._died)
        asyncio.get_running_loop().add_reader(connection, self._hear)

    def start(self, argv: Sequence[str], log_file: int, descriptors: Sequence[int]) -> Hosted:
        """Begins a tree. Errors: OSError."""
        self._next += 1
        request = msgpack.packb({"number": self._next, "argv": list(argv), "numbers": list(descriptors)})
        socket.send_fds(self._connection, [request], [log_file, *descriptors])
        self.trees[self._next] = hosted = Hosted(self, self._next)
        return hosted

    def end(self, number: int) -> None:
        """Asks for the end of one tree. What cannot be asked, as the host has too much to do, is ended with it."""
        if self.is_open:
            try:
                self._connection.send(msgpack.packb({"number": number}))
            except OSError as error:
                log.error("a program of several deputies or remotes is ended: %s", error)
                self._child.kill()

    def _hear(self) -> None:
        try:
            data = self._connection.recv(MOST_REQUEST)
        except OSError:
            data = b""
        if not data:
            self.close()  # it ends; its status says of what
            return
        message = msgpack.unpackb(data)
        hosted = self.trees.pop(int(message["number"]), None)
        if hosted is not None:
            hosted.ended(int(message["status"]))
        if not self.trees:
            self.close()  # it has nothing left, and goes

    def _died(self) -> None:
        self.close()
        if self._child.returncode:
            log.error("a program of %d deputies or remotes ended with status %d", len(self.trees), self._child.returncode)
        for number in list(self.trees):
            self.trees.pop(number).ended(self._child.returncode or 0)

    def close(self) -> None:
        """It gets no more trees, and lives as long as those that it has. Twice is no error."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()

    def forget(self) -> None:
        """The daemon ends."""
        self.close()
        self._child.forget()


class Hosts:
    """All that this daemon has started."""

    def __init__(self, zygote: Zygote, alone: int) -> None:
        self.alone = alone
        """How many deputies, and how many remotes, have a program of their own."""
        self._zygote = zygote
        self._alone: dict[str, set[Child]] = defaultdict(set)
        self._hosts: dict[str, list[Host]] = defaultdict(list)
        self._turn = asyncio.Lock()

    async def start(self, argv: Sequence[str], log_path: Path, descriptors: Sequence[int], environment: Mapping[str, str]) -> Started:
        """Starts what argv says, in a session of its own or as a part of a host; what it says goes to log_path. Errors: OSError."""
        room = argv[4] if tuple(argv[:4]) == PREFIX and len(argv) > 4 else ""
        with _log_file(log_path) as output:
            self._alone[room] = {child for child in self._alone[room] if child.returncode is None}
            if not room or len(self._alone[room]) < self.alone:
                child = await self.execute(argv, output.fileno(), descriptors, environment)
                self._alone[room].add(child)
                return child
            async with self._turn:
                self._hosts[room] = [host for host in self._hosts[room] if host.is_open]
                host = next((host for host in self._hosts[room] if len(host.trees) < MOST), None)
                if host is None:
                    host = await self._new_host(room, log_path.parent, environment)
                    self._hosts[room].append(host)
                return host.start(argv[5:], output.fileno(), descriptors)

    async def execute(self, argv: Sequence[str], output: int, descriptors: Sequence[int], environment: Mapping[str, str]) -> Child:
        """Starts what argv says as a program of its own; what it says goes to `output`. Errors: OSError."""
        child = await self._zygote.spawn(argv, output, descriptors)
        if child is None:
            popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=tuple(descriptors), start_new_session=True,
                cwd="/", env=environment,
            )  # fmt: skip
            popen.returncode = 0  # it is the child's to wait for
            child = Child(popen.pid)
        if tuple(argv[:4]) == PREFIX and argv[4].startswith("deputy"):
            put_first(child.pid)  # until the move is over that it is started for
        return child

    async def _new_host(self, room: str, logs: Path, environment: Mapping[str, str]) -> Host:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        number = theirs.fileno()
        with theirs, _log_file(logs / f"{room}-host.log") as output:
            try:
                child = await self.execute([*PREFIX, f"{room}.host", str(number)], output.fileno(), [number], environment)
            except OSError:
                ours.close()
                raise
        return Host(ours, child)

    def close(self) -> None:
        """The daemon ends; all that it has started goes on."""
        for hosts in self._hosts.values():
            for host in hosts:
                host.forget()
        self._hosts.clear()


def _log_file(path: Path) -> BinaryIO:
    return open(path, "ab", opener=lambda p, flags: os.open(p, flags | os.O_CLOEXEC, 0o600))
