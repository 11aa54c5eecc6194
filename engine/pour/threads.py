"""What of threads, signal actions and the memory layout is set in a stub that is to become the process."""

from __future__ import annotations

import signal
import struct
from collections.abc import Sequence

from engine.context import altstack
from engine.context.capture import inner_tid, inner_tids
from engine.context.checked import ACTION_BYTES, SIGNALS, BadContext
from engine.context.context import Context, MemoryLayout, Rseq, ThreadContext
from engine.context.crowd import call_in, have_called
from engine.mappings.layout import Span
from kernel_helpers.process import many, many_calls
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import ERESTART_RESTARTBLOCK, SYS, U64, Registers
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import signal_state

_PR_SET_NAME = 15
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_RSEQ_UNREGISTER = 1
NO_DESCRIPTOR = (1 << 32) - 1


def match_threads(stub: Frozen, context: Context) -> dict[int, Thread]:
    threads = {tid: stub.threads[ours] for ours, tid in inner_tids(stub.pid, list(stub.threads)).items()}
    wanted = {thread.tid for thread in context.threads}
    if inner_tid(stub.pid, stub.pid) != context.pid:
        raise BadContext(f"the context is that of process {context.pid}, not of {inner_tid(stub.pid, stub.pid)}")
    if threads.keys() != wanted:
        raise BadContext(f"the stub has threads {sorted(threads)}, the context {sorted(wanted)}")
    return threads


def set_memory_layout(stub: Frozen, wanted: MemoryLayout, scratch: int, program: int = NO_DESCRIPTOR) -> None:
    """What the kernel shows of a process's memory, and with `program`, a descriptor in it, what its program is; without one it needs
    no privilege. `scratch`: writable memory of two pages. Errors: OSError."""
    # struct prctl_mm_map
    request = struct.pack("<11Q", *wanted.addresses()) + struct.pack("<QII", scratch + 512, len(wanted.auxv), program)
    stub.write(scratch, request)
    stub.write(scratch + 512, wanted.auxv)
    stub.call(SYS.prctl, _PR_SET_MM, _PR_SET_MM_MAP, scratch, len(request), 0)


def set_signal_actions(stub: Frozen, context: Context, room: Span, has_run: bool) -> None:
    """room: memory that can be used, of a page at least. Errors: OSError."""
    table = bytearray(SIGNALS * ACTION_BYTES)
    for number, action in context.signal_actions.items():
        table[(number - 1) * ACTION_BYTES : number * ACTION_BYTES] = action
    data, calls_at, calls = room[0], room[0] + len(table), []
    stub.write(data, bytes(table))
    state = signal_state(stub.pid, stub.pid)
    for number, action in context.signal_actions.items():
        is_default = not any(action) and not (state.ignored | state.caught) >> number - 1 & 1
        if is_default and (not has_run or number == signal.SIGCONT):
            continue  # it is so already; and what continues a process, and waits, would go (signal.c, do_sigaction)
        call = (SYS.rt_sigaction, number, data + (number - 1) * ACTION_BYTES, 0, 8)
        if number == signal.SIGTRAP:
            stub.call(*call)  # the thread knows then whether it can be stepped
        else:
            calls.append(call)
    stub.calls(calls, calls_at, room[1] - calls_at)


def unregister_rseq(thread: Thread) -> None:
    now = thread.rseq()
    if now.pointer:
        result = thread.call(SYS.rseq, now.pointer, now.size, _RSEQ_UNREGISTER, now.signature)
        check(result, f"unregistering rseq in {thread.tid}")


def set_threads(
    stub: Frozen, threads: Sequence[Thread], wanted: Sequence[ThreadContext], robust: Sequence[tuple[int, int]], room: Span
) -> None:
    """What of threads is set from within. robust: the lists that they have; room: memory that can be used."""
    registered = many.rseqs(threads)

    def calls(index: int, address: int) -> list[tuple[int, ...]]:
        thread, now = wanted[index], registered[index]
        made: list[tuple[int, ...]] = [(SYS.set_tid_address, thread.clear_tid)]  # answers the tid
        if robust[index] != thread.robust_list:
            made.append((SYS.set_robust_list, *thread.robust_list))
        if Rseq(*now) != thread.rseq or not now[0]:
            if now[0]:
                made.append((SYS.rseq, now[0], now[1], _RSEQ_UNREGISTER, now[2]))
            if thread.rseq.address:
                made.append((SYS.rseq, thread.rseq.address, thread.rseq.size, 0, thread.rseq.signature))
        # Refused to a thread that stands on its alternate stack; where this one stands now means nothing.
        return [*made, (SYS.sigaltstack, address, 0), (SYS.prctl, _PR_SET_NAME, address + altstack.STACK.size)]

    given, spare = [thread.sigaltstack + thread.comm + b"\0" for thread in wanted], (room[0], room[1] - room[0])
    results, _ = call_in(stub, threads, calls, 6, given, aside=True, spare=spare)
    disabled = [index for index, some in enumerate(results) if altstack.was_never(wanted[index].sigaltstack, some[-2])]
    for index in disabled:
        results[index][-2] = 0
    if any(min(some) < 0 for some in results):
        many_calls.check_all([(thread, calls(index, 0)) for index, thread in enumerate(threads)], results)
    if disabled:  # the nearest state that can be set: sigaltstack(2) reports the same for both
        some = [threads[index] for index in disabled]
        disables = [altstack.DISABLED] * len(some)
        have_called(stub, some, lambda _, address: [(SYS.sigaltstack, address, 0)], 1, disables, aside=True, spare=spare)


def load_registers(thread: Thread, wanted: ThreadContext) -> None:
    """Registers and mask that restore() writes when the thread is let go."""
    registers = Registers.from_buffer_copy(wanted.registers)
    if wanted.resume_with_restart_syscall:
        # Interrupted in the call, or put back to before it.
        registers.rax = SYS.restart_syscall if registers.orig_rax == U64 else ERESTART_RESTARTBLOCK & U64
    thread.registers, thread.signal_mask = registers, wanted.signal_mask
