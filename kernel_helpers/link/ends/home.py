"""The home end of a link: calls of a guest, made by its stub.

Calls and replies never come to Python; control frames, connection matters and calls that home alone can make do, as events. All methods
are for one Python thread at a time; none but flush() waits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import ClassVar

from kernel_helpers.calls.table import Shape, row_of
from kernel_helpers.link.ends.events import Part
from kernel_helpers.link.ends.native import check, native
from kernel_helpers.link.ends.session import SessionLink
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.stream.stream import Connection

NO_PLACE = 6  # of link.h
EFFECT_CLOSE = 2  # of link.h
HAS_PROCESSORS_TO_SPARE = len(os.sched_getaffinity(0)) >= 4
# Cycles of the time-stamp counter that the resident loop spins before it sleeps; with few processors that only takes
# them from somebody, and the receiver goes where the loop is.
LOOP_SPINS = 150_000 if HAS_PROCESSORS_TO_SPARE else 0


class _Effect(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint32), ("descriptor", ctypes.c_int32), ("position", ctypes.c_int64)]


class Standing(ctypes.Structure):
    _fields_ = [
        ("sequence", ctypes.c_uint64),
        ("number", ctypes.c_int64),
        ("first", ctypes.c_uint64),
        ("busy", ctypes.c_uint32),
        ("done", ctypes.c_uint32),
    ]  # first: of its arguments


class Aside(ctypes.Structure):
    """A file that a loop has mapped aside: all of it, by the key of know_file(). address, length: in the stub, bytes."""

    address: int
    length: int
    key: int
    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_uint64), ("key", ctypes.c_uint64)]


_MOST_ASIDES = 512  # of home/files/aside.h

SLOTS = "farhome-slots"
"""The name of the memory that a deputy shares with its stub."""


class HomeLink(SessionLink):
    """The home end: executes calls in the slots of a stub.

    `threads`: the tids of the stub as the program sees them, in the order of the slots. `memfd` is the memory that the
    stub has to map (`size` bytes) at the address of set_stub().
    """

    carries: ClassVar[bool] = True
    """Whether replies to opens carry the answers to what is asked next."""
    remembers: ClassVar[bool] = True
    """Whether replies say about names what nodes may remember."""
    runs_ahead: ClassVar[bool] = True
    """Whether replies say that nodes may answer further writes."""
    MOST_PLACES = 64
    """that hold_places() can return; more may be in use then"""

    def __init__(self, threads: list[int], memory: int = -1, has_session: bool = True) -> None:
        """memory: a descriptor of empty memory that can be shared, which is the link's from here on; -1: it makes one. has_session: else
        it has none before inherit()."""
        super().__init__(has_session)
        self.threads = list(threads)
        self.used_away: list[list[int]] = []
        self.keeps_time = False
        """What the guest has used on the nodes that it has left (usage/account.py)."""
        self.own_files: list[int] = []
        """Numbers of files that it has opened there, and shares with nobody (direct_files.py)."""
        self.stub_pid = 0
        """Of set_stub()."""
        self.memfd = memory if memory >= 0 else os.memfd_create(SLOTS, os.MFD_CLOEXEC)
        tids = (ctypes.c_int * len(threads))(*threads)
        self._handle = native().home_new(tids, len(threads), self.memfd, self.event_fd, not HAS_PROCESSORS_TO_SPARE)
        if not self._handle:
            os.close(self.memfd)
            if has_session:
                os.close(self.event_fd)
            raise MemoryError("no memory for a link")
        if not self.carries:
            native().home_carry_not(self._handle)
        if not self.remembers:
            native().home_remember_not(self._handle)
        if not self.runs_ahead:
            native().home_ahead_not(self._handle)

    def _session(self) -> int:
        return self._there(native().home_session(self.handle))

    def _free(self, handle: int) -> None:
        native().home_free(handle)
        os.close(self.memfd)

    def inherit(self, old: HomeLink) -> None:
        """Takes over the session of another program of the same process, which is over; frames that were sent stay sent."""
        native().home_inherit(self.handle, old.handle)
        self._inherit(old)

    def add_thread(self) -> int:
        """The slot (an index) of a thread that is about to be born in the stub; `size` may be more afterwards, and the stub has to
        map all of it. name_thread() comes next. Errors: OSError."""
        return check(native().home_add_thread(self.handle), "a slot")

    def name_thread(self, index: int, tid: int) -> None:
        """The slot is that of this thread (as the program sees it), which has not made a call; 0: its thread has ended."""
        native().home_name_thread(self.handle, index, tid)
        if tid:
            self.threads.append(tid)

    def forget_thread(self, tid: int) -> None:
        """It is not asked for any more."""
        if tid in self.threads:
            self.threads.remove(tid)

    @property
    def size(self) -> int:
        """Bytes of memfd."""
        return int(native().home_size(self.handle))

    @staticmethod
    def size_for(threads: int) -> int:
        """Bytes of memfd for so many threads."""
        return int(native().home_slot_offset(threads))

    def slot_offset(self, index: int) -> int:
        """Where the slot of threads[index] begins."""
        return int(native().home_slot_offset(index))

    def set_stub(self, pid: int, address: int, spin: int = LOOP_SPINS) -> None:
        """Where process `pid` has mapped memfd; how many cycles its loops spin before they sleep. Before the first attach,
        and whenever it moves (no call being under way)."""
        self.stub_pid = pid
        native().home_set_stub(self.handle, pid, address, spin)

    def renew(self, connection: Connection | int | None = None) -> None:
        """Begins a session with another remote (a hop): numbers start anew, nothing is sent again."""
        check(native().home_renew(self.handle), "renew")
        if connection is not None:
            self.attach(connection)

    def busy(self) -> list[int]:
        """tids whose call is under way, or has ended and is yet to be replied to. What is sent once a thread is not among them
        comes after its reply."""
        found = (ctypes.c_uint32 * len(self.threads))()
        count = native().home_busy(self.handle, found, len(found))
        return [tid for tid in found[:count] if tid in self.threads]

    def standing(self, tid: int) -> Standing:
        """sequence, number, busy (a call was given and not yet replied to), done (it has ended). Errors: OSError."""
        found = Standing()
        check(native().home_standing(self.handle, tid, ctypes.byref(found)), f"thread {tid}")
        return found

    def signallers(self) -> list[tuple[int, int]]:
        """Threads whose call may have sent a signal to the process itself, and to which thread of it (0: any). Each is replied to
        after signals_arrived()."""
        found = (ctypes.c_uint32 * 2 * 16)()
        return [(pair[0], pair[1]) for pair in found[: native().home_signallers(self.handle, found, len(found))]]

    def put_value(self, tid: int, value: int) -> None:
        """The call of one of the signallers(), if it has not failed, answers this in place of what home's kernel has. Errors: OSError."""
        check(native().home_put_value(self.handle, tid, value), f"thread {tid}")

    def signals_arrived(self, tid: int) -> None:
        """The guest has got the signals that this thread's call has sent."""
        native().home_signals_arrived(self.handle, tid)

    def block(self, tid: int, mask: int) -> None:
        """The thread, stopped in a call, has been made to block these signals: its loop lets go of them afterwards. Errors: OSError."""
        check(native().home_block(self.handle, tid, mask), f"thread {tid}")

    def keep(self, tid: int, mask: int) -> None:
        """The thread, stopped between two calls, has been made to block these signals until keep() says otherwise. Errors: OSError."""
        check(native().home_keep(self.handle, tid, mask), f"thread {tid}")

    def take_effect(self, tid: int) -> tuple[int, tuple[int, ...]] | None:
        """A call (number, arguments) that the stopped thread was still to make for one that was answered on the node: the caller
        makes it."""
        effect = _Effect()
        if not native().home_take_effect(self.handle, tid, ctypes.byref(effect)):
            return None
        if effect.kind == EFFECT_CLOSE:
            return SYS.close, (effect.descriptor,)
        return SYS.lseek, (effect.descriptor, effect.position, os.SEEK_SET)

    @property
    def has_written(self) -> bool:
        """Whether no thread is in the midst of writes that were answered on the node, which nobody else can make."""
        return bool(native().home_has_written(self.handle))

    def map_aside(self, address: int) -> None:
        """Let the stub's loops map known files aside as they open them, from that address on. Before the first connection."""
        native().home_map_aside(self.handle, address)

    def take_asides(self) -> tuple[list[Aside], int]:
        """Return what they have mapped since the last time, and where the next file would go."""
        found, after = (Aside * _MOST_ASIDES)(), ctypes.c_uint64()
        count = native().home_take_asides(self.handle, found, _MOST_ASIDES, ctypes.byref(after))
        return list(found[:count]), after.value

    def know_file(self, descriptor: int, key: int) -> None:
        """From now on the open file is known by that key to all processes of this program; this one has it mapped aside. Errors:
        OSError."""
        check(native().home_know_file(self.handle, descriptor, key), "a file")

    @staticmethod
    def forget_file(key: int) -> None:
        """No loop of this program maps that file any more."""
        native().aside_forget(key)

    def written(self, tid: int, more: int = 0) -> int:
        """How many bytes the thread's call has written, the rest of which it makes now; more: of late."""
        return int(native().home_written(self.handle, tid, more))

    def suspend(self, tid: int, code: int) -> bool:
        """Says to the guest that the call was taken back with this restart code; the caller has the thread out of it.
        False: there is no call any more."""
        return bool(native().home_suspend(self.handle, tid, code) == 0)

    def expect_restart(self, tid: int, number: int, arguments: Sequence[int], deadline: int = 0) -> None:
        """The stub's thread was interrupted in this call before it left, and its kernel knows the time that is left: when
        the guest makes it as its first call, it goes on. deadline: the kernel does not know it, but the call is to wait until then
        only (CLOCK_MONOTONIC, ns)."""
        place = next((index for index, argument in enumerate(row_of(number).arguments) if argument.shape is Shape.INPLACE), NO_PLACE)
        if place == NO_PLACE and not deadline:
            raise ValueError(f"call {number} cannot be gone on with")
        check(native().home_expect(self.handle, tid, number, (ctypes.c_uint64 * 6)(*arguments), place, deadline), "expect")

    def expect_rest(self, tid: int, number: int, arguments: Sequence[int], done: int) -> None:
        """The stub's thread has come out of this call before it left, with so many bytes written: when the guest makes it, the thread
        makes the rest, and the guest gets what both have written."""
        check(native().home_expect_rest(self.handle, tid, number, (ctypes.c_uint64 * 6)(*arguments), done), "expect")

    def rest(self, tid: int) -> tuple[int, int]:
        """Which call of the thread the guest is to make again, and how much of it is done; 0: there is none."""
        number = ctypes.c_int64()
        done = native().home_rest(self.handle, tid, ctypes.byref(number))
        return number.value, int(done)

    def parts(self) -> list[Part]:
        """What is known so of all threads."""
        return [Part(tid, number, done) for tid in self.with_rests() for number, done in [self.rest(tid)] if done]

    def with_rests(self) -> list[int]:
        """Threads of which rest() returns a call."""
        room = (ctypes.c_uint32 * len(self.threads))()
        return list(room[: native().home_with_rests(self.handle, room, len(room))])

    def suspended(self) -> list[int]:
        """Threads of which resumable() or milliseconds_left() may return a call."""
        room = (ctypes.c_uint32 * len(self.threads))()
        return list(room[: native().home_suspended(self.handle, room, len(room))])

    def resumable(self, tid: int) -> int | None:
        """The number of the suspended call that restart_syscall(2), made by this very thread, would go on with even after
        the process has come home; None: there is none."""
        number = native().home_resumable(self.handle, tid)
        return None if number < 0 else int(number)

    def milliseconds_left(self, tid: int, number: int) -> int | None:
        """How long the suspended call `number` of a thread has still to wait; None: it has no limit that is known."""
        left = native().home_milliseconds_left(self.handle, tid, number)
        return None if left < 0 else int(left)

    def deadline(self, tid: int, number: int) -> int | None:
        """Until when the suspended call `number` of a thread is to wait (CLOCK_MONOTONIC, ns); None: that is not known."""
        return int(native().home_deadline(self.handle, tid, number)) or None

    def keep_time(self) -> None:
        """The process's kernel may not go on with sleeps and polls that are suspended: their deadlines are kept. Before the first call."""
        self.keeps_time = True
        native().home_keep_time(self.handle)

    def again(self, tid: int) -> tuple[int, int] | None:
        """The thread, stopped in its call, is about to make it again: which argument of it is another then, for a part of its time has
        passed, and what; None: none."""
        value = ctypes.c_uint64()
        argument = native().home_again(self.handle, tid, ctypes.byref(value))
        return None if argument < 0 else (int(argument), value.value)

    def hold_places(self, held: bool) -> list[int]:
        """Pages of the stub in use for such calls; while held, there will be no others."""
        pages = (ctypes.c_uint64 * self.MOST_PLACES)()
        return list(pages[: native().home_hold_places(self.handle, int(held), pages, len(pages))])

    @property
    def calls(self) -> tuple[int, int]:
        """Calls executed, and how many of them ended while the receiver spun."""
        functions = native()
        return int(functions.home_statistic(self.handle, 0)), int(functions.home_statistic(self.handle, 1))
