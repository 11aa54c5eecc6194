"""Injection into real processes: the call is made in the process, which cannot notice it afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.signals.pending import take
from kernel_helpers.process import seizing, syscalls
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.tracing import SI_TKILL, signal_code, signal_number
from tests.programs.build import program as build_program


@contextlib.contextmanager
def program(source: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program, once it has printed its first line."""
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[bytes], timeout: float = 20) -> bytes:
    """The next line of its output (it writes whole lines, unbuffered by us)."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], timeout)[0], "no output in time"
    data = b""
    while not data.endswith(b"\n"):
        byte = os.read(process.stdout.fileno(), 1)
        assert byte, "it ended"
        data += byte
    return data


def blocked_in(pid: int, number: int, timeout: float = 10) -> None:
    """Waits until the process sleeps in system call `number`."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        fields = Path(f"/proc/{pid}/syscall").read_text().split()
        if fields[0] == str(number):
            return
        os.sched_yield()
    raise AssertionError(f"not in call {number}: {fields}")


def to_thread(tid: int, number: int) -> None:
    """tgkill(2) to the main thread of a process."""
    assert ctypes.CDLL(None).syscall(SYS.tgkill, tid, tid, number) == 0


def test_calls_happen_in_the_process_and_memory_comes_back() -> None:
    with program("import sys\nprint('up',flush=True)\nprint(sys.stdin.readline().strip(),flush=True)") as process:
        blocked_in(process.pid, SYS.read)
        with seizing.seize(process.pid) as frozen:
            assert frozen.call(SYS.getpid) == process.pid
            assert syscalls.syscall_at(frozen.leader.registers) == (SYS.read, -512)
            with frozen.scratch(64) as address:
                before = frozen.read(address - 64, 192)
                frozen.write(address, b"injected\n")
                assert frozen.call(SYS.write, 1, address, 9) == 9
                assert frozen.leader.call(SYS.close, 999) == -errno.EBADF
                with pytest.raises(OSError, match="close in") as caught:
                    frozen.call(SYS.close, 999)
                assert caught.value.errno == errno.EBADF
            assert frozen.read(address - 64, 192)[64:128] == before[64:128]
        assert line(process) == b"injected\n"
        assert process.stdin is not None
        process.stdin.write(b"native again\n")
        process.stdin.flush()
        assert line(process) == b"native again\n"
        assert process.wait(10) == 0


def test_a_program_that_faults_all_the_time_is_stopped_anywhere() -> None:
    """A fault's signal may already wait when the thread stops; dequeue_synchronous_signal() gives it out even while it is
    blocked, in the middle of an injected call."""
    with subprocess.Popen([str(build_program("faulting")), "600"], stdout=subprocess.PIPE) as process:
        try:
            assert line(process) == b"faulting\n"
            for _ in range(200):
                with seizing.seize(process.pid) as frozen:
                    for _ in range(3):
                        assert frozen.call(SYS.getpid) == process.pid
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_scratch_where_nothing_lies_below_the_stack_pointer() -> None:
    """A stack that has never been that deep, or ends just there: other bytes of it serve, and come back."""
    with subprocess.Popen([str(build_program("low_stack"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert line(process) == b"waiting\n"
            blocked_in(process.pid, SYS.read)
            with seizing.seize(process.pid) as frozen, frozen.scratch(512) as address:
                frozen.write(address, b"injected\n".ljust(512, b"."))
                assert frozen.call(SYS.write, 1, address, 9) == 9
            assert line(process) == b"injected\n"
            assert process.stdin is not None
            process.stdin.write(b"native again\n")
            process.stdin.flush()
            assert line(process) == b"native again\n"
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_sleep_goes_on_and_is_not_longer_for_it() -> None:
    source = "import time\nprint('up',flush=True)\nt=time.monotonic();time.sleep(1)\n"
    source += "print(time.monotonic()-t,flush=True)"
    with program(source) as process:
        blocked_in(process.pid, SYS.clock_nanosleep)
        with seizing.seize(process.pid) as frozen:
            for _ in range(200):
                frozen.call(SYS.getpid)
        assert 0.99 < float(line(process)) < 1.5


@pytest.mark.parametrize("calls", [False, True], ids=["stopped", "calls made in it"])
def test_a_signal_that_comes_meanwhile_ends_epoll_wait(calls: bool) -> None:
    """The stop ends it, too; it is to go on then, unless a handler runs."""
    source = """
import ctypes, os, select, signal
signal.signal(signal.SIGUSR1, lambda *_: None)
ep = select.epoll(); ep.register(0, select.EPOLLIN)
libc = ctypes.CDLL(None, use_errno=True); buffer = ctypes.create_string_buffer(12)
print('up', flush=True)
r = libc.epoll_wait(ep.fileno(), buffer, 1, 15000)
print(r, ctypes.get_errno() if r < 0 else 0, flush=True)
"""
    with program(source) as process:
        blocked_in(process.pid, SYS.epoll_wait)
        with seizing.seize(process.pid) as frozen:
            if calls:
                assert frozen.call(SYS.getpid) == process.pid
            os.kill(process.pid, signal.SIGUSR1)
        assert line(process, 10) == f"-1 {errno.EINTR}\n".encode()


def test_epoll_wait_does_not_see_the_stop() -> None:
    source = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
ep = select.epoll(); ep.register(0, select.EPOLLIN)
print('up', flush=True)
buffer = ctypes.create_string_buffer(64)
r = libc.epoll_wait(ep.fileno(), buffer, 1, -1)
print(r, ctypes.get_errno() if r < 0 else 0, flush=True)
"""
    with program(source) as process:
        blocked_in(process.pid, SYS.epoll_wait)
        with seizing.seize(process.pid) as frozen:
            assert syscalls.syscall_at(frozen.leader.registers) == (SYS.epoll_wait, -errno.EINTR)
            frozen.call(SYS.getppid)
        blocked_in(process.pid, SYS.epoll_wait)
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert line(process) == b"1 0\n"


def test_all_threads_are_stopped_and_go_on() -> None:
    source = """
import threading, sys
barrier = threading.Barrier(9); gate = threading.Event(); count = []
def work():
    barrier.wait(); gate.wait(); count.append(1)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; barrier.wait(); print('up', flush=True)
sys.stdin.readline(); gate.set(); [t.join() for t in threads]; print(len(count), flush=True)
"""
    with program(source) as process:
        with seizing.seize(process.pid) as frozen:
            assert len(frozen.threads) == 9
            for tid, thread in frozen.threads.items():
                assert thread.call(SYS.gettid) == tid
                state = Path(f"/proc/{process.pid}/task/{tid}/stat").read_text().rsplit(")", 1)[1].split()[0]
                assert state == "t"
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert line(process) == b"8\n"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGALRM])
def test_signal_sent_while_frozen_arrives_afterwards(number: signal.Signals) -> None:
    source = f"""
import signal, os, sys
signal.signal({int(number)}, lambda *a: os.write(1, b'handled\\n'))
print('up', flush=True)
while True: signal.pause()
"""
    with program(source) as process:
        blocked_in(process.pid, SYS.pause)
        with seizing.seize(process.pid) as frozen:
            os.kill(process.pid, number)
            assert frozen.call(SYS.getpid) == process.pid
        assert line(process) == b"handled\n"


def test_signal_that_beats_the_interrupt_is_kept() -> None:
    """SIGSTOP cannot be blocked: it stops the injected call's step, and takes effect when the process is let go."""
    with program("import signal\nprint('up',flush=True)\nsignal.pause()\nprint('on',flush=True)") as process:
        blocked_in(process.pid, SYS.pause)
        frozen = seizing.seize(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        assert frozen.call(SYS.getpid) == process.pid
        assert [signal_number(info) for info in frozen.leader.in_hand] == [signal.SIGSTOP]
        frozen.detach()
        pid, status = os.waitpid(process.pid, os.WUNTRACED)
        assert pid == process.pid and os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP
        os.kill(process.pid, signal.SIGCONT)
        blocked_in(process.pid, SYS.pause)


TICKS = """if 1:
    import ctypes, signal
    signal.signal(signal.SIGALRM, lambda *_: None)
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    libc.timer_create(1, None, ctypes.byref(timer))
    print('up', flush=True)
    libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 50_000, 0, 50_000), None)
    while True: pass
"""


def test_a_signal_that_is_taken_when_the_interrupt_comes_does_not_replace_it() -> None:
    """A timer's is taken in two steps, and its stop clears what was asked for between them: no other stop would come."""
    with program(TICKS) as process:
        for _ in range(500):
            seizing.seize(process.pid).detach()


def test_a_stop_that_was_continued_since_is_over() -> None:
    """As at home, where SIGCONT ends all stops before it: also one that has been taken, and is not pending any more."""
    with program("import signal\nprint('up',flush=True)\nsignal.pause()") as process:
        for _ in range(2):
            blocked_in(process.pid, SYS.pause)
            frozen = seizing.seize(process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            assert frozen.call(SYS.getpid) == process.pid
            assert [signal_number(info) for info in frozen.leader.in_hand] == [signal.SIGSTOP]
            os.kill(process.pid, signal.SIGCONT)
            assert frozen.call(SYS.getpid) == process.pid
            frozen.detach()
            time.sleep(0.05)
            assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"


TRAPPED = """if 1:
    import os, signal, time
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
    print('up', flush=True)
    heard = [signal.sigwaitinfo([signal.SIGTRAP]) for _ in range(2)]
    print(sorted((info.si_code, info.si_pid == os.getppid()) for info in heard), flush=True)
"""


@pytest.mark.parametrize("gently", [False, True])
def test_a_stop_and_two_traps_that_come_meanwhile_are_all_kept(gently: bool) -> None:
    with program(TRAPPED) as process:
        blocked_in(process.pid, SYS.rt_sigtimedwait)
        frozen = seizing.seize(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGTRAP)
        to_thread(process.pid, signal.SIGTRAP)
        assert frozen.call(SYS.getpid) == process.pid
        in_hand = {(signal_number(info), signal_code(info)) for info in frozen.leader.in_hand}
        assert in_hand == {(signal.SIGSTOP, 0), (signal.SIGTRAP, 0), (signal.SIGTRAP, SI_TKILL)}
        if gently:
            frozen.park()
        frozen.detach()
        assert os.waitpid(process.pid, os.WUNTRACED)[1] >> 8 == signal.SIGSTOP
        os.kill(process.pid, signal.SIGCONT)
        assert line(process) == b"[(0, True), (0, True)]\n"  # which glibc makes of SI_TKILL


def test_of_more_than_can_wait_in_the_kernel_no_more_is_kept() -> None:
    with program("import signal\nprint('up',flush=True)\nsignal.pause()") as process:
        blocked_in(process.pid, SYS.pause)
        frozen = seizing.seize(process.pid)
        for _ in range(20):
            for number in (signal.SIGSTOP, signal.SIGTRAP):
                os.kill(process.pid, number)
                to_thread(process.pid, number)
            assert frozen.call(SYS.getpid) == process.pid
        assert len(frozen.leader.in_hand) == 4
        frozen.leader.take_in_hand()
        frozen.detach()


def test_stops_and_continues_are_delivered_in_their_order() -> None:
    """This holds if the process was in a call when they came."""
    with program("import signal\nprint('up',flush=True)\nsignal.pause()") as process:
        blocked_in(process.pid, SYS.pause)
        with seizing.seize(process.pid) as frozen:
            os.kill(process.pid, signal.SIGSTOP)
            assert frozen.call(SYS.getpid) == process.pid
            os.kill(process.pid, signal.SIGCONT)
            assert [signal_number(info) for _, info in take(frozen)] == [signal.SIGSTOP, signal.SIGCONT]
            os.kill(process.pid, signal.SIGCONT)
            os.kill(process.pid, signal.SIGSTOP)  # which ends that
            assert [signal_number(info) for _, info in take(frozen)] == [signal.SIGSTOP]


def test_stopped_job_is_seized_and_stays_stopped() -> None:
    with program("import signal\nprint('up',flush=True)\nsignal.pause()") as process:
        blocked_in(process.pid, SYS.pause)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        with seizing.seize(process.pid) as frozen:
            assert frozen.leader.group_stop == signal.SIGSTOP
            assert frozen.call(SYS.getpid) == process.pid
        end = time.monotonic() + 5
        while (state := Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]) != "T":
            assert time.monotonic() < end, state
        os.kill(process.pid, signal.SIGCONT)
        blocked_in(process.pid, SYS.pause)


def test_call_that_blocks_is_bounded() -> None:
    with program("import sys\nprint('up',flush=True)\nprint(sys.stdin.readline(),flush=True)") as process:
        blocked_in(process.pid, SYS.read)
        with seizing.seize(process.pid) as frozen:
            frozen.leader.call_timeout = 0.2
            with pytest.raises(TimeoutError):
                frozen.call(SYS.pause)
            assert frozen.call(SYS.getpid) == process.pid
        blocked_in(process.pid, SYS.read)


def test_registers_and_extended_state_are_whole() -> None:
    """A loop that keeps its state in vector and general registers only gives the right sum after many freezes."""
    source = "print('up',flush=True)\ns=0.0\nfor i in range(6_000_000): s+=i*0.5\nprint(s,flush=True)"
    with program(source) as process:
        for _ in range(40):
            with seizing.seize(process.pid) as frozen:
                state = frozen.leader.extended_state()
                assert len(state) >= 512
                frozen.call(SYS.gettid)
                frozen.leader.set_extended_state(state)
        expected = 0.0
        for i in range(6_000_000):
            expected += i * 0.5
        assert float(line(process, 60)) == expected


def test_no_process_and_foreign_tracer_raise_different_errors() -> None:
    with pytest.raises(ProcessLookupError):
        seizing.seize(2**22 - 7)
    with program("import signal\nprint('up',flush=True)\nsignal.pause()") as process:
        with seizing.seize(process.pid), pytest.raises(PermissionError):
            seizing.seize(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            seizing.seize(process.pid)


def test_process_killed_while_frozen() -> None:
    with program("import signal\nprint('up',flush=True)\nsignal.pause()") as process:
        with seizing.seize(process.pid) as frozen:
            process.kill()
            with pytest.raises(ProcessLookupError):
                frozen.call(SYS.getpid)
        assert process.wait(5) == -signal.SIGKILL


def test_process_of_several_threads_killed_in_an_injected_call() -> None:
    """Its main thread is not reported until the others, which have died, too, have been waited for."""
    source = """
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print('up', flush=True)
time.sleep(60)
"""
    with program(source) as process:
        with seizing.seize(process.pid) as frozen:
            frozen.leader.call_timeout = 15.0
            killer = threading.Timer(0.3, process.kill)
            killer.start()
            with pytest.raises(ProcessLookupError):
                frozen.call(SYS.pause)
            killer.join()
        assert process.wait(5) == -signal.SIGKILL


def test_normalise_restart_rewinds_restarts_and_keeps_other_calls() -> None:
    def registers(rax: int, number: int) -> syscalls.Registers:
        value = syscalls.Registers()
        value.rax, value.orig_rax, value.rip = rax & syscalls.U64, number & syscalls.U64, 0x1000
        return value

    for code in (-512, -513, -514, -516):
        value = registers(code, SYS.read)
        assert syscalls.normalise_restart(value) == code
        assert (value.rax, value.rip, syscalls.signed(value.orig_rax)) == (SYS.read, 0xFFE, -1)
    value = registers(-516, SYS.futex)
    assert syscalls.normalise_restart(value) == -516 and (value.rax, value.rip) == (0, 0x1000)
    value = registers(-errno.EINTR, SYS.epoll_wait)
    assert syscalls.normalise_restart(value) == -errno.EINTR and value.rip == 0xFFE
    value = registers(-errno.EINTR, SYS.read)
    assert syscalls.normalise_restart(value) == 0 and syscalls.signed(value.rax) == -errno.EINTR
    value = registers(-512, -1)
    assert syscalls.normalise_restart(value) == 0 and (syscalls.signed(value.rax), value.rip) == (-512, 0x1000)
