"""The loop in a stub (kernel_helpers/link/home/resident.c): it is put into the process, entered, left and taken out.

Its code and the slots that it shares with this deputy are all that is put into the process; everything else of it stays as it was.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self

from deputy.stub import footprint
from deputy.stub.memory import StubMemory
from deputy.stub.traced import Traced
from engine.context.confinement import chains, lets_sleeps_go_on
from engine.context.crowd import call_in
from engine.files.handover import give_descriptor
from engine.mappings.layout import Span
from engine.mappings.mappings import PAGE
from kernel_helpers.common import library
from kernel_helpers.common.errors import FarhomeError, MoveRefused, sentence
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.process import many, pause_loop, syscalls, tracing
from kernel_helpers.process.injection.native import PTRACE_O_SUSPEND_SECCOMP
from kernel_helpers.process.seizing import Frozen, find_instruction
from kernel_helpers.process.syscalls import SYS, U64, Registers
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import Cause

_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 1, 2, 0x20, 0x4000, 0x100000
_MREMAP_MAYMOVE_FIXED = 3
_RSEQ_UNREGISTER = 1
_BATCH_AT = PAGE - 128
"""of the page: where many calls are made at once"""
_CALL_END_AT = 8  # of the blob: where the address after its `syscall` stands
_WRITES_TIMEOUT = 30.0
"""Seconds, for what a full queue of a slow disk takes."""
_RESUMABLE = (SYS.nanosleep, SYS.clock_nanosleep, SYS.poll)

OPTIONS = tracing.PTRACE_O_EXITKILL | tracing.PTRACE_O_TRACEEXEC
"""Of the threads of a stub, for ptrace."""


class Resident(Traced):
    """A process that has the loop.

    Its threads run in the loop, each with a slot of the link. `memory`: what it has of the process's, and gives up.
    """

    def __init__(self, frozen: Frozen, link: HomeLink) -> None:
        super().__init__(frozen.pid, dict(zip(frozen.threads, link.threads, strict=True)))
        self.link = link
        self.memory = StubMemory(self, link, lambda: self.reserved)
        self._index = {tid: index for index, tid in enumerate(frozen.threads)}
        self._code = 0
        self._slots = 0
        self.options = OPTIONS | frozen.leader.options & PTRACE_O_SUSPEND_SECCOMP
        """of its threads: what they do is not their filters' affair, for the guest's have judged it"""
        self._stood_in: dict[int, int] = {}
        """the call (its number in the session) in which a thread last stopped together with its process"""
        self._blob = library.resident()
        self._call_end: int = struct.unpack_from("<Q", self._blob, _CALL_END_AT)[0]
        self._frozen: Frozen | None = frozen
        self.watched = 0
        """signals that wait here where the guest's threads block them (deputy/requests/signalfds.py)"""
        self.kept: dict[int, int] = {}
        """of those, what each thread of the stub blocks"""

    @classmethod
    def hollow(cls, frozen: Frozen, link: HomeLink) -> Self:
        """prepare() and start() in one."""
        stub = cls.prepare(frozen, link)
        stub.start()
        return stub

    @classmethod
    def prepare(cls, frozen: Frozen, link: HomeLink, deadlines: Mapping[int, int] = MappingProxyType({})) -> Self:
        """Puts loop and slots into the frozen process; nothing else of it changes, and undo() takes them out again: all
        that can fail is done here, before the commit. deadlines: see engine.calls.restarts. Errors: MoveRefused, OSError; nothing is left
        then."""
        stub = cls(frozen, link)
        base = footprint.free_base(frozen.pid, PAGE + link.size)
        try:
            stub._code = frozen.call(
                SYS.mmap, base, PAGE, _PROT_READ | _PROT_WRITE,
                _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE, U64, 0,
            )  # fmt: skip
            stub._map_slots(frozen, stub._code)
            frozen.write(stub._code, stub._blob.ljust(_BATCH_AT, b"\xcc") + pause_loop.CODE)
            frozen.call(SYS.mprotect, stub._code, PAGE, _PROT_READ | _PROT_EXEC)
        except OSError as error:
            stub.undo()
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise MoveRefused(frozen.pid, f"it is at a limit of its own ({sentence(error)})") from error
            raise
        if not lets_sleeps_go_on(chains(frozen).values()):
            link.keep_time()
        stub._expect_restarts(frozen, deadlines)
        return stub

    def _map_slots(self, frozen: Frozen, page: int) -> None:
        """Behind the loop's page. `page`: scratch memory in the process. Errors: OSError."""
        link = self.link
        descriptor = give_descriptor(frozen, link.memfd, page)
        try:
            self._slots = frozen.call(
                SYS.mmap, self._code + PAGE, link.size, _PROT_READ | _PROT_WRITE,
                _MAP_SHARED | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE, descriptor, 0,
            )  # fmt: skip
        finally:
            frozen.call(SYS.close, descriptor)
        link.set_stub(frozen.pid, self._slots)

    def _expect_restarts(self, frozen: Frozen, deadlines: Mapping[int, int]) -> None:
        """Sleeps and polls that the freeze interrupted go on with the time that is left, for the kernel keeps it in the
        thread: the guest makes them again and finds them under way. For calls with a deadline our end of the link keeps it."""
        for tid, thread in frozen.threads.items():
            found = syscalls.syscall_at(thread.registers)
            if found is None:
                continue
            if found[1] == syscalls.ERESTART_RESTARTBLOCK and found[0] in _RESUMABLE and not self.link.keeps_time:
                self.link.expect_restart(self._program[tid], found[0], syscalls.arguments_of(thread.registers))
                self.memory.expect(self._program[tid])
            elif tid in deadlines:
                self.link.expect_restart(self._program[tid], found[0], syscalls.arguments_of(thread.registers), deadlines[tid])

    def undo(self) -> None:
        """Takes out what prepare() put in; the process is frozen still."""
        assert self._frozen is not None
        for start, end in self.reserved:
            self._frozen.call(SYS.munmap, start, end - start)
        self._code = self._slots = 0

    def start(self) -> None:
        """All threads enter the loop. Signals that were kept at the freeze are sent again, for the guest to get."""
        assert self._frozen is not None
        frozen, self._frozen = self._frozen, None
        self._unregister_sequences(frozen)
        self._enter_loop(frozen)

    def _unregister_sequences(self, frozen: Frozen) -> None:
        """Of its threads: the memory that they are in goes, and the kernel would kill the thread that cannot write there."""
        threads = list(frozen.threads.values())
        registered = [(thread, rseq) for thread, rseq in zip(threads, many.rseqs(threads), strict=True) if rseq[0]]
        frozen.batch_code = self._code + _BATCH_AT

        def calls(index: int, _: int) -> list[tuple[int, ...]]:
            address, size, signature = registered[index][1]
            return [(SYS.rseq, address, size, _RSEQ_UNREGISTER, signature)]

        if registered:
            call_in(frozen, [thread for thread, _ in registered], calls, 1)
        for thread, _ in registered:
            thread.rseq_section = None

    @property
    def reserved(self) -> list[Span]:
        """Address ranges in the stub that belong to it and not to the process."""
        spans = [(self._code, self._code + PAGE)] if self._code else []
        return spans + ([(self._slots, self._slots + self.link.size)] if self._slots else [])

    @property
    def _syscall(self) -> int:
        """Where the loop makes its calls."""
        return self._code + self._call_end - 2

    def _find_instruction(self) -> int:
        return self._syscall if self._code else super()._find_instruction()

    def _slot(self, tid: int) -> int:
        return self._slots + self.link.slot_offset(self._index[tid])

    def _loop_registers(self, tid: int, registers: Registers) -> Registers:
        """The same thread at the loop's entry, on the stack in its slot's page."""
        fresh, slot = registers.copy(), self._slot(tid)
        fresh.rip, fresh.rdi, fresh.rsp = self._code, slot, slot + PAGE - 8
        fresh.rax, fresh.orig_rax, fresh.eflags = 0, U64, 0x202
        return fresh

    def _enter_loop(self, frozen: Frozen) -> None:
        kept = [(tid, info) for tid, thread in frozen.threads.items() for info in thread.take_in_hand()]
        for tid, thread in frozen.threads.items():
            thread.registers = self._loop_registers(tid, thread.registers)
            thread.signal_mask = self.kept.get(tid, 0)
        frozen.restore()
        for tid, info in kept:
            self.send_again(tid, info)
        for error in many.proceed(list(frozen.threads.values())).values():
            if not isinstance(error, ProcessLookupError):  # waitpid will report one that died meanwhile
                raise error
        for thread in frozen.threads.values():
            if thread.group_stop:  # the process is stopped: for the way into the loop alone the thread was not
                tracing.interrupt(thread.tid)

    def busy(self) -> list[int]:
        """Threads (the program's ids) whose call is under way, or not replied to yet. One that has ended is none: its exit never
        is replied to."""
        return [tid for tid in self.link.busy() if self.host(tid) is not None]

    def stop(self) -> Frozen:
        """Freezes the stub for a refill: all threads in their loops, no call under way. resume_as_stub() undoes it.

        Errors: FarhomeError when a call is under way; TimeoutError.
        """
        if self._frozen is not None:
            return self._frozen
        if self.busy():
            raise FarhomeError(f"a call of thread {self.busy()[0]} is under way")
        self._await_writes()
        threads: dict[int, Thread] = {}
        wanted, reported = list(self.tids), dict[int, int | None]()
        try:
            self.ask_to_stop(wanted)
            due = [tid for tid in wanted if tid not in self.detained]
            reported |= zip(due, many.reports(due, many.SOON), strict=True)
            for tid in wanted:
                stop = self.interrupt(tid, 5.0, is_asked=True, first=reported.pop(tid, None))
                if stop is None:
                    raise TimeoutError(f"thread {tid} of the stub does not stop")
                threads[tid] = Thread(tid, self.pid)
                threads[tid].options = self.options
                threads[tid].group_stop = stop.number if stop.cause is Cause.GROUP_STOP else 0
            many.capture(self.pid, list(threads.values()))
        except BaseException:
            for tid in wanted:
                if tid in threads or self.interrupt(tid, 0.5, is_asked=True, first=reported.pop(tid, None)) is not None:
                    tracing.proceed(tid)  # as it stood: nothing has been set
                    if tid in threads and threads[tid].group_stop:
                        tracing.interrupt(tid)
            raise
        self._frozen = Frozen(self.pid, threads, instruction=self._syscall)
        self._frozen.batch_code = self._code + _BATCH_AT
        self._make_effects(threads)
        for tid, info in self.take_later():
            threads[tid].keep(info)
        return self._frozen

    def _await_writes(self) -> None:
        """Those that were answered on the node are made by its threads alone, which signals may stop in the midst of them. Errors:
        FarhomeError: they take too long."""
        end = time.monotonic() + _WRITES_TIMEOUT
        while not self.link.has_written:
            if time.monotonic() > end:
                raise FarhomeError("writes that it has made away are not made at home yet")
            self.meet_signals()
            time.sleep(0.0005)

    def _make_effects(self, threads: dict[int, Thread]) -> None:
        """Calls that were answered on the node and have not been made here yet."""
        for tid, thread in threads.items():
            effect = self.link.take_effect(self.program_tid(tid))
            if effect is not None:
                thread.call(effect[0], *effect[1])

    def resume_as_stub(self) -> None:
        """The loops go on after a stop() that led to nothing."""
        if self._frozen is None:
            return
        frozen, self._frozen = self._frozen, None
        self._enter_loop(frozen)

    def relocate(self, avoid: Iterable[Span]) -> bool:
        """Moves loop and slots when they lie in one of these ranges. True if they moved. Errors: as stop(), OSError."""
        avoid = list(avoid)
        if not any(start < mine[1] and mine[0] < end for mine in self.reserved for start, end in avoid):
            return False
        was_running = self._frozen is None
        frozen = self.stop()
        frozen.instruction, frozen.batch_code = find_instruction(self.pid), 0
        base = footprint.free_base(self.pid, PAGE + self.link.size, avoid)
        frozen.call(SYS.mremap, self._code, PAGE, PAGE, _MREMAP_MAYMOVE_FIXED, base)
        self._code = base
        frozen.call(SYS.mremap, self._slots, self.link.size, self.link.size, _MREMAP_MAYMOVE_FIXED, base + PAGE)
        self._slots = base + PAGE
        self.link.set_stub(self.pid, self._slots)
        frozen.instruction = self._syscall
        frozen.batch_code = self._code + _BATCH_AT
        if was_running:
            self.resume_as_stub()
        return True

    def remove_resident(self) -> None:
        """Takes loop and slots out of the refilled, frozen process."""
        assert self._frozen is not None
        self._frozen.instruction, self._frozen.batch_code = find_instruction(self.pid), 0
        self.undo()
