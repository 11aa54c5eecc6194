"""What waits for a process, put into the queues of the stub that becomes it: before what has come to that meanwhile, for it is older."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.context.capture import inner_tid, scratch_page
from engine.context.checked import SIGINFO_BYTES
from engine.context.context import Context
from engine.signals.pending import Pending, any_number, is_over, queue, settled, take
from engine.signals.ticks import merged
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, Registers
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import signal_number

_SIGINFO_KERNEL = 48  # bytes of siginfo_t that the kernel keeps
_WITH_MASK = frozenset({
    SYS.rt_sigsuspend, SYS.rt_sigtimedwait, SYS.ppoll, SYS.pselect6, SYS.epoll_pwait, SYS.epoll_pwait2, SYS.io_pgetevents,
})  # fmt: skip


@dataclass(frozen=True)
class _Item:
    """A signal that was queued by `thread` to itself, or to its process."""

    thread: Thread
    info: bytes
    shared: bool


class Queued:
    """In one stub that stands still. threads: by their ids as the program sees them. Threads queue to themselves: only so may a signal bear
    any si_code. All of them block everything meanwhile."""

    def __init__(self, stub: Frozen, threads: Mapping[int, Thread]) -> None:
        self._stub = stub
        self._threads = threads
        self._items: list[_Item] = []
        self._came: Pending = []

    def put(self, context: Context, scratch: int) -> None:
        """Queues what waits by the context, then what the stub had. scratch: memory of the stub (pending.ROOM bytes). Errors: OSError;
        undo() makes the queues what they were."""
        waiting = [(0, info) for info in context.pending] + [(thread.tid, info) for thread in context.threads for info in thread.pending]
        if not waiting:
            return
        self._came = take(self._stub, room=scratch)
        with any_number(self._stub.pid):
            for tid, info in settled(merged(waiting + self._came)):
                if not is_over(self._stub, info):
                    item = _Item(self._threads[tid or context.pid], info, not tid and not _is_for_first(context, info))
                    self._items.append(self._queue(item, scratch))

    def _queue(self, item: _Item, scratch: int) -> _Item:
        """Returns it as it waits then. scratch: of ROOM bytes."""
        process = inner_tid(self._stub.pid, self._stub.pid)
        tid = 0 if item.shared else inner_tid(self._stub.pid, item.thread.tid)
        return replace(item, info=queue(self._stub, item.thread, process, tid, item.info, scratch))

    def undo(self) -> None:
        """Takes what was queued off the queues again; what else waits there stays, and what the stub had comes back. Errors: OSError."""
        items, self._items, came, self._came = self._items, [], self._came, []
        if not items and not came:
            return
        with scratch_page(self._stub) as scratch:  # its stack may be gone
            for thread, number in {(item.thread, signal_number(item.info)) for item in items}:
                self._take_back(thread, number, [item.info[:_SIGINFO_KERNEL] for item in items if item.thread is thread], scratch)
            for tid, info in came:
                self._queue(_Item(self._threads[tid] if tid else self._stub.leader, info, not tid), scratch)

    def _take_back(self, thread: Thread, number: int, ours: list[bytes], scratch: int) -> None:
        stub = self._stub
        others = []
        while True:
            stub.write(scratch, (1 << number - 1).to_bytes(8, "little") + bytes(16))
            if thread.call(SYS.rt_sigtimedwait, scratch, scratch + 128, scratch + 8, 8) != number:
                break
            info = stub.read(scratch + 128, SIGINFO_BYTES)
            if info[:_SIGINFO_KERNEL] in ours:
                ours.remove(info[:_SIGINFO_KERNEL])
            else:
                others.append(info)
        for info in others:
            self._queue(_Item(thread, info, thread.tid == stub.pid), scratch)


def _is_for_first(context: Context, info: bytes) -> bool:
    """Whether a signal for the process is sent to its first thread alone: where nothing stands still the kernel prefers that one as long as
    it lets the signal in; threads that are let go one after the other take what they find. Not if a call has a mask of its own."""
    first, number = context.threads[0], signal_number(info)
    action = int.from_bytes(context.signal_actions.get(number, b"")[:8], "little")
    if len(context.threads) == 1 or action < 2 or first.signal_mask >> number - 1 & 1:
        return False
    call = Registers.from_buffer_copy(first.registers).rax
    return call not in _WITH_MASK and number not in map(signal_number, first.pending)


__all__ = ["Queued"]
