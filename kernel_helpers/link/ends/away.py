"""The guest's end of a link: calls of a guest, taken from its filter.

Calls and replies never come to Python; control frames, connection matters and calls that home alone can make do, as events. All methods
are for one Python thread at a time; none but flush(), pause() and close() waits.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

from kernel_helpers.calls.filter import RET_NOTIFY, evaluate
from kernel_helpers.link.ends.direct_files import Direct
from kernel_helpers.link.ends.events import Parked, Part
from kernel_helpers.link.ends.kept_files import KeptFiles
from kernel_helpers.link.ends.native import check, native
from kernel_helpers.link.ends.session import SessionLink
from kernel_helpers.usage.account import Account

AWAITED_MOST = 256
"""Threads that are reported at once."""


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


class Remembered(ctypes.Structure):
    """What needs not be asked home for. names, from_names: how many are known, and calls that they have answered, of all guests here of the
    home's program; from_opens, mapped: calls that were answered by what opens had brought, and mappings of files that are kept, of one."""

    program: int
    names: int
    from_names: int
    from_opens: int
    mapped: int
    _fields_ = [(name, ctypes.c_uint64) for name in ("program", "names", "from_names", "from_opens", "mapped")]


class AwayLink(SessionLink):
    """The guest's end: takes the notifications of its filter from `listener` (a descriptor, which may be closed afterwards; or the end
    of another guest that has the same filter: its parent's).

    `threads`: tid as this process sees it -> tid as the program sees it; all threads of the guest. counts: what they use counts from now
    on, else from account.begin() on.
    """

    def __init__(
        self, listener: int | AwayLink, guest_host_pid: int, threads: dict[int, int], counts: bool = True, old: AwayLink | None = None
    ) -> None:
        """old: of another program of the same process, which is over: this one, of one thread, takes over its session."""
        super().__init__(old is None)
        self.guest_host_pid = guest_host_pid
        if old is not None and not isinstance(listener, AwayLink):
            ((host_tid, program_tid),) = threads.items()
            self._handle = native().away_heir(old.handle, listener, host_tid, program_tid)
            if self._handle:
                self._inherit(old)
        elif isinstance(listener, AwayLink):
            ((host_tid, program_tid),) = threads.items()
            self._handle = native().away_sibling(listener.handle, host_tid, program_tid, self.event_fd)
        else:
            count = len(threads)
            host = (ctypes.c_int * count)(*threads.keys())
            program = (ctypes.c_int * count)(*threads.values())
            self._handle = native().away_new(listener, host, program, count, self.event_fd)
        if not self._handle:
            if self.event_fd >= 0:
                os.close(self.event_fd)
            raise MemoryError("no memory for a link")
        self.account = Account(guest_host_pid, threads, counts)
        """What the guest has used here, and where it was before."""
        native().away_set_account(self._handle, self.account.handle)
        self.direct: Direct | None = None
        """The guest's direct files, where there may be any."""

    def _session(self) -> int:
        return self._there(native().away_session(self.handle))

    def _free(self, handle: int) -> None:
        native().away_free(handle)
        self.account.close()
        if self.direct is not None:
            self.direct.close()

    def has_keys(self) -> None:
        """Say that memory of the guest has protection keys: calls that concern it are its home's. Before the first attach."""
        native().away_has_keys(self.handle)

    def allow_direct(self, eager: int) -> Direct:
        """From now on files can be direct: see Direct. Before the first attach. Errors: MemoryError."""
        self.direct = Direct(eager)
        native().away_set_direct(self.handle, self.direct.handle)
        return self.direct

    def make_direct(self, tid: int, number: int, serial: int, position: int) -> None:
        """The file that was opened for that number is the guest's, from that position (bytes) on; `tid` waits in a call that reads it.
        Errors: OSError (FileNotFoundError: it means something else meanwhile, or nothing is parked)."""
        check(native().away_make_direct(self.handle, tid, number, serial, position), f"descriptor {number}")

    def let_map(self, number: int, size: int) -> None:
        """Let the guest map any part of the file (of `size` bytes) that it has been given as `number`, privately, until it makes a call
        that home or Python deals with."""
        native().away_let_map(self.handle, number, size)

    def keep_files(self, files: KeptFiles) -> None:
        """Let the guest, which stands still, map these files when home has agreed. Twice is no error."""
        native().away_keep_files(self.handle, files.handle)

    def remembered(self) -> Remembered:
        """Return how much of home is known here."""
        found = Remembered()
        native().away_remembered(self.handle, ctypes.byref(found))
        return found

    def awaited(self) -> list[int]:
        """Threads (as this process sees them) that may be in a read which a parked call waits for (BUSY)."""
        room = (ctypes.c_uint32 * AWAITED_MOST)()
        return list(room[: native().away_direct_awaited(self.handle, room, AWAITED_MOST)])

    def has_left(self, host: int) -> None:
        """That thread has stopped: it is in no read of its own."""
        native().away_direct_left(self.handle, host)

    def pause(self) -> None:
        """Takes no more notifications, not even those of others with the same filter; returns when the listener stands, and then every
        call taken is on its way. Calls made meanwhile stay in their notifications, where a stop finds them restartable."""
        native().away_pause(self.handle)

    def unpause(self) -> None:
        native().away_unpause(self.handle)

    def parked(self) -> dict[int, Parked]:
        """tid -> the call that was caught and not answered."""
        room = count = 64
        while count == room:
            room *= 2
            list_ = (_Parked * room)()
            count = native().away_parked(self.handle, list_, room)
        return {p.tid: Parked(p.sequence, p.number, p.state == 1, p.mask if p.has_mask else None) for p in list_[:count]}

    def answer(self, tid: int, value: int = 0, error: int = 0, proceed: bool = False) -> bool:
        """Answers a parked call: with a value, a negative errno or restart code (only when something is pending for the
        thread: otherwise errno 512 reaches the program), or by letting the node's kernel make it. False: none parked."""
        return bool(native().away_answer(self.handle, tid, error or value, int(proceed)) == 0)

    def give_descriptor(self, tid: int, descriptor: int, number: int) -> None:
        """Puts a descriptor of ours into the guest as `number`, in place of what may be there, before it makes the parked call of
        this thread itself. Errors: OSError (FileNotFoundError: nothing is parked; EBADF: a number beyond its limit)."""
        check(native().away_give_descriptor(self.handle, tid, descriptor, number), f"descriptor {number}")

    def forward(self, tid: int, number: int, arguments: Sequence[int], path: bytes | None = None) -> bool:
        """Sends a call home that GO_HOME_CALL has reported, with `path` in place of the one that it names. False: none is parked. Errors:
        OSError E2BIG, it is too big; MemoryError."""
        result = native().away_forward(self.handle, tid, number, (ctypes.c_uint64 * 6)(*arguments), path)
        if result == -errno.ENOENT:
            return False
        if result == -errno.ENOMEM:
            raise MemoryError
        return not check(result, f"call {number}")

    def add_thread(self, host: int, tid: int) -> None:
        """A thread that was born here, before it runs. Errors: OSError, MemoryError."""
        self.account.add_thread(host, tid)
        check(native().away_add_thread(self.handle, host, tid), "a thread")

    def remove_thread(self, host: int, tid: int) -> None:
        """One that has ended."""
        self.account.remove_thread(host, tid)
        native().away_remove_thread(self.handle, host)

    def expect_part(self, part: Part) -> None:
        """Home has made a part of the call that this thread makes first, and makes the rest of it then."""
        native().away_expect_part(self.handle, part.tid, part.number, part.done)

    def part(self, tid: int) -> Part | None:
        """Of the call that this thread makes next home has made a part. None: it has not, or the call has been made."""
        number = ctypes.c_int64()
        done = native().away_part(self.handle, tid, ctypes.byref(number))
        return Part(tid, number.value, int(done)) if done > 0 else None

    def abandon(self, tid: int) -> None:
        """The guest will not make the suspended call of this thread again (a handler ran), nor the rest of one that is half done."""
        check(native().away_abandon(self.handle, tid), "abandon")

    def watch(self, mask: int) -> None:
        """These signals wait at home from now on where the guest's threads block them: who waits for them, waits there."""
        native().away_watch(self.handle, mask)

    trace_options: int = 0
    """Options that the guest's threads need besides the tracer's own (those of remote.intercept_ptrace.PtraceLink do)."""

    def stopped(self, stop: object) -> bool:
        """Whether a ptrace stop of a guest's thread is a call, which never is so here: see PtraceLink."""
        return False

    @staticmethod
    def is_notified(number: int, arguments: tuple[int, ...] = (0, 0, 0, 0, 0, 0)) -> bool:
        """Whether the filter catches this call."""
        return evaluate(number, arguments) == RET_NOTIFY
