"""The Python face of the link layer: HomeLink in a deputy, AwayLink in a remote.

Calls and replies never come to Python; control frames, connection matters and calls that home alone can make do, as
events. All methods are for one Python thread at a time; none but flush(), pause() and close() waits.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Self

from kernel_helpers.calls.filter import RET_NOTIFY, evaluate
from kernel_helpers.calls.table import Shape, row_of
from kernel_helpers.common import library
from kernel_helpers.errors import FarhomeError
from kernel_helpers.link.direct_files import Direct
from kernel_helpers.stream.stream import Connection, given
from kernel_helpers.usage.account import Account

CONTROL_FIRST, CONTROL_LIMIT = 16, 1 << 20
NO_PLACE = 6  # of link.h
HAS_PROCESSORS_TO_SPARE = len(os.sched_getaffinity(0)) >= 4
# Cycles of the time-stamp counter that the resident loop looks on before it sleeps; with few processors that only takes
# them from somebody, and the receiver goes where the loop is.
LOOP_LOOKS = 150_000 if HAS_PROCESSORS_TO_SPARE else 0


AWAITED_MOST = 256
"""Threads that are told of at once."""


class Kind(IntEnum):
    """Kinds of events that the link itself makes. Control frames keep their own kind, which is 16 or more."""

    CONTROL = 1  # never seen: a control frame's event has the frame's kind
    CONNECTION_LOST = 2
    """data: the reason; attach() a new one"""
    SILENT = 3
    """nothing was heard for the time of set_silence()"""
    HEARD = 4
    CONNECTED = 5
    """the other side has said how far it had come: frames flow"""
    GO_HOME_CALL = 6
    """code: the number of a call that only home can make; it stays parked"""
    GUEST_GONE = 7
    """the last thread under the filter has ended"""
    SUSPENDED = 8
    """code: the restart code with which home took a call back; it stays parked until answer(). See also AwayLink.part()"""
    READS = 9
    """a file is read again and again; data: READ"""
    READS_OPEN = 10
    """code: the number of a call that reads a file which is open on the node (direct_files.py), and stays parked; data: READ"""
    BUSY = 11
    """code: the number of a call that stays parked until others have come out of their reads (AwayLink.awaited())"""
    LETS_IN = 12
    """code: the number of a call that was sent home though a signal waits that its mask lets in: it is to be asked back"""


READ = struct.Struct("<4Q")
"""Of READS and READS_OPEN: a descriptor's number, the serial of the question about it, whether the guest has opened it away and shares it
with nobody, whether it is read by calls that name the place."""


@dataclass(frozen=True)
class Event:
    """kind: a Kind, or a control frame's number. tid as the program sees it, 0: none."""

    kind: int
    tid: int
    data: bytes
    code: int = 0


@dataclass(frozen=True)
class Parked:
    """A call that was caught and not answered. sigmask: what it wants blocked while it waits (ppoll and friends; rt_sigtimedwait: all but
    what it waits for)."""

    sequence: int
    number: int
    sent: bool
    """home is at it; otherwise it waits for answer()"""
    sigmask: int | None


@dataclass(frozen=True)
class Part:
    """A call that is half done: the thread (as the program sees it) that makes it again, its number, bytes that are done."""

    tid: int
    number: int
    done: int


class _Event(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("tid", ctypes.c_uint32),
        ("control", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("number", ctypes.c_uint64),
        ("value", ctypes.c_int64),
        ("length", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
    ]


class _Parked(ctypes.Structure):
    _fields_ = [
        ("tid", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("sequence", ctypes.c_uint64),
        ("number", ctypes.c_int64),
        ("mask", ctypes.c_uint64),
        ("has_mask", ctypes.c_uint32),
        ("class_", ctypes.c_uint32),
    ]


class Standing(ctypes.Structure):
    _fields_ = [
        ("sequence", ctypes.c_uint64),
        ("number", ctypes.c_int64),
        ("first", ctypes.c_uint64),
        ("busy", ctypes.c_uint32),
        ("done", ctypes.c_uint32),
    ]  # first: of its arguments


@functools.cache
def _native() -> ctypes.CDLL:
    """The functions of session/, away/ and home/, declared. CDLL lets go of the interpreter while they run."""
    pointer, i, unsigned, u64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint64
    return library.functions(
        ("session_attach", i, [pointer, pointer]),
        ("session_detach", None, [pointer]),
        ("session_release", None, [pointer]),
        ("session_hold", None, [pointer]),
        ("session_set_silence", None, [pointer, i]),
        ("session_flush", i, [pointer, i]),
        ("session_next_event", i, [pointer, pointer, pointer, ctypes.c_uint32]),
        ("session_control", i, [pointer, ctypes.c_uint16, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32]),
        ("session_statistic", u64, [pointer, i]),
        ("away_new", pointer, [i, pointer, pointer, unsigned, i]),
        ("away_session", pointer, [pointer]),
        ("away_sibling", pointer, [pointer, i, i, i]),
        ("away_pause", None, [pointer]),
        ("away_unpause", None, [pointer]),
        ("away_parked", unsigned, [pointer, pointer, unsigned]),
        ("away_add_thread", i, [pointer, i, i]),
        ("away_remove_thread", None, [pointer, i]),
        ("away_forward", i, [pointer, i, i, pointer, ctypes.c_char_p]),
        ("away_answer", i, [pointer, i, ctypes.c_int64, i]),
        ("away_abandon", i, [pointer, i]),
        ("away_expect_part", None, [pointer, i, ctypes.c_int64, ctypes.c_int64]),
        ("away_part", ctypes.c_int64, [pointer, i, pointer]),
        ("away_give_descriptor", i, [pointer, i, i, i]),
        ("away_free", None, [pointer]),
        ("away_set_account", None, [pointer, pointer]),
        ("away_watch", None, [pointer, u64]),
        ("home_keep", i, [pointer, i, u64]),
        ("away_set_direct", None, [pointer, pointer]),
        ("away_make_direct", i, [pointer, i, i, ctypes.c_uint32, ctypes.c_int64]),
        ("away_direct_left", None, [pointer, i]),
        ("away_direct_awaited", unsigned, [pointer, pointer, unsigned]),
        ("home_new", pointer, [pointer, unsigned, i, i, i]),
        ("home_session", pointer, [pointer]),
        ("home_set_stub", None, [pointer, i, u64, ctypes.c_uint32]),
        ("home_expect", i, [pointer, i, i, pointer, unsigned, ctypes.c_int64]),
        ("home_resumable", i, [pointer, i]),
        ("home_deadline", ctypes.c_int64, [pointer, i, i]),
        ("home_keep_time", None, [pointer]),
        ("home_milliseconds_left", ctypes.c_int64, [pointer, i, i]),
        ("home_again", i, [pointer, i, pointer]),
        ("home_signallers", unsigned, [pointer, pointer, unsigned]),
        ("home_told", None, [pointer, i]),
        ("home_hold_places", unsigned, [pointer, i, pointer, unsigned]),
        ("home_slot_offset", u64, [unsigned]),
        ("home_add_thread", i, [pointer]),
        ("home_name_thread", None, [pointer, unsigned, i]),
        ("home_size", u64, [pointer]),
        ("home_renew", i, [pointer]),
        ("home_standing", i, [pointer, i, pointer]),
        ("home_busy", unsigned, [pointer, pointer, unsigned]),
        ("home_block", i, [pointer, i, ctypes.c_uint64]),
        ("home_written", u64, [pointer, i, ctypes.c_uint64]),
        ("home_suspend", i, [pointer, i, ctypes.c_int64]),
        ("home_expect_rest", i, [pointer, i, i, pointer, ctypes.c_uint64]),
        ("home_rest", u64, [pointer, i, pointer]),
        ("home_with_rests", unsigned, [pointer, pointer, unsigned]),
        ("home_suspended", unsigned, [pointer, pointer, unsigned]),
        ("home_statistic", u64, [pointer, i]),
        ("home_free", None, [pointer]),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


class SessionLink:
    """What all ends share: the session."""

    def __init__(self) -> None:
        self.event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when events() has something."""
        self._handle: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _session(self) -> int:
        raise NotImplementedError

    def _free(self, handle: int) -> None:
        raise NotImplementedError

    @property
    def handle(self) -> int:
        """The C object. Errors: FarhomeError after close()."""
        if self._handle is None:
            raise FarhomeError("the link is closed")
        return self._handle

    def attach(self, connection: Connection | int) -> None:
        """Takes over a connection (or a socket's descriptor); one that was there before is given up. Both sides then
        say what they have received, and what the other lacks is sent again. Event: CONNECTED. Errors: OSError: it is closed."""
        _check(_native().session_attach(self._session(), given(connection)), "attach")

    def detach(self) -> None:
        """Gives up the connection. Frames are kept for the next one. Event: CONNECTION_LOST."""
        _native().session_detach(self._session())

    def send(self, kind: int, tid: int = 0, data: bytes = b"", barrier: bool = False) -> None:
        """Queues a control frame, in order with calls and replies. With `barrier` the other side handles nothing that
        follows until its release(). Errors: ValueError, MemoryError."""
        if kind < CONTROL_FIRST or len(data) > CONTROL_LIMIT:
            raise ValueError(f"no control frame: kind {kind}, {len(data)} bytes")
        if _native().session_control(self._session(), kind, int(barrier), tid, data, len(data)):
            raise MemoryError

    def hold(self) -> None:
        """From here on no frame is handled, as behind a barrier, until release(); one that is being handled may still be."""
        _native().session_hold(self._session())

    def release(self) -> None:
        """Ends the hold of one barrier frame, or one hold(); nothing to release is no error."""
        _native().session_release(self._session())

    def events(self) -> list[Event]:
        """What has happened since, in order. Never waits."""
        native = _native()
        found: list[Event] = []
        event, room = _Event(), ctypes.create_string_buffer(4096)
        while True:
            result = native.session_next_event(self._session(), ctypes.byref(event), room, len(room))
            if result == 0:
                return found
            if result < 0:
                room = ctypes.create_string_buffer(event.length)
                continue
            kind = event.control if event.kind == Kind.CONTROL else event.kind
            found.append(Event(kind, event.tid, room.raw[: event.length], event.value))

    def wait(self, timeout: float) -> list[Event]:
        """events(), waiting up to `timeout` seconds for the first one."""
        found = self.events()
        poll = select.poll()
        poll.register(self.event_fd, select.POLLIN)
        if not found and poll.poll(timeout * 1000):
            found = self.events()
        return found

    def flush(self, timeout: float) -> bool:
        """Waits until everything queued was written to the connection."""
        return bool(_native().session_flush(self._session(), int(timeout * 1000)) == 0)

    def set_silence(self, seconds: float) -> None:
        """After how long without any frame SILENT comes (a heartbeat is sent each second); 0: never."""
        _native().session_set_silence(self._session(), int(seconds * 1000))

    @property
    def connected(self) -> bool:
        return bool(_native().session_statistic(self._session(), 3))

    @property
    def kept_bytes(self) -> int:
        """Bytes that would be sent again after a break."""
        return int(_native().session_statistic(self._session(), 0))

    @property
    def carried_bytes(self) -> int:
        """Bytes of all frames, both ways, those that were sent again too."""
        return int(_native().session_statistic(self._session(), 5))

    def close(self) -> None:
        """Ends the threads and the connection. Once is enough, twice is no error."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._free(handle)
            os.close(self.event_fd)


SLOTS = "farhome-slots"
"""The name of the memory that a deputy shares with its stub."""


class HomeLink(SessionLink):
    """The home end: executes calls in the slots of a stub.

    `threads`: the tids of the stub as the program sees them, in the order of the slots. `memfd` is the memory that the
    stub has to map (`size` bytes) at the address told by set_stub().
    """

    MOST_PLACES = 64
    """that hold_places() can tell; more may be in use then"""

    def __init__(self, threads: list[int]) -> None:
        super().__init__()
        self.threads = list(threads)
        self.used_away: list[list[int]] = []
        self.keeps_time = False
        """What the guest has used on the nodes that it has left (usage/account.py)."""
        self.own_files: list[int] = []
        """Numbers of files that it has opened there, and shares with nobody (direct_files.py)."""
        self.stub_pid = 0
        """As told by set_stub()."""
        self.memfd = os.memfd_create(SLOTS, os.MFD_CLOEXEC)
        tids = (ctypes.c_int * len(threads))(*threads)
        self._handle = _native().home_new(tids, len(threads), self.memfd, self.event_fd, not HAS_PROCESSORS_TO_SPARE)
        if not self._handle:
            os.close(self.memfd)
            os.close(self.event_fd)
            raise MemoryError("no memory for a link")

    def _session(self) -> int:
        return int(_native().home_session(self.handle))

    def _free(self, handle: int) -> None:
        _native().home_free(handle)
        os.close(self.memfd)

    def add_thread(self) -> int:
        """The slot (an index) of a thread that is about to be born in the stub; `size` may be more afterwards, and the stub has to
        map all of it. name_thread() comes next. Errors: OSError."""
        return _check(_native().home_add_thread(self.handle), "a slot")

    def name_thread(self, index: int, tid: int) -> None:
        """The slot is that of this thread (as the program sees it), which has not made a call; 0: its thread has ended."""
        _native().home_name_thread(self.handle, index, tid)
        if tid:
            self.threads.append(tid)

    def forget_thread(self, tid: int) -> None:
        """It is not asked for any more."""
        if tid in self.threads:
            self.threads.remove(tid)

    @property
    def size(self) -> int:
        """Bytes of memfd."""
        return int(_native().home_size(self.handle))

    def slot_offset(self, index: int) -> int:
        """Where the slot of threads[index] begins."""
        return int(_native().home_slot_offset(index))

    def set_stub(self, pid: int, address: int, spin: int = LOOP_LOOKS) -> None:
        """Where process `pid` has mapped memfd; how many cycles its loops look on before they sleep. Before the first attach,
        and whenever it moves (no call being under way)."""
        self.stub_pid = pid
        _native().home_set_stub(self.handle, pid, address, spin)

    def renew(self, connection: Connection | int | None = None) -> None:
        """Begins a session with another remote (a hop): numbers start anew, nothing is sent again."""
        _check(_native().home_renew(self.handle), "renew")
        if connection is not None:
            self.attach(connection)

    def busy(self) -> list[int]:
        """tids whose call is under way, or has ended and is yet to be replied to. What is sent once a thread is not among them
        comes after its reply."""
        found = (ctypes.c_uint32 * len(self.threads))()
        count = _native().home_busy(self.handle, found, len(found))
        return [tid for tid in found[:count] if tid in self.threads]

    def standing(self, tid: int) -> Standing:
        """sequence, number, busy (a call was given and not yet replied to), done (it has ended). Errors: OSError."""
        found = Standing()
        _check(_native().home_standing(self.handle, tid, ctypes.byref(found)), f"thread {tid}")
        return found

    def signallers(self) -> list[tuple[int, int]]:
        """Threads whose call may have sent a signal to the process itself, and to which thread of it (0: any). Each is replied to
        after told()."""
        found = (ctypes.c_uint32 * 2 * 16)()
        return [(pair[0], pair[1]) for pair in found[: _native().home_signallers(self.handle, found, len(found))]]

    def told(self, tid: int) -> None:
        """The guest has been told of the signals that this thread's call has sent."""
        _native().home_told(self.handle, tid)

    def block(self, tid: int, mask: int) -> None:
        """The thread, stopped in a call, has been made to block these signals: its loop lets go of them afterwards. Errors: OSError."""
        _check(_native().home_block(self.handle, tid, mask), f"thread {tid}")

    def keep(self, tid: int, mask: int) -> None:
        """The thread, stopped between two calls, has been made to block these signals until told otherwise. Errors: OSError."""
        _check(_native().home_keep(self.handle, tid, mask), f"thread {tid}")

    def written(self, tid: int, more: int = 0) -> int:
        """How many bytes the thread's call has written, the rest of which it makes now; more: of late."""
        return int(_native().home_written(self.handle, tid, more))

    def suspend(self, tid: int, code: int) -> bool:
        """Says to the guest that the call was taken back with this restart code; the caller has the thread out of it.
        False: there is no call any more."""
        return bool(_native().home_suspend(self.handle, tid, code) == 0)

    def expect_restart(self, tid: int, number: int, arguments: Sequence[int], deadline: int = 0) -> None:
        """The stub's thread was interrupted in this call before it left, and its kernel knows the time that is left: when
        the guest makes it as its first call, it goes on. deadline: the kernel does not know it, but the call is to wait until then
        only (CLOCK_MONOTONIC, ns)."""
        place = next((index for index, argument in enumerate(row_of(number).arguments) if argument.shape is Shape.INPLACE), NO_PLACE)
        if place == NO_PLACE and not deadline:
            raise ValueError(f"call {number} cannot be gone on with")
        _check(_native().home_expect(self.handle, tid, number, (ctypes.c_uint64 * 6)(*arguments), place, deadline), "expect")

    def expect_rest(self, tid: int, number: int, arguments: Sequence[int], done: int) -> None:
        """The stub's thread has come out of this call before it left, with so many bytes written: when the guest makes it, the thread
        makes the rest, and the guest gets what both have written."""
        _check(_native().home_expect_rest(self.handle, tid, number, (ctypes.c_uint64 * 6)(*arguments), done), "expect")

    def rest(self, tid: int) -> tuple[int, int]:
        """Which call of the thread the guest is to make again, and how much of it is done; 0: there is none."""
        number = ctypes.c_int64()
        done = _native().home_rest(self.handle, tid, ctypes.byref(number))
        return number.value, int(done)

    def parts(self) -> list[Part]:
        """What is known so of all threads."""
        return [Part(tid, number, done) for tid in self.with_rests() for number, done in [self.rest(tid)] if done]

    def with_rests(self) -> list[int]:
        """Threads of which rest() tells a call."""
        room = (ctypes.c_uint32 * len(self.threads))()
        return list(room[: _native().home_with_rests(self.handle, room, len(room))])

    def suspended(self) -> list[int]:
        """Threads of which resumable() or milliseconds_left() may tell a call."""
        room = (ctypes.c_uint32 * len(self.threads))()
        return list(room[: _native().home_suspended(self.handle, room, len(room))])

    def resumable(self, tid: int) -> int | None:
        """The number of the suspended call that restart_syscall(2), made by this very thread, would go on with even after
        the process has come home; None: there is none."""
        number = _native().home_resumable(self.handle, tid)
        return None if number < 0 else int(number)

    def milliseconds_left(self, tid: int, number: int) -> int | None:
        """How long the suspended call `number` of a thread has still to wait; None: it has no limit that is known."""
        left = _native().home_milliseconds_left(self.handle, tid, number)
        return None if left < 0 else int(left)

    def deadline(self, tid: int, number: int) -> int | None:
        """Until when the suspended call `number` of a thread is to wait (CLOCK_MONOTONIC, ns); None: that is not known."""
        return int(_native().home_deadline(self.handle, tid, number)) or None

    def keep_time(self) -> None:
        """The process's kernel may not go on with sleeps and polls that are suspended: their deadlines are kept. Before the first call."""
        self.keeps_time = True
        _native().home_keep_time(self.handle)

    def again(self, tid: int) -> tuple[int, int] | None:
        """The thread, stopped in its call, is about to make it again: which argument of it is another then, for a part of its time has
        passed, and what; None: none."""
        value = ctypes.c_uint64()
        argument = _native().home_again(self.handle, tid, ctypes.byref(value))
        return None if argument < 0 else (int(argument), value.value)

    def hold_places(self, held: bool) -> list[int]:
        """Pages of the stub in use for such calls; while held, there will be no others."""
        pages = (ctypes.c_uint64 * self.MOST_PLACES)()
        return list(pages[: _native().home_hold_places(self.handle, int(held), pages, len(pages))])

    @property
    def calls(self) -> tuple[int, int]:
        """Calls executed, and how many of them ended while the receiver looked on."""
        native = _native()
        return int(native.home_statistic(self.handle, 0)), int(native.home_statistic(self.handle, 1))


class AwayLink(SessionLink):
    """The guest's end: takes the notifications of its filter from `listener` (a descriptor, which may be closed afterwards; or the end
    of another guest that has the same filter: its parent's).

    `threads`: tid as this process sees it -> tid as the program sees it; all threads of the guest. counts: what they use counts from now
    on, else from account.begin() on.
    """

    def __init__(self, listener: int | AwayLink, guest_host_pid: int, threads: dict[int, int], counts: bool = True) -> None:
        super().__init__()
        self.guest_host_pid = guest_host_pid
        if isinstance(listener, AwayLink):
            ((host_tid, program_tid),) = threads.items()
            self._handle = _native().away_sibling(listener.handle, host_tid, program_tid, self.event_fd)
        else:
            count = len(threads)
            host = (ctypes.c_int * count)(*threads.keys())
            program = (ctypes.c_int * count)(*threads.values())
            self._handle = _native().away_new(listener, host, program, count, self.event_fd)
        if not self._handle:
            os.close(self.event_fd)
            raise MemoryError("no memory for a link")
        self.account = Account(guest_host_pid, threads, counts)
        """What the guest has used here, and where it was before."""
        _native().away_set_account(self._handle, self.account.handle)
        self.direct: Direct | None = None
        """The guest's direct files, where there may be any."""

    def _session(self) -> int:
        return int(_native().away_session(self.handle))

    def _free(self, handle: int) -> None:
        _native().away_free(handle)
        self.account.close()
        if self.direct is not None:
            self.direct.close()

    def allow_direct(self, eager: int) -> Direct:
        """From now on files can be direct: see Direct. Before the first attach. Errors: MemoryError."""
        self.direct = Direct(eager)
        _native().away_set_direct(self.handle, self.direct.handle)
        return self.direct

    def make_direct(self, tid: int, number: int, serial: int, position: int) -> None:
        """The file that was opened for that number is the guest's, from that position (bytes) on; `tid` waits in a call that reads it.
        Errors: OSError (FileNotFoundError: it means something else meanwhile, or nothing is parked)."""
        _check(_native().away_make_direct(self.handle, tid, number, serial, position), f"descriptor {number}")

    def awaited(self) -> list[int]:
        """Threads (as this process sees them) that may be in a read which a parked call waits for (BUSY)."""
        room = (ctypes.c_uint32 * AWAITED_MOST)()
        return list(room[: _native().away_direct_awaited(self.handle, room, AWAITED_MOST)])

    def has_left(self, host: int) -> None:
        """That thread has stopped: it is in no read of its own."""
        _native().away_direct_left(self.handle, host)

    def pause(self) -> None:
        """Takes no more notifications, not even those of others with the same filter; returns when the listener stands, and then every
        call taken is on its way. Calls made meanwhile wait at the door, where a stop finds them restartable."""
        _native().away_pause(self.handle)

    def unpause(self) -> None:
        _native().away_unpause(self.handle)

    def parked(self) -> dict[int, Parked]:
        """tid -> the call that was caught and not answered."""
        room = count = 64
        while count == room:
            room *= 2
            list_ = (_Parked * room)()
            count = _native().away_parked(self.handle, list_, room)
        return {p.tid: Parked(p.sequence, p.number, p.state == 1, p.mask if p.has_mask else None) for p in list_[:count]}

    def answer(self, tid: int, value: int = 0, error: int = 0, proceed: bool = False) -> bool:
        """Answers a parked call: with a value, a negative errno or restart code (only when something is pending for the
        thread: otherwise errno 512 reaches the program), or by letting the node's kernel make it. False: none parked."""
        return bool(_native().away_answer(self.handle, tid, error or value, int(proceed)) == 0)

    def give_descriptor(self, tid: int, descriptor: int, number: int) -> None:
        """Puts a descriptor of ours into the guest as `number`, in place of what may be there, before it makes the parked call of
        this thread itself. Errors: OSError (FileNotFoundError: nothing is parked; EBADF: a number beyond its limit)."""
        _check(_native().away_give_descriptor(self.handle, tid, descriptor, number), f"descriptor {number}")

    def forward(self, tid: int, number: int, arguments: Sequence[int], path: bytes | None = None) -> bool:
        """Sends a call home that GO_HOME_CALL told of, with `path` in place of the one that it names. False: none is parked. Errors:
        OSError E2BIG, it is too big; MemoryError."""
        result = _native().away_forward(self.handle, tid, number, (ctypes.c_uint64 * 6)(*arguments), path)
        if result == -errno.ENOENT:
            return False
        if result == -errno.ENOMEM:
            raise MemoryError
        return not _check(result, f"call {number}")

    def add_thread(self, host: int, tid: int) -> None:
        """A thread that was born here, before it runs. Errors: OSError, MemoryError."""
        self.account.add_thread(host, tid)
        _check(_native().away_add_thread(self.handle, host, tid), "a thread")

    def remove_thread(self, host: int, tid: int) -> None:
        """One that has ended."""
        self.account.remove_thread(host, tid)
        _native().away_remove_thread(self.handle, host)

    def expect_part(self, part: Part) -> None:
        """Home has made a part of the call that this thread makes first, and makes the rest of it then."""
        _native().away_expect_part(self.handle, part.tid, part.number, part.done)

    def part(self, tid: int) -> Part | None:
        """Of the call that this thread makes next home has made a part. None: it has not, or the call has been made."""
        number = ctypes.c_int64()
        done = _native().away_part(self.handle, tid, ctypes.byref(number))
        return Part(tid, number.value, int(done)) if done > 0 else None

    def abandon(self, tid: int) -> None:
        """The guest will not make the suspended call of this thread again (a handler ran), nor the rest of one that is half done."""
        _check(_native().away_abandon(self.handle, tid), "abandon")

    def watch(self, mask: int) -> None:
        """These signals wait at home from now on where the guest's threads block them: who waits for them, waits there."""
        _native().away_watch(self.handle, mask)

    trace_options: int = 0
    """Options that the guest's threads need besides the tracer's own (those of remote.intercept_ptrace.PtraceLink do)."""

    def stopped(self, stop: object) -> bool:
        """Whether a ptrace stop of a guest's thread is a call, which never is so here: see PtraceLink."""
        return False

    @staticmethod
    def is_notified(number: int, arguments: tuple[int, ...] = (0, 0, 0, 0, 0, 0)) -> bool:
        """Whether the filter catches this call."""
        return evaluate(number, arguments) == RET_NOTIFY
