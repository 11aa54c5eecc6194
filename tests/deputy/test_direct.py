"""Descriptors that may be read elsewhere: their kinds, and the other holders of their position."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from deputy.requests.direct_files import KINDS, facts, has_one_table, is_alone, mount_to_read, set_position

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="examines all processes")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    return path


def is_fit(number: int) -> bool:
    mount = mount_to_read(os.getpid(), number)
    return mount is not None and mount.kind in KINDS


def test_a_file_that_is_only_read_is_fit_and_nothing_else(path: Path, tmp_path: Path) -> None:
    def fits(name: str | Path, flags: int) -> bool:
        number = os.open(name, flags)
        try:
            return is_fit(number)
        finally:
            os.close(number)

    assert fits(path, os.O_RDONLY)
    for name, flags in (
        (path, os.O_RDWR), (path, os.O_WRONLY), (path, os.O_PATH), (tmp_path, os.O_RDONLY), ("/proc/self/status", os.O_RDONLY),
        ("/dev/null", os.O_RDONLY), ("/sys/kernel/profiling", os.O_RDONLY), ("/dev/zero", os.O_RDONLY),
    ):  # fmt: skip
        if os.path.exists(name):
            assert not fits(name, flags), (name, flags)
    with tempfile.TemporaryFile(dir=tmp_path) as nameless:
        number = os.open(f"/proc/self/fd/{nameless.fileno()}", os.O_RDONLY)
        assert is_fit(number)
        os.close(number)
    memory = os.memfd_create("x")
    again = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    assert not is_fit(again)
    os.close(memory)
    os.close(again)


def finds_sharers_of_the_position(path: Path) -> None:
    number, other = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
    try:
        assert is_alone(os.getpid(), number), "another open file of the same name has its own position"
        again = os.dup(number)
        assert not is_alone(os.getpid(), number)
        os.close(again)
        assert is_alone(os.getpid(), number)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[number]) as child:
            assert not is_alone(os.getpid(), number)
            assert is_alone(os.getpid(), other)
            assert child.stdin is not None
            child.stdin.close()
        assert is_alone(os.getpid(), number)
    finally:
        os.close(number)
        os.close(other)


def finds_a_descriptor_in_transit(path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(path, "rb") as file:
        socket.send_fds(ours, [b"x"], [file.fileno()])
        assert not is_alone(os.getpid(), file.fileno())
        _, (received,), *_ = socket.recv_fds(theirs, 1, 1)
        assert not is_alone(os.getpid(), file.fileno())
        os.close(received)
        assert is_alone(os.getpid(), file.fileno())


@pytest.mark.parametrize("judge", [finds_sharers_of_the_position, finds_a_descriptor_in_transit])
def test_sharers_of_a_file_position_are_found(judge: Callable[[Path], None], path: Path) -> None:
    """Where there are no other processes: a descriptor that any process of the machine sends may be this one, and other tests send some."""
    code = f"from pathlib import Path; from {__name__} import {judge.__name__} as judge; judge(Path({str(path)!r}))"
    ours, theirs = socket.socketpair()
    with ours, theirs, open("/dev/null", "rb") as null:
        socket.send_fds(ours, [b"x"], [null.fileno()])
        subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True
        )


def test_a_position_is_set_in_another_process(path: Path) -> None:
    with open(path, "rb") as file, subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file.fileno()]) as child:
        set_position(child.pid, file.fileno(), 77)
        assert facts(child.pid, file.fileno())["pos"] == "77"
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 77
        with pytest.raises(OSError, match="Bad file descriptor"):
            set_position(child.pid, 900, 1)
        assert child.stdin is not None
        child.stdin.close()


APART = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static char *kind;
static void *work(void *ignored)
{
    char byte;
    int is_ready = strcmp(kind, "apart") || !unshare(CLONE_FILES);
    if (is_ready && (strcmp(kind, "with a child") || syscall(SYS_clone, CLONE_FILES, 0, 0, 0, 0)))
        is_ready = write(1, "there\n", 6) == 6;
    read(0, &byte, is_ready);
    _exit(0);
}
int main(int count, char **words)
{
    pthread_t thread;
    kind = words[count - 1];
    return pthread_create(&thread, 0, work, 0) || pthread_join(thread, 0);
}
"""


@pytest.mark.parametrize("kind", ["together", "apart", "with a child"])
def test_threads_with_descriptors_of_their_own_are_found(kind: str, tmp_path: Path) -> None:
    program = tmp_path / "apart"
    subprocess.run(["gcc", "-w", "-pthread", "-x", "c", "-", "-o", program], input=APART.encode(), timeout=60, check=True)
    with subprocess.Popen([program, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert has_one_table(process.pid) == (kind == "together")
        process.stdin.close()
