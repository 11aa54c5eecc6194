"""The stub: the original process while its memory and registers are away.

Its threads run the resident loop (kernel_helpers/link/home/resident.c), which makes the calls that the guest forwards. The loop's code
and the slots that it shares with this deputy are all that is put into it; everything else of the process stays as it was,
its private memory excepted.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from deputy import footprint
from deputy.stub_memory import StubMemory
from deputy.traced import Traced
from engine.calls import rests
from engine.context.confinement import chains, lets_sleeps_go_on
from engine.context.crowd import call_in
from engine.criu.forkcopy import CLONE_OF_THREAD, clone_task
from engine.files.handover import give_descriptor
from engine.mappings.layout import Span
from engine.mappings.mappings import PAGE
from kernel_helpers.common import library
from kernel_helpers.errors import FarhomeError, MoveRefused, sentence
from kernel_helpers.link.link import HomeLink
from kernel_helpers.process import inject, many, refuge, syscalls, tracing
from kernel_helpers.process.inject import PTRACE_O_SUSPEND_SECCOMP, Thread
from kernel_helpers.process.seizing import Frozen, find_instruction
from kernel_helpers.process.syscalls import SYS, U64, Registers, signed
from kernel_helpers.process.tracing import Cause
from wire.waking import ready

_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 1, 2, 0x20, 0x4000, 0x100000
_MREMAP_MAYMOVE_FIXED = 3
_RSEQ_UNREGISTER = 1
_BATCH_AT = PAGE - 128
"""of the page: where many calls are made at once"""
_CALL_END_AT = 8  # of the blob: where the address after its `syscall` is told
_WALL = 0x40000000
_SIGNAL_ACTION = 32  # bytes of the kernel's struct sigaction
_IGNORED = b"\1"  # the same, SIG_IGN, without zeros
_RESTART = (-errno.EINTR, *syscalls.RESTART_CODES)
_RESUMABLE = (SYS.nanosleep, SYS.clock_nanosleep, SYS.poll)

OPTIONS = tracing.PTRACE_O_EXITKILL | tracing.PTRACE_O_TRACEEXEC
"""Of the threads of a stub, for ptrace."""


class Stub(Traced):
    """The stub of one process.

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
        blob = (library.build_directory() / "resident.bin").read_bytes()
        self._blob = blob
        (self._call_end,) = struct.unpack_from("<Q", blob, _CALL_END_AT)
        self._frozen: Frozen | None = frozen
        self.watched = 0
        """signals that wait here where the guest's threads block them (deputy/signalfds.py)"""
        self.kept: dict[int, int] = {}
        """of those, what each thread of the stub blocks"""

    # -- becoming a stub -------------------------------------------------------------------------------------------------

    @classmethod
    def hollow(cls, frozen: Frozen, link: HomeLink) -> Stub:
        """prepare() and start() in one."""
        stub = cls.prepare(frozen, link)
        stub.start()
        return stub

    @classmethod
    def prepare(cls, frozen: Frozen, link: HomeLink, deadlines: Mapping[int, int] = MappingProxyType({})) -> Stub:
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
            frozen.write(stub._code, stub._blob.ljust(_BATCH_AT, b"\xcc") + refuge.CODE)
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
            if not isinstance(error, ProcessLookupError):  # waitpid will tell of one that died meanwhile
                raise error
        for thread in frozen.threads.values():
            if thread.group_stop:  # the process is stopped: for the way into the loop alone the thread was not
                tracing.interrupt(thread.tid)

    # -- while it is a stub ----------------------------------------------------------------------------------------------

    def busy(self) -> list[int]:
        """Threads (the program's ids) whose call is under way, or not replied to yet. One that has ended is none: its exit never
        is replied to."""
        return [tid for tid in self.link.busy() if self.host(tid) is not None]

    def cancel(self, tid: int, timeout: float = 10.0, keeps: bool = False) -> bool:
        """Takes a thread (the program's id) back out of the call that it waits in; the guest gets a suspended REPLY with
        the restart code. False: it had completed, and the normal REPLY is on its way. keeps: nothing ends the call for the guest (but a
        stop of the process): what is written of it stays known, and the rest is made when it is made again.

        Errors: TimeoutError when the call can neither be ended nor ends by itself.
        """
        end = time.monotonic() + timeout
        while (host := self.host(tid)) is not None and self._is_busy(tid):
            if self.link.standing(tid).number in (SYS.exit, SYS.exit_group):
                return False  # there is no way back, and nothing to wait for
            if time.monotonic() > end:
                raise TimeoutError(f"call {self.link.standing(tid).number} of thread {tid} does not end")
            if self.interrupt(host, min(0.5, timeout)) is None:
                if self.is_replaced():
                    return False
                continue
            registers = tracing.registers(host)
            is_in_call = self._is_in_call(registers)
            if keeps and not self.is_group_stop and self._has_part(tid, registers) and self.link.suspend(tid, syscalls.ERESTARTNOINTR):
                tracing.set_registers(host, self._loop_registers(host, registers))
                self.let_go(host)
                return True
            if is_in_call and self.link.written(tid):  # which ends with that, see deputy/cuts.py
                registers.rax, registers.orig_rax = 0, U64
                tracing.set_registers(host, registers)
            elif is_in_call and self.link.suspend(tid, signed(registers.rax)):
                tracing.set_registers(host, self._loop_registers(host, registers))
                self.let_go(host)
                return True
            if is_stopped := self.is_group_stop:
                tracing.proceed(host)  # of a stopped process this thread alone, into its call or to the reply
            else:
                self.let_go(host)
            # It was just before or just after the call: that takes no time.
            quiet = time.monotonic() + 0.001
            while self.host(tid) is not None and self._is_busy(tid) and time.monotonic() < quiet:
                os.sched_yield()
            if is_stopped:
                tracing.interrupt(host)  # it stops with the others, if that is not over
        return False

    def _has_part(self, tid: int, registers: Registers) -> bool:
        """Whether a thread (the program's id) that was stopped in its call, or just behind it, has written a part of what it is to write.
        Then the link knows how much."""
        if self._is_in_call(registers):
            return bool(self.link.written(tid))
        number, arguments = signed(registers.orig_rax), tuple(syscalls.arguments_of(registers))
        if not self.stands_behind_call(registers) or not rests.is_for_link(number, arguments) or not rests.left(self.pid, registers):
            return False
        return rests.waits_for_room(self.pid, number, arguments) and bool(self.link.written(tid, signed(registers.rax)))

    def resumable(self, tid: int) -> int | None:
        """The number of the suspended call of a thread (the program's id) that its kernel can go on with after a refill:
        then the thread has to make restart_syscall(2) in place of the call, if it still stands at it."""
        return self.link.resumable(tid)

    def milliseconds_left(self, tid: int, number: int) -> int | None:
        """How long the suspended call `number` of a thread (the program's id) has still to wait, if it takes that in a register."""
        return self.link.milliseconds_left(tid, number)

    def rewind_interrupted(self, tid: int) -> None:
        """For a thread in a stop that is to go on as if nothing had been: a call that the mere stop ended with EINTR
        (epoll_wait and others) is begun again, with the time that is left. Not if the process was stopped in it: that ends it so."""
        registers = tracing.registers(tid)
        was_stopped = self._stood_in.get(tid) == self.link.standing(self._program[tid]).sequence
        if self._is_in_call(registers) and signed(registers.rax) == -errno.EINTR and not was_stopped:
            changed = self.link.again(self._program[tid])
            if changed is not None:
                setattr(registers, syscalls.ARGUMENTS[changed[0]], changed[1])
            registers.rax, registers.orig_rax = registers.orig_rax, U64
            registers.rip -= 2
            tracing.set_registers(tid, registers)

    def stands(self, tid: int) -> None:
        """A thread has come to a stop together with its process."""
        self._stood_in[tid] = self.link.standing(self._program[tid]).sequence

    def stands_in_call(self, tid: int) -> bool:
        """Whether a thread in a stop does so in a call of the guest that has not come to its own end."""
        return self._is_in_call(tracing.registers(tid))

    def stands_behind_call(self, registers: Registers) -> bool:
        """Whether they are those of a thread that comes out of a call of the guest, whatever that has come to."""
        return registers.rip == self._code + self._call_end and signed(registers.orig_rax) >= 0

    def block(self, tid: int, mask: int) -> None:
        """A thread in a call of the guest blocks these signals, too, until the end of that call."""
        if not mask:
            return
        was_detained = tid in self.detained
        if not was_detained and (not self._is_busy(self.program_tid(tid)) or self.interrupt(tid, 5.0) is None):
            return
        if self.stands_in_call(tid):
            self.link.block(self.program_tid(tid), mask)
            tracing.set_signal_mask(tid, tracing.signal_mask(tid) | mask)
        if not was_detained:
            self.let_go(tid)

    def watch(self, watched: int, blocked: Mapping[int, int]) -> None:
        """These signals wait here from now on where the threads (the program's ids) block them: before the loop goes on."""
        self.watched = watched
        for tid in self.tids if watched else ():
            self._keep(tid, blocked.get(self.program_tid(tid), 0))

    def keep(self, tid: int, mask: int) -> None:
        """A thread between two calls of the guest blocks these of the watched signals from now on, and no others. Errors: OSError,
        TimeoutError."""
        newly = mask & self.watched & ~self.kept.get(tid, 0)
        self._keep(tid, mask)
        if self._frozen is not None or tid not in self.tids:
            return
        if self.interrupt(tid, 5.0) is None:
            if tid in self.tids and self.executed is None and not tracing.is_dead(tid):
                raise TimeoutError(f"thread {tid} of the stub does not stop")
            return
        tracing.set_signal_mask(tid, self.kept.get(tid, 0))
        self.let_go(tid)
        if newly and len(self.tids) > 1:
            self._retarget(tid, newly)

    def _retarget(self, former: int, mask: int) -> None:
        """Has threads look for signals of their process that the kernel may have woken another thread for, which blocks them now: it does
        not look for others then, as it would if the thread had blocked them itself (signal.c, retarget_shared_pending)."""
        waiting = mask & tracing.signal_state(self.pid, former).shared_pending
        for tid in list(self.tids) if waiting else ():
            if tid != former and waiting & ~self.kept.get(tid, 0) and self.interrupt(tid, 5.0) is not None:
                self.let_go(tid)

    def drop(self, program: int, number: int) -> None:
        """None of that signal waits any more, as when a process comes to ignore it. program: a thread of it that makes no call. Errors:
        OSError, TimeoutError."""
        with self.injecting(program) as thread:
            at = self._slot(thread.tid) + 1024  # see default_action()
            inject.check(_write(self.pid, at, _IGNORED.ljust(_SIGNAL_ACTION, b"\0")), "writing the stub")
            inject.check(thread.call(SYS.rt_sigaction, number, at, at + _SIGNAL_ACTION, 8), f"rt_sigaction in {self.pid}")
            inject.check(thread.call(SYS.rt_sigaction, number, at + _SIGNAL_ACTION, 0, 8), f"rt_sigaction in {self.pid}")

    def _keep(self, tid: int, mask: int) -> None:
        if self.watched:
            self.kept[tid] = mask & self.watched
            self.link.keep(self.program_tid(tid), self.kept[tid])

    def _is_busy(self, program: int) -> bool:
        standing = self.link.standing(program)
        return bool(standing.busy) and not standing.done

    def _is_in_call(self, registers: Registers) -> bool:
        """Whether a stopped thread stands in a call of the guest that has not come to its own end."""
        return self.stands_behind_call(registers) and signed(registers.rax) in _RESTART

    def default_action(self, number: int) -> None:
        """The stub takes the default action of a signal from now on: it is about to die by it."""
        with self.injecting() as thread:
            # The stack that the thread is on lies in the slot's page; its lower part is free for our structure.
            at = self._slot(thread.tid) + 1024
            inject.check(_write(self.pid, at, bytes(_SIGNAL_ACTION)), "writing the stub")
            inject.check(thread.call(SYS.rt_sigaction, number, at, 0, 8), f"rt_sigaction in {self.pid}")
            thread.signal_mask &= ~(1 << number - 1)

    def add_thread(self, parent: int) -> int:
        """One thread more, in the loop; its id as the program sees it. The thread `parent` (the program's id) makes it, for it has that
        one's rights, priority, processors and whatever else the kernel hands on. Errors: OSError, TimeoutError; nothing is left then."""
        if self.host(parent) is None:
            raise ProcessLookupError(errno.ESRCH, f"thread {parent} has ended")
        before = self.link.size
        index = self.link.add_thread()
        try:
            with self.injecting(parent) as maker:
                if self.link.size > before:
                    inject.check(maker.call(SYS.mremap, self._slots, before, self.link.size, 0), "more slots")
                # In the page of the parent's slot, below the stack that the loop is on.
                memory = _Memory(self.pid)
                listing = f"/proc/{self.pid}/task"
                known = {int(name) for name in os.listdir(listing)}
                tid, program = clone_task(maker, memory, self._slot(maker.tid) + 1024, CLONE_OF_THREAD, known, listing)
                thread = Thread.adopt(tid, self.pid)
        except BaseException:
            self.link.name_thread(index, 0)
            raise
        self.tids.append(tid)
        self._program[tid], self._index[tid] = program, index
        self.link.name_thread(index, program)
        thread.registers = self._loop_registers(tid, thread.registers)
        self._keep(tid, self.kept.get(self.host(parent) or 0, 0))
        thread.signal_mask = self.kept.get(tid, 0)
        thread.restore()
        tracing.proceed(tid)
        if thread.group_stop:  # the process is stopped: what we took from the newborn to put it into the loop
            tracing.interrupt(tid)
        return program

    def bear(self, parent: int, exit_signal: int, undoes: Callable[[int], None]) -> Stub:
        """A child of the thread `parent` (the program's id): a stub too, in its loop, with slots of its own. exit_signal: what the
        parent gets at its end. undoes: is called with the child's id (the program's) before it ends again. Errors: OSError, TimeoutError,
        FarhomeError; no child is left then."""
        host = self.host(parent)
        if host is None:
            raise ProcessLookupError(errno.ESRCH, f"thread {parent} has ended")
        with self.injecting(parent) as thread:
            listing = f"/proc/{self.pid}/task/{host}/children"
            known = {int(word) for word in Path(listing).read_text().split()}
            at = self._slot(host) + 1024
            tid, program = clone_task(thread, _Memory(self.pid), at, 0, known, listing, exit_signal=exit_signal)
            newborn = Thread.adopt(tid, tid)
            try:
                return self._settle_child(newborn, program, self.kept.get(host, 0))
            except BaseException:
                undoes(program)
                with suppress(OSError):
                    os.kill(tid, signal.SIGKILL)
                    os.waitpid(tid, _WALL)
                    thread.call(SYS.wait4, program, 0, _WALL, 0)
                raise

    def _settle_child(self, newborn: Thread, program: int, kept: int) -> Stub:
        """What stub() and prepare() do, in a child that has the loop, but its parent's slots."""
        frozen = Frozen(newborn.pid, {newborn.tid: newborn}, instruction=self._code + self._call_end - 2)
        link = HomeLink([program])
        try:
            frozen.call(SYS.munmap, self._slots, self.link.size)
            page = frozen.call(SYS.mmap, 0, PAGE, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, U64, 0)
            child = Stub(frozen, link)
            child._code = self._code
            child.memory.is_whole = self.memory.is_whole
            child._map_slots(frozen, page)
            frozen.call(SYS.munmap, page, PAGE)
            child.options = self.options
            newborn.set_options(self.options)
            child._frozen = None
            child.watch(self.watched, {program: kept})
            child._enter_loop(frozen)
        except BaseException:
            link.close()
            raise
        if self.link.keeps_time:
            link.keep_time()
        return child

    def unbear(self, child: Stub) -> None:
        """Ends a child that has made no call, and takes it from the list of those that wait() would tell of. Errors: OSError,
        TimeoutError."""
        os.kill(child.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child.pid, _WALL)
        with self.injecting() as thread:
            thread.call(SYS.wait4, child.program_tid(child.pid), 0, _WALL, 0)

    def end_thread(self, program: int) -> None:
        """Ends one thread (the program's id) that waits in its loop and has never made a call. Errors: OSError, TimeoutError."""
        host = self.host(program)
        if host is None:
            return
        if self.interrupt(host, 5.0) is None:
            raise TimeoutError(f"thread {host} of the stub does not stop")
        thread = Thread(host, self.pid)
        thread.instruction = self._code + self._call_end - 2
        thread.capture()
        with suppress(ProcessLookupError):
            thread.call(SYS.exit, 0)
        self.thread_gone(host)

    def is_exiting(self, tid: int) -> bool:
        """Whether a thread was in a call to end, or its process's."""
        return tid in self.tids and self.link.standing(self._program[tid]).number in (SYS.exit, SYS.exit_group)

    def thread_gone(self, tid: int) -> None:
        """A thread was reported ended."""
        if tid in self.tids:
            super().thread_gone(tid)
            self.kept.pop(tid, None)
            program = self.program_tid(tid)
            self.memory.expect_no_more(program)
            self._stood_in.pop(tid, None)
            self.link.forget_thread(program)
            self.link.name_thread(self._index[tid], 0)

    def reap(self, timeout: float) -> bool:
        """Waits for the end of all threads. False: some live on."""
        end = time.monotonic() + timeout
        pidfd = None
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            pass
        try:
            while self.tids and time.monotonic() < end:
                for stop in tracing.poll(self.tids):
                    if stop.cause in (Cause.EXITED, Cause.KILLED):
                        self.thread_gone(stop.tid)
                    else:
                        tracing.proceed(stop.tid, stop.number if stop.cause is Cause.SIGNAL else 0)
                if self.tids:
                    ready([pidfd] if pidfd is not None else [], 0.002)
        finally:
            if pidfd is not None:
                os.close(pidfd)
        return not self.tids

    # -- coming home ---------------------------------------------------------------------------------------------------------

    def stop(self) -> Frozen:
        """Freezes the stub for a refill: all threads in their loops, no call under way. resume_as_stub() undoes it.

        Errors: FarhomeError when a call is under way; TimeoutError.
        """
        if self._frozen is not None:
            return self._frozen
        if self.busy():
            raise FarhomeError(f"a call of thread {self.busy()[0]} is under way")
        threads: dict[int, Thread] = {}
        wanted, told = list(self.tids), dict[int, int | None]()
        try:
            self.ask_to_stop(wanted)
            due = [tid for tid in wanted if tid not in self.detained]
            told |= zip(due, many.reports(due, many.SOON), strict=True)
            for tid in wanted:
                stop = self.interrupt(tid, 5.0, is_asked=True, first=told.pop(tid, None))
                if stop is None:
                    raise TimeoutError(f"thread {tid} of the stub does not stop")
                threads[tid] = Thread(tid, self.pid)
                threads[tid].options = self.options
                threads[tid].group_stop = stop.number if stop.cause is Cause.GROUP_STOP else 0
            many.look(self.pid, list(threads.values()))
        except BaseException:
            for tid in wanted:
                if tid in threads or self.interrupt(tid, 0.5, is_asked=True, first=told.pop(tid, None)) is not None:
                    tracing.proceed(tid)  # as it stood: nothing has been set
                    if tid in threads and threads[tid].group_stop:
                        tracing.interrupt(tid)
            raise
        self._frozen = Frozen(self.pid, threads, instruction=self._code + self._call_end - 2)
        self._frozen.batch_code = self._code + _BATCH_AT
        for tid, info in self.take_later():
            threads[tid].keep(info)
        return self._frozen

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
        frozen.instruction = self._code + self._call_end - 2
        frozen.batch_code = self._code + _BATCH_AT
        if was_running:
            self.resume_as_stub()
        return True

    def remove_resident(self) -> None:
        """Takes loop and slots out of the refilled, frozen process."""
        assert self._frozen is not None
        self._frozen.instruction, self._frozen.batch_code = find_instruction(self.pid), 0
        self.undo()


def say_on_terminal(pid: int, sentence: str) -> None:
    """One line on a process's standard error, if that is a terminal."""
    try:
        descriptor = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.isatty(descriptor):
            os.write(descriptor, f"\r\n{sentence}\r\n".encode())
    except OSError:
        pass
    finally:
        os.close(descriptor)


class _Memory:
    """What clone_task() writes its arguments to."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def write(self, address: int, data: bytes) -> None:
        """Errors: OSError."""
        inject.check(_write(self.pid, address, data), "writing the stub")


def _write(pid: int, address: int, data: bytes) -> int:
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        return os.pwrite(descriptor, data, address)
    finally:
        os.close(descriptor)


__all__ = ["Stub", "say_on_terminal"]
