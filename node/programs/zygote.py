"""Deputies and remotes without the time that a Python interpreter takes to start: forked from a process that has all they need.

The node daemon keeps one such process. What it forks becomes the daemon's own child (CLONE_PARENT), in a session of its own, with
descriptors, environment and command line as if it had been executed; it outlives both. The process ends when the daemon does; what it
does, node/programs/forked.py shows.

    daemon  -- one datagram: msgpack {"argv": [...], "numbers": [...]}, with the descriptors, the log first -->  zygote
            <-- the child's process id, or -errno -----------------------------------------------------------
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import subprocess
from collections.abc import Sequence

import msgpack

from node.programs.child import Child
from node.programs.forked import PID, PREFIX, ROOMS, TITLE_BYTES

ANSWER_TIMEOUT = 15.0
"""Seconds, which only a process that is stuck takes: what a busy one forks later is nobody's."""
AGAIN = 10.0
"""Seconds until there is another one, if one is lost. Meanwhile programs are executed in the plain way."""

log = logging.getLogger("mosd.zygote")


class Zygote:
    """The daemon's side. Without start(), and whenever something is wrong with it, spawn() returns None."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: Child | None = None
        self._forked: tuple[int, socket.socket] | None = None
        self._turn = asyncio.Lock()
        self._ready = False
        self._settled = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None

    def take(self, forked: tuple[int, socket.socket]) -> None:
        """Has start() begin with a process that has been forked already (node/programs/forked.py)."""
        self._forked = forked

    def start(self, environment: dict[str, str]) -> None:
        """Starts the process, which is of use as soon as it has read its modules; and another one, if that is lost. Errors: OSError."""
        self._environment = environment
        self._settled.clear()
        forked, self._forked = self._forked, None
        pid, ours = forked if forked is not None else self._execute(environment)
        self._process, self._socket = Child(pid), ours
        ours.setblocking(False)
        with contextlib.suppress(OSError):  # it has ended: that is heard below
            ours.send(msgpack.packb(environment))
        asyncio.get_running_loop().add_reader(ours, self._on_ready)

    @staticmethod
    def _execute(environment: dict[str, str]) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [*PREFIX, "node.programs.forked", str(theirs.fileno()), " " * TITLE_BYTES], stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True, cwd="/", env=environment,
            )  # fmt: skip
        process.returncode = 0  # it is the child's to wait for
        return process.pid, ours

    async def settled(self) -> None:
        """Waits until it is of use, or it is known that it will not be."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._settled.wait()

    def _on_ready(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket)
        try:
            self._ready = self._socket.recv(PID.size) == PID.pack(0)
        except OSError:
            self._ready = False
        self._settled.set()
        if not self._ready:
            log.warning("programs are started the slow way: the process to fork them from did not start")

    async def spawn(self, argv: Sequence[str], log_file: int, descriptors: Sequence[int]) -> Child | None:
        """Starts what would be executed with argv; standard output and error go to log_file. None: execute it."""
        if not self._ready or self._socket is None or tuple(argv[:4]) != PREFIX or len(argv) < 5 or argv[4] not in ROOMS:
            return None
        request = msgpack.packb({"argv": list(argv), "numbers": list(descriptors)})
        try:
            async with self._turn, asyncio.timeout(ANSWER_TIMEOUT):
                socket.send_fds(self._socket, [request], [log_file, *descriptors])
                answer = await asyncio.get_running_loop().sock_recv(self._socket, PID.size)
            (pid,) = PID.unpack(answer)
        except (OSError, TimeoutError, struct.error) as error:
            if self._socket is not None:  # else somebody else has found it out
                log.warning("programs are started the slow way for a while: %s", error or "no answer")
                self.close()
                self._again = asyncio.get_running_loop().call_later(AGAIN, self._start_again)
            return None
        if pid < 0:
            log.warning("a program could not be forked: %s", os.strerror(-pid))
            return None
        return Child(pid)

    def _start_again(self) -> None:
        try:
            self.start(self._environment)
        except OSError as error:
            log.warning("programs are started the slow way: %s", error)

    def close(self) -> None:
        """Ends the process; what it forked goes on. Safe to call twice."""
        self._ready = False
        if self._again is not None:
            self._again.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._forked is not None:
            self._forked[1].close()
            self._process, self._forked = Child(self._forked[0]), None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
