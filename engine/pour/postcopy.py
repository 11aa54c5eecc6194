"""Memory that follows a process which runs already (post-copy): what it writes faster than rounds ahead of it (precopy.py) can carry.

    the source                                            the target
    context {kept, owed: what of it follows}, the rest -->  holds up who touches a page that is owed (a userfaultfd)
    the process stands still here for good                  the process runs
    <------------------- connection of role page ---------  what it lacks; then the pages that somebody waits for
    those first, then all others ------------------------>
    <---------------------------------------- all here ---
    gives its copy up

Who made the link connects: a deputy, or the remote that a guest has left. A connection that breaks is made again, for as long as a
link is; then the process has lost its memory, and ends.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from engine.context.capture import scratch_page
from engine.context.context import Context
from engine.context.marks import holding
from engine.files.handover import give_descriptor, take_descriptor
from engine.mappings.address_space import Maps
from engine.mappings.layout import Span, common, merge, subtract_all
from engine.mappings.mappings import PAGE
from kernel_helpers.common.errors import sentence
from kernel_helpers.postcopy import postcopy
from kernel_helpers.postcopy.postcopy import Given, Sink, State, View, give_pages
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, Registers
from kernel_helpers.stream.stream import Connection
from wire.channel import HELLO_TIMEOUT
from wire.frames import WireError
from wire.logs import start_thread
from wire.patience import STEP, Patience
from wire.waking import ready

LEAST = 8 << 20
"""Bytes that are written again and again: less is sent while the process stands still."""
MOST_RUNS = 512
"""Pieces that are owed, about: each is taken out of the target's memory by a call of its own."""
PROGRESS_TIMEOUT = 15.0
"""Seconds without progress after which a connection is given up."""
RETRY = 0.1
"""Seconds between two attempts to connect."""
SLOW_STEP = HELLO_TIMEOUT + STEP
"""Seconds between two checks, the attempt to connect between them included."""
_STACK = 2 * PAGE
"""Bytes above and below the top of a stack that are used at once."""
_DEVICE = "/dev/userfaultfd"
_NEW = 0xAA00
"""USERFAULTFD_IOC_NEW"""
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_MADV_DONTNEED = 4

log = logging.getLogger("engine.postcopy")


def userfaultfd(frozen: Frozen, page: int = 0) -> int:
    """Return a userfaultfd of a process, all of whose threads are stopped, that holds up the kernel's own accesses, too: ours alone. It may
    be one without any right outside of its user namespace. page: scratch memory in it, if there is some. Errors: OSError: this kernel, or
    this machine, does not have it."""
    try:
        number = frozen.call(SYS.userfaultfd, _FLAGS)
    except PermissionError:
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
        try:
            with nullcontext(page) if page else scratch_page(frozen) as scratch:
                given = give_descriptor(frozen, device, scratch)
        finally:
            os.close(device)
        try:
            number = frozen.call(SYS.ioctl, given, _NEW, _FLAGS)
        finally:
            frozen.call(SYS.close, given)
    try:
        taken = take_descriptor(frozen.pid, number)
    finally:
        frozen.call(SYS.close, number)
    try:
        postcopy.begin(taken)
    except OSError:
        os.close(taken)
        raise
    return taken


def userfaultfd_or_none(frozen: Frozen, page: int = 0) -> int:
    """Return the same; -1, said in the log, if it cannot be."""
    try:
        return userfaultfd(frozen, page)
    except OSError as error:
        log.info("nothing can follow process %d: %s", frozen.pid, error)
        return -1


def must_be_there(context: Context) -> list[Span]:
    """Memory that a process has to have when it begins to run: what the kernel touches in its name while nobody serves it yet, what it
    touches at once, and what is locked (MAP_LOCKED, mlock(2))."""
    found = Maps.of(context.maps).locked()
    for thread in context.threads:
        stack = int(Registers.from_buffer_copy(thread.registers).rsp)
        found.append((stack - _STACK, stack + _STACK))
        for start, size in ((thread.rseq.address, thread.rseq.size), (thread.clear_tid, 8), (thread.robust_list[0], 64)):
            if start:
                found.append((start, start + max(size, 8)))
    return merge((max(start, 0) // PAGE * PAGE, -(-end // PAGE) * PAGE) for start, end in found)


class Giver:
    """The source's side, for a process that stands still for good. connect: makes a connection of role page, if that is ours to do; else
    they come by attach(). patience: seconds that there may be none."""

    def __init__(self, pid: int, patience: float, connect: Callable[[], Connection] | None = None) -> None:
        self.given = Given()
        self.is_over = False
        self.failure = ""
        """why not all pages have been taken, when it is over"""
        self.pid = pid
        self._patience = patience
        self._connect = connect
        self._callers: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def start(self, done: Callable[[], None]) -> None:
        """`done` is called by the worker in the end."""
        start_thread("pages", self._run, done)

    def attach(self, connection: Connection) -> None:
        """A connection of role page."""
        self._callers.put(connection)

    def close(self) -> None:
        """Nobody wants the pages any more."""
        with self._lock:
            if not self.is_over:
                os.eventfd_write(self._stop, 1)
        self._callers.put(None)

    def _run(self, done: Callable[[], None]) -> None:
        begun = time.monotonic()
        try:
            self.failure = self._give()
        except Exception as error:  # reported by the caller that checks
            log.exception("pages of process %d", self.pid)
            self.failure = sentence(error)
        finally:
            log.info("pages of process %d: %d bytes in %.3f s%s", self.pid, self.given.bytes, time.monotonic() - begun,
                     f"; {self.failure}" if self.failure else "")  # fmt: skip
            with self._lock:
                self.is_over = True
                os.close(self._stop)
            while not self._callers.empty():
                connection = self._callers.get()
                if connection is not None:
                    connection.close()
            done()

    def _give(self) -> str:
        """Until all have been taken. Returns why not."""
        patience = Patience(self._patience, time.monotonic(), SLOW_STEP)
        while True:
            connection = self._next(patience)
            if connection is None:
                if ready([self._stop], 0):
                    return ""
                return f"nobody has asked for them for {self._patience:.0f} s"
            with connection:
                try:
                    give_pages(self.pid, connection, PROGRESS_TIMEOUT, self._stop, self.given)
                    return ""
                except OSError as error:
                    if error.errno == errno.ECANCELED:
                        return ""
                    if error.errno in (errno.EFAULT, errno.ESRCH):
                        return sentence(error)
                    log.info("pages of process %d: %s", self.pid, error)
            patience.begin(time.monotonic())

    def _next(self, patience: Patience) -> Connection | None:
        """Another connection, before that is over."""
        while not patience.is_over(time.monotonic()):
            if self._connect is None:
                with suppress(queue.Empty):
                    return self._callers.get(timeout=1.0)
                continue
            try:
                return self._connect()
            except (OSError, WireError) as error:
                log.debug("no connection for pages of process %d: %s", self.pid, error)
            if ready([self._stop], RETRY):
                return None
        return None


class Taker:
    """The target's side. `userfaultfd`: of the process (see there), ours from here on."""

    def __init__(self, pid: int, userfaultfd: int) -> None:
        self.is_over = False
        """all is here, or nothing comes any more"""
        self.failure = ""
        """why the process must not run on, when it is over"""
        self.pid = pid
        self._userfaultfd = userfaultfd
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_looked_after = False
        self._served = threading.Event()
        self._served.set()
        try:
            self._sink: Sink | None = Sink(pid, userfaultfd, self._changed)
        except BaseException:
            os.close(self._changed)
            raise

    def guard(self, areas: Sequence[Span]) -> None:
        """Areas, each one mapping of a process that does not run the program yet: who touches a page that is missing there waits from now
        on until we have seen to it. Errors: OSError."""
        assert self._sink is not None
        for area in areas:
            self._sink.register(area)
        self._served.clear()
        start_thread("missing pages", self._serve)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The userfaultfd, by which another thread can put pages into the areas."""
        with self._lock:
            taken = os.dup(self._userfaultfd) if self._sink is not None else -1
        try:
            yield taken
        finally:
            if taken >= 0:
                os.close(taken)

    def owe(self, frozen: Frozen, owed: Sequence[Span]) -> None:
        """From now on the pages `owed`, in the areas, are missing in the process, which stands still, and follow. Errors: OSError."""
        assert self._sink is not None
        for start, end in owed:
            frozen.call(SYS.madvise, start, end - start, _MADV_DONTNEED)
        self._sink.owe(owed)

    def _serve(self) -> None:
        assert self._sink is not None
        try:
            self._sink.serve()
        finally:
            self._served.set()

    def attach(self, connection: Connection) -> None:
        """A connection of role page, by which they come."""
        connection.settimeout(None)
        with self._lock:
            if self._sink is not None and not self._is_closed:
                self._sink.attach(connection)
                return
        connection.close()

    def start(self, patience: float, done: Callable[[], None], connect: Callable[[], Connection] | None = None) -> None:
        """Looks after it until all is here. patience: seconds without a connection; connect: as a Giver's; `done` is called in the end."""
        self._is_looked_after = True
        start_thread("pages", self._look_after, patience, done, connect)

    def _look_after(self, patience: float, done: Callable[[], None], connect: Callable[[], Connection] | None) -> None:
        begun = next_attempt = time.monotonic()
        alone = Patience(patience, begun, SLOW_STEP)
        while (view := self._look()) is not None and view.state is State.SERVING:
            now = time.monotonic()
            if view.connected:
                alone.begin(now)
            elif alone.is_over(now):
                self.failure = f"{view.left >> 10} KiB of its memory have not come, and nobody who has them was heard for {patience:.0f} s"
                break
            elif connect is not None and now >= next_attempt:
                next_attempt = now + RETRY
                try:
                    self.attach(connect())
                    continue
                except ConnectionRefusedError:
                    self.failure = f"{view.left >> 10} KiB of its memory have not come, and nobody has them any more"
                    break
                except (OSError, WireError) as error:
                    log.debug("no connection for pages of process %d: %s", self.pid, error)
            if ready([self._changed], RETRY if connect is not None and not view.connected else 1.0):
                with suppress(BlockingIOError):
                    os.eventfd_read(self._changed)
        if view is not None:
            if view.state is State.FAILED:
                self.failure = f"a page could not be put into it: {os.strerror(view.error)}"
            log.info("process %d: %d bytes of pages followed it in %.3f s, %d times somebody waited%s", self.pid, view.bytes,
                     time.monotonic() - begun, view.faults, f"; {self.failure}" if self.failure else "")  # fmt: skip
            if view.state in (State.ALL_CAME, State.GONE):
                self.close()
        with self._lock:
            self._is_looked_after = False
            self._close_event()
        self.is_over = True
        done()

    def _look(self) -> View | None:
        """None: it has been closed."""
        with self._lock:
            return self._sink.poll() if self._sink is not None and not self._is_closed else None

    @property
    def left(self) -> int:
        """Bytes that have not come."""
        with self._lock:
            return self._sink.poll().left if self._sink is not None else 0

    def close(self) -> None:
        """The process has ended, or never runs: threads that wait for a page get zeros. Twice is no error."""
        with self._lock:
            self._is_closed = True
            if self._sink is not None:
                self._sink.close()
        self._free()

    def _free(self) -> None:
        self._served.wait()
        with self._lock:
            sink, self._sink = self._sink, None
            if sink is not None:
                sink.free()
            self._close_event()

    def _close_event(self) -> None:
        """When nobody writes there any more, nor waits."""
        if self._sink is None and not self._is_looked_after and self._changed >= 0:
            os.close(self._changed)
            self._changed = -1


def owed(pieces: Iterable[Span], kept: Sequence[Span], context: Context) -> list[Span]:
    """Return those of pieces (sorted, apart) that are kept, and may follow. Nothing follows into a mapping that has guards: a userfaultfd
    does not report that a guard is made or taken away, and a page that came after both would hold what the program has thrown away."""
    follows = [part for piece in pieces for part in common(piece, kept)]
    return subtract_all(merge(follows), merge([*must_be_there(context), *holding(context.maps, context.guards)]))
