"""Real programs to move, and the steps of a move without link and deputy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.criu import criu
from engine.criu.forkcopy import fork_copy
from engine.files import files
from engine.pour.arrival import wake
from kernel_helpers.process import seizing
from kernel_helpers.process.injection import native
from remote.sandbox.sandbox import Sandbox
from tests.remote.ids import own_ids

PYTHON = str(Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python")
"""The Python of programs that move: also where the tests run in one with sanitizers, which has terabytes of shadow memory."""
COUNTER = r"""
// Counts in memory, in integer and in vector registers, in THREADS threads; says so in `report` if they ever differ.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
struct { volatile long count[8], wrong, signals, children; char wiped[4096], text[64]; } report __attribute__((aligned(4096)));
static volatile unsigned char *wiped;
static void on_child(int number) { (void)number; report.children++; }
static void on_signal(int number) { (void)number; report.signals++; }
static void *work(void *argument)
{
    long me = (long)argument, i = 0;
    double x = 0, y[4] = {0, 0, 0, 0};
    char name[16];
    snprintf(name, sizeof name, "worker-%ld", me);
    prctl(PR_SET_NAME, name);
    char *stack = malloc(SIGSTKSZ);
    stack_t alternate = {.ss_sp = stack, .ss_size = SIGSTKSZ};
    sigaltstack(&alternate, 0);
    for (;;) {
        i++, x += 1.0;
        for (int k = 0; k < 4; k++) y[k] += 0.5;
        if (x != (double)i || y[3] * 2 != x) report.wrong |= 1;
        if (wiped[0] != 77) report.wrong |= 2;
        stack_t now;
        if (!(i & 0xffff)) { sigaltstack(0, &now); if (now.ss_sp != stack) report.wrong |= 4; }
        report.count[me] = i;
    }
}
int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    signal(SIGCHLD, on_child);
    signal(SIGUSR1, on_signal);
    wiped = mmap(0, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    wiped[0] = 77;
    if (madvise((void *)wiped, 4096, MADV_WIPEONFORK)) return 1;
    for (long i = 1; i < threads; i++) { pthread_t t; pthread_create(&t, 0, work, (void *)i); }
    printf("%p\n", (void *)&report);
    fflush(stdout);
    work(0);
}
"""

PYTHON_COUNTER = """
import ctypes, threading
count = (ctypes.c_long * 16)()
print(hex(ctypes.addressof(count)), flush=True)
squares = {}
while True:
    i = count[0]
    squares[i % 1000] = i * i
    count[0] = i + 1 if squares[i % 1000] == i ** 2 else -10**9
"""


class Report(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_long * 8), ("wrong", ctypes.c_long), ("signals", ctypes.c_long), ("children", ctypes.c_long)
    ]  # fmt: skip


@dataclass
class Program:
    process: subprocess.Popen[bytes]
    address: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def report(self, pid: int | None = None) -> Report:
        """The program's own account, in this process or in the guest `pid` that it became."""
        with open(f"/proc/{pid or self.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(self.address)
            return Report.from_buffer_copy(memory.read(ctypes.sizeof(Report)))


@contextlib.contextmanager
def running(argv: list[str], user: str | None = None) -> Iterator[Program]:
    """Runs a counting program; yields it once it has printed the address of its counter."""
    identity = {} if user is None else {
        "user": pwd.getpwnam(user).pw_uid, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []
    }  # fmt: skip
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **identity,  # type: ignore[call-overload]
    )
    try:
        assert process.stdout is not None
        program = Program(process, int(process.stdout.readline(), 16))
        eventually(lambda: program.report().count[0] > 0)
        yield program
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()  # not read to its end: a copy that a failed test has left holds it, too
        process.wait(10)


def eventually(condition: Callable[[], bool], timeout: float = 20.0, what: str = "it") -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"{what} does not come about"
        time.sleep(0.001)


def counts_on(program: Program, pid: int | None = None, threads: int = 1) -> None:
    """Every thread makes progress, and none found anything wrong."""
    before = list(program.report(pid).count)
    eventually(lambda: all(program.report(pid).count[i] > before[i] for i in range(threads)), what=f"progress of {pid or program.pid}")
    assert program.report(pid).wrong == 0


def descendants() -> set[int]:
    """All processes below this one, zombies too."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = {int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()}
                todo += children - found
                found |= children
    return found


def images_of(pid: int, directory: Path, sandbox: Sandbox | None = None, options: int = 0) -> None:
    """Freeze, copy, dump; the process goes on."""
    directory.mkdir()
    with seizing.seize(pid, options) as frozen:
        copy = fork_copy(frozen)
        try:
            criu.dump(copy, directory, sandbox)
        finally:
            copy.discard()


@contextlib.contextmanager
def restored(pid: int, shown: list[tuple[str, str]], directory: Path, **options: Any) -> Iterator[tuple[Sandbox, seizing.Frozen]]:
    """Process `pid` out of images in a sandbox, ptrace-stopped before its next instruction."""
    sandbox = Sandbox.create(f"test-{pid}", shown, images=directory, identities=own_ids(), **options)
    try:
        guest = criu.restore(directory, sandbox, pid)
        sandbox.confine()
        frozen = seizing.seize(guest, native.PTRACE_O_EXITKILL)
        wake(frozen)
        yield sandbox, frozen
    finally:
        sandbox.destroy()


def shown_files(pid: int) -> list[tuple[str, str]]:
    return [(file.path, file.path) for file in files.mapped_files(pid)]
