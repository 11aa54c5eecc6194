"""A guest and its stub without engine, sandbox or daemons: what the tests and the bench of the link layer run on.

A program that knows FARHOME_SPLIT (tests/link/guest.c) forks: the parent becomes the stub, traced by this process; the
child the guest, traced by a second Python process (`python -m bench.calls.link_pair`). Between them is real TCP.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from deputy.stub.stub import Stub
from engine.pour.arrival import install_filter
from kernel_helpers.calls.filter import RET_NOTIFY, program
from kernel_helpers.calls.table import Class, row_of
from kernel_helpers.common.pacing import unpaced
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import Event, Kind
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.seizing import seize
from kernel_helpers.process.syscalls import SYS, signed
from kernel_helpers.process.tracing import Cause, Stop
from remote.reference.intercept_ptrace import FILTER_VERDICT, PtraceLink
from wire import channel

ROOT = Path(__file__).resolve().parents[2]
GO_HOME, CANCEL, SIGNAL, PARKED, THREAD_EXITED, PAUSE, UNPAUSE = range(32, 39)


def wait_for(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Polls until the condition holds. Errors: TimeoutError naming what."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.001)


def _pauses(tid: int) -> bool:
    try:
        return int(Path(f"/proc/{tid}/syscall").read_text().split()[0]) in (SYS.pause, SYS.clock_nanosleep, SYS.poll)
    except (OSError, IndexError, ValueError):
        return False


def _tids(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def _stands(pid: int, threads: int) -> bool:
    tids = _tids(pid)
    return len(tids) == threads and all(map(_pauses, tids))


def _child(pid: int) -> int:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


class Pair:
    """A program that runs as a guest with its stub; a context manager. The methods are those of the home side.

    Not `encrypted`: the connection is bare TCP. `willing`: the away side says that it need not be secret; where this process has said so,
    too, its records have a MAC alone.
    """

    def __init__(
        self,
        argv: Sequence[str],
        threads: int = 1,
        away_prefix: Sequence[str] = (),
        host: str = "127.0.0.1",
        directory: str | None = None,
        stdin: int = subprocess.DEVNULL,
        ready: Callable[[], object] = lambda: True,
        interception: str = "notify",
        encrypted: bool = True,
        willing: bool = False,
        through: Callable[[tuple[str, int]], tuple[str, int]] = lambda address: address,
    ) -> None:
        self.process = subprocess.Popen(
            argv, env=os.environ | {"FARHOME_SPLIT": str(threads)}, cwd=directory, stdin=stdin, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = b""
        self.status: int | None = None
        self.events: list[Event] = []
        self.signals: list[int] = []
        self.link: HomeLink | None = None
        self.interception = interception
        self._through = through
        self._secret = os.urandom(32) if encrypted else b""
        self._willing = willing
        self.away: subprocess.Popen[bytes] | None = None
        try:
            self._become_stub(threads, away_prefix, host, ready)
        except BaseException:
            self.close()
            raise

    def _become_stub(self, threads: int, away_prefix: Sequence[str], host: str, ready: Callable[[], object]) -> None:
        pid = self.process.pid
        wait_for(lambda: _child(pid), 5, "the program does not fork")
        self.guest = _child(pid)
        for who in (pid, self.guest):
            wait_for(functools.partial(_stands, who, threads), 5, "no pause()")
        wait_for(ready, 10, "not ready")
        frozen = seize(pid)
        self.link = HomeLink(_tids(self.guest))
        self.stub = Stub.hollow(frozen, self.link)
        self.stub.on_stop = self._handle
        self.stub.memory.give_up()
        self.listener = channel.listen(host)
        host, port = self._through(self.listener.getsockname()[:2])
        self.away = subprocess.Popen(
            [
                *away_prefix,
                sys.executable,
                "-m",
                "bench.calls.link_pair",
                host,
                str(port),
                str(self.guest),
                self.interception,
                self._secret.hex(),
                *(["willing"] if self._willing else []),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
        )
        self.attach()

    def attach(self) -> None:
        """Takes the next connection of the away side."""
        assert self.link is not None
        self.listener.settimeout(10)
        connection, _ = self.listener.accept()
        connection.settimeout(None)
        self.connection = connection.dup()
        self.link.attach(channel.greet(connection, self._secret) if self._secret else connection)

    def break_connection(self) -> None:
        """Shuts the TCP connection down, as a network would, and waits for the next one (the away side connects)."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.connection.close()
        self.attach()

    def step(self, timeout: float = 0.05) -> None:
        """Handles what has happened."""
        assert self.link is not None and self.process.stdout is not None
        stdout = self.process.stdout.fileno()
        ready, _, _ = select.select([self.link.event_fd, stdout], [], [], timeout)
        if stdout in ready:
            self.output += self.process.stdout.read() or b""
        for event in self.link.events():
            self.events.append(event)
            if event.kind == CANCEL:
                self.stub.cancel(event.tid)
        for stop in tracing.poll(list(self.stub.tids)):
            self._handle(stop)
        for tid, _ in self.link.signallers():
            self.link.signals_arrived(tid)

    def _handle(self, stop: Stop) -> None:
        assert self.link is not None
        if stop.cause in (Cause.EXITED, Cause.KILLED):
            self.stub.thread_gone(stop.tid)
            self.link.send(THREAD_EXITED, self.stub.program_tid(stop.tid))
            if stop.tid == self.process.pid:
                self.status = stop.number if stop.cause is Cause.EXITED else -stop.number
                self.process.returncode = self.status
            return
        if stop.cause is Cause.SIGNAL:
            self.signals.append(stop.number)
            self.stub.rewind_interrupted(stop.tid)
            self.link.send(SIGNAL, 0, bytes([stop.number]), barrier=True)
        tracing.proceed(stop.tid)

    def until(self, condition: Callable[[], object], timeout: float, what: str) -> None:
        """step() until the condition holds. Errors: TimeoutError."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}; output so far: {self.output[-500:]!r}, events {self.events[-5:]}")
            self.step()

    def run(self, timeout: float = 60.0) -> tuple[int, bytes]:
        """To the program's end: exit status (negative: signal) and output."""
        self.until(lambda: self.status is not None, timeout, "the program does not end")
        assert self.process.stdout is not None and self.status is not None
        self.output += self.process.stdout.read() or b""
        return self.status, self.output

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything."""
        if self.away is not None:
            assert self.away.stdin is not None
            self.away.stdin.close()
            try:
                self.away.wait(5)
            except subprocess.TimeoutExpired:
                self.away.kill()
                self.away.wait()
            self.listener.close()
        if self.link is not None:
            self.link.close()
        for pid in (getattr(self, "guest", 0), self.process.pid if self.status is None else 0):
            if pid and _tids(pid):
                os.kill(pid, 9)
        if self.status is None:
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class _Away:
    """The away process: the guest's filter, its end of the link, its signals in the plainest way."""

    def __init__(self, host: str, port: int, guest: int, interception: str, secret: str) -> None:
        self.address = (host, port)
        self._secret = bytes.fromhex(secret)
        self.guest = guest
        kind = PtraceLink if interception == "ptrace" else AwayLink
        frozen = seize(guest, tracing.PTRACE_O_EXITKILL | kind.trace_options)
        listener = install_filter(frozen, program(FILTER_VERDICT if kind is PtraceLink else RET_NOTIFY))
        for thread in frozen.threads.values():
            if signed(thread.registers.orig_rax) == SYS.pause:
                thread.registers.rax, thread.registers.orig_rax = (1 << 64) - 4, (1 << 64) - 1  # pause() returns
        self.tids = list(frozen.threads)
        for tid in self.tids:  # a guest runs where its node's processors are, not where it was forked
            os.sched_setaffinity(tid, os.sched_getaffinity(0))
        tids = {tid: tid for tid in self.tids}
        self.link: AwayLink | PtraceLink
        self.link = PtraceLink(guest, tids) if kind is PtraceLink else AwayLink(listener, guest, tids)
        self.pace = 0.001 if kind is PtraceLink else 0.02  # seconds: its calls are stops, which nothing reports
        self.connect()
        frozen.resume()

    def connect(self) -> None:
        try:
            if self._secret:
                self.link.attach(channel.connect(self.address, "link", self._secret))
                return
            connection = socket.socket()
            unpaced(connection)  # as that of a node is
            connection.settimeout(10)
            connection.connect(self.address)
        except OSError:
            return
        connection.settimeout(None)
        self.link.attach(connection)

    def serve(self) -> None:
        """Until standard input is closed."""
        while True:
            ready, _, _ = select.select([self.link.event_fd, 0], [], [], self.pace)
            if 0 in ready:
                return
            for event in self.link.events():
                self.handle(event)
            for stop in tracing.poll(self.tids):
                if self.link.stopped(stop):
                    continue
                if stop.cause in (Cause.EXITED, Cause.KILLED):
                    self.tids.remove(stop.tid)
                elif stop.cause is Cause.SIGNAL:
                    self.link.abandon(stop.tid)
                    tracing.proceed(stop.tid, stop.number)
                else:
                    tracing.proceed(stop.tid)

    def handle(self, event: Event) -> None:
        if event.kind == Kind.CONNECTION_LOST:
            self.connect()
        elif event.kind == Kind.GO_HOME_CALL and row_of(event.code).class_ is Class.RIGHTS:
            self.link.forward(event.tid, event.code, struct.unpack("<6Q", event.data))
        elif event.kind == Kind.GO_HOME_CALL:
            self.link.send(GO_HOME, event.tid, str(event.code).encode())
        elif event.kind == Kind.SUSPENDED:
            if event.tid in self.tids:
                tracing.interrupt(event.tid)
            self.link.answer(event.tid, error=event.code if event.code in syscalls.RESTART_CODES[:3] else -514)
        elif event.kind == SIGNAL:
            os.kill(self.guest, event.data[0])
            for tid in self.link.parked():
                self.link.send(CANCEL, tid)
            self.link.release()
        elif event.kind == THREAD_EXITED:
            self.link.answer(event.tid, proceed=True)
        elif event.kind == UNPAUSE:
            self.link.unpause()
        elif event.kind == PAUSE:
            self.link.pause()
            names = " ".join(f"{tid}:{call.number}:{call.sequence}" for tid, call in self.link.parked().items())
            self.link.send(PARKED, 0, names.encode())


def serve(away: _Away) -> None:
    """Its whole life."""
    try:
        away.serve()
    finally:
        away.link.close()


if __name__ == "__main__":
    if sys.argv[6:] == ["willing"]:
        channel.need_not_be_secret()
    serve(_Away(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6]))

__all__ = ["GO_HOME", "PARKED", "PAUSE", "UNPAUSE", "Pair", "wait_for"]
