"""The stub: the original process while its memory and registers are away.

Its threads run the loop of resident.py, which makes the calls that the guest forwards; everything else of the process stays as it was,
its private memory excepted.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from deputy.stub.resident import Resident
from deputy.stub.traced import DEATH_PATIENCE
from engine.calls import rests
from engine.criu.clone import CLONE_OF_THREAD, clone_task, kernel_translates
from kernel_helpers.link.ends.home import SLOTS, HomeLink
from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, U64, Registers, signed
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import Cause
from wire.waking import ready

_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_FIXED, _MAP_NORESERVE = 1, 0x10, 0x4000
_WALL = 0x40000000
_SIGNAL_ACTION = 32  # bytes of the kernel's struct sigaction
_IGNORED = b"\1"  # the same, SIG_IGN, without zeros
_RESTART = (-errno.EINTR, *syscalls.RESTART_CODES)


class Stub(Resident):
    """The stub of one process: calls of the guest that are under way, signals that wait, threads and children that it has."""

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
            if is_in_call and self.link.written(tid):  # which ends with that, see deputy/signals/cuts.py
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
        if not self.stands_behind_call(registers) or not rests.is_for_link(number, arguments) or not rests.bytes_left(self.pid, registers):
            return False
        return rests.waits_for_room(self.pid, number, arguments) and bool(self.link.written(tid, signed(registers.rax)))

    def resumable(self, tid: int) -> int | None:
        """Return the number of the suspended call of a thread (the program's id) that its kernel can go on with after a refill:
        then the thread has to make restart_syscall(2) in place of the call, if it still stands at it."""
        return self.link.resumable(tid)

    def milliseconds_left(self, tid: int, number: int) -> int | None:
        """Return how long the suspended call `number` of a thread (the program's id) has still to wait, if it takes that in a register."""
        return self.link.milliseconds_left(tid, number)

    def rewind_interrupted(self, tid: int) -> None:
        """For a thread in a stop that is to go on as if nothing had been: a call that the mere stop ended with EINTR
        (epoll_wait and others) is begun again, with the time that is left, and of one that it ended in the middle the rest is made. Not if
        the process was stopped in it: that ends it so."""
        registers = tracing.registers(tid)
        was_stopped = self._stood_in.get(tid) == self.link.standing(self._program[tid]).sequence
        if self._is_in_call(registers) and signed(registers.rax) == -errno.EINTR and not was_stopped:
            changed = self.link.again(self._program[tid])
            if changed is not None:
                setattr(registers, syscalls.ARGUMENTS[changed[0]], changed[1])
            rests.begin_again(tid, registers)
        elif self.stands_behind_call(registers) and not was_stopped and rests.is_cut(self.pid, tid, registers):
            self.make_rest(tid, registers)

    def make_rest(self, tid: int, registers: Registers) -> None:
        """Has a thread in a stop, which comes out of a call in the middle, make what is left of it; the guest gets the sum."""
        if done := rests.go_on(self.pid, tid, registers):
            self.link.written(self.program_tid(tid), done)

    def stands(self, tid: int) -> None:
        """A thread has come to a stop together with its process."""
        self._stood_in[tid] = self.link.standing(self._program[tid]).sequence

    def stands_in_call(self, tid: int) -> bool:
        """Return whether a thread in a stop does so in a call of the guest that has not come to its own end."""
        return self._is_in_call(tracing.registers(tid))

    def stands_behind_call(self, registers: Registers) -> bool:
        """Return whether they are those of a thread that comes out of a call of the guest, whatever that has come to."""
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
            native.write_memory(self.pid, at, _IGNORED.ljust(_SIGNAL_ACTION, b"\0"))
            native.check(thread.call(SYS.rt_sigaction, number, at, at + _SIGNAL_ACTION, 8), f"rt_sigaction in {self.pid}")
            native.check(thread.call(SYS.rt_sigaction, number, at + _SIGNAL_ACTION, 0, 8), f"rt_sigaction in {self.pid}")

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
            native.write_memory(self.pid, at, bytes(_SIGNAL_ACTION))
            native.check(thread.call(SYS.rt_sigaction, number, at, 0, 8), f"rt_sigaction in {self.pid}")
            thread.signal_mask &= ~(1 << number - 1)

    def add_thread(self, parent: int) -> int:
        """One thread more, in the loop; its id as the program sees it. The thread `parent` (the program's id) makes it, for it has that
        one's rights, priority, processors and whatever else the kernel hands on. Errors: OSError, TimeoutError; nothing is left then."""
        if self.host(parent) is None:
            raise ProcessLookupError(errno.ESRCH, f"thread {parent} has ended")
        before, known = self.link.size, set[int]()
        index = self.link.add_thread()
        try:
            with self.injecting(parent) as maker:
                if self.link.size > before:
                    native.check(maker.call(SYS.mremap, self._slots, before, self.link.size, 0), "more slots")
                # In the page of the parent's slot, below the stack that the loop is on.
                memory = _Memory(self.pid)
                listing = f"/proc/{self.pid}/task"
                known = {int(name) for name in os.listdir(listing)}
                tid, program = clone_task(maker, memory, self._slot(maker.tid) + 1024, CLONE_OF_THREAD, known, listing)
                thread = Thread.adopt(tid, self.pid)
                self._born(tid, maker.tid)
        except BaseException:
            self.link.name_thread(index, 0)
            with suppress(FileNotFoundError):
                self._take_dying(known)
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

    def _take_dying(self, known: set[int]) -> None:
        """Waits for the end of threads besides those that were known: the maker of one has ended, with its process, before it could say
        which it is, and as long as nobody takes their end the kernel does not report that of the process."""
        end = time.monotonic() + DEATH_PATIENCE
        for tid in {int(name) for name in os.listdir(f"/proc/{self.pid}/task")} - known - set(self.tids) if known else ():
            while time.monotonic() < end:
                with suppress(ChildProcessError):
                    got, status = os.waitpid(tid, os.WNOHANG | _WALL)
                    if not got or not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
                        time.sleep(0.001)
                        continue
                break

    def bear(self, parent: int, exit_signal: int, undoes: Callable[[int], None]) -> Stub:
        """Return a child of the thread `parent` (the program's id): a stub too, in its loop, with slots of its own. exit_signal: what the
        parent gets at its end. undoes: is called with the child's id (the program's) before it ends again. Errors: OSError, TimeoutError,
        FarhomeError; no child is left then."""
        host = self.host(parent)
        if host is None:
            raise ProcessLookupError(errno.ESRCH, f"thread {parent} has ended")
        with self.injecting(parent) as thread:
            listing = f"/proc/{self.pid}/task/{host}/children"
            known = set() if kernel_translates() else {int(word) for word in Path(listing).read_text().split()}
            at = self._slot(host) + 1024
            tid, program = clone_task(thread, _Memory(self.pid), at, 0, known, listing, exit_signal=exit_signal)
            newborn = thread.adopt_child(tid)
            self._born(tid, thread.tid)
            try:
                return self._settle_child(newborn, program, at, self.kept.get(host, 0))
            except BaseException:
                undoes(program)
                with suppress(OSError):
                    os.kill(tid, signal.SIGKILL)
                    os.waitpid(tid, _WALL)
                    thread.call(SYS.wait4, program, 0, _WALL, 0)
                raise

    def _born(self, tid: int, maker: int) -> None:
        if self.place is not None:
            self.place.born(tid, maker)

    def _settle_child(self, newborn: Thread, program: int, scratch: int, kept: int) -> Stub:
        """What stub() and prepare() do, in a child that has the loop, but its parent's slots; `scratch`: memory of these that is free."""
        frozen = Frozen(newborn.pid, {newborn.tid: newborn}, instruction=self._syscall)
        link = HomeLink([program], self._new_slots(frozen, scratch))
        try:
            child = Stub(frozen, link)
            child._code = self._code
            child.memory.is_whole = self.memory.is_whole
            child.memory.is_little = True
            child._slots = self._slots
            link.set_stub(frozen.pid, child._slots)
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

    def _new_slots(self, frozen: Frozen, scratch: int) -> int:
        """Has a child make memory for slots of its own, and map it in the place of those of its parent. Returns a descriptor of it.
        Errors: OSError."""
        _Memory(frozen.pid).write(scratch, SLOTS.encode() + b"\0")
        number = frozen.call(SYS.memfd_create, scratch, os.MFD_CLOEXEC)
        memory = os.open(f"/proc/{frozen.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            size = HomeLink.size_for(1)
            at = frozen.call(
                SYS.mmap, self._slots, size, _PROT_READ | _PROT_WRITE, _MAP_SHARED | _MAP_NORESERVE | _MAP_FIXED, number, 0
            )  # fmt: skip
            frozen.call(SYS.close, number)
            if self.link.size > size:
                frozen.call(SYS.munmap, at + size, self.link.size - size)
        except BaseException:
            os.close(memory)
            raise
        return memory

    def unbear(self, child: Stub) -> None:
        """Ends a child that has made no call, and takes it from the list of those that wait() would report. Errors: OSError,
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
        thread.instruction = self._syscall
        thread.capture()
        with suppress(ProcessLookupError):
            thread.call(SYS.exit, 0)
        self.thread_gone(host)

    def is_exiting(self, tid: int) -> bool:
        """Return whether a thread was in a call to end, or its process's."""
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


class _Memory:
    """What clone_task() writes its arguments to."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def write(self, address: int, data: bytes) -> None:
        """Errors: OSError."""
        native.write_memory(self.pid, address, data)
