"""Samples of runnable threads are made all the time, and kept until they are requested."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from statistics import fmean, mode

import pytest

from kernel_helpers.usage.sampler import MOST, Sampler
from tests.node.nodes import wait_for


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that computes."""
    program = subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"])
    yield program.pid
    program.kill()
    program.wait(10)


def test_samples_wait_until_they_are_taken_each_once_and_in_order() -> None:
    begun = time.monotonic()
    sampler = Sampler(True, 0.002)
    try:
        taken: list[float] = []

        def take() -> int:
            taken.extend(at for at, _ in sampler.take([]))
            return len(taken)

        assert take() >= 1  # one is made at once
        wait_for(lambda: take() > 20, message="more samples")
    finally:
        sampler.stop()
    assert taken == sorted(set(taken))
    assert begun <= taken[0]
    assert taken[-1] <= time.monotonic()


def test_of_samples_not_requested_the_newest_are_kept() -> None:
    sampler, late = Sampler(True, 0.0001), Sampler(True, 0.0001)
    try:
        made = 0

        def others() -> int:
            nonlocal made
            made += len(sampler.take([]))
            return made

        wait_for(lambda: others() > 4 * MOST, message="more samples than are kept")
        wait_for(lambda: time.monotonic() - late.take([])[-1][0] < 10, message="a sample")
        assert len(late.take([])) <= MOST
    finally:
        sampler.stop()
        late.stop()


@pytest.mark.parametrize("is_machine", [True, False])
def test_a_computing_thread_is_counted(busy: int, is_machine: bool) -> None:
    sampler = Sampler(is_machine, 0.01)
    try:
        wait_for(lambda: any(threads for _, threads in sampler.take([])), message="a runnable thread")
    finally:
        sampler.stop()


def test_an_excluded_process_is_not_counted_in_earlier_samples(busy: int) -> None:
    """Both count at the same pace what is on the machine; others may run there as well."""
    all_pids = frozenset(int(name) for name in os.listdir("/proc") if name.isdigit()) - {busy}
    sampler = Sampler(False, 0.01)
    try:
        wait_for(lambda: any(threads == 1 for _, threads in sampler.take(all_pids)), message="one that is counted")
        wait_for(lambda: any(threads == 0 for _, threads in sampler.take(all_pids | {busy})), message="one that is not")
    finally:
        sampler.stop()


def test_a_long_sleeper_that_runs_again_is_found_and_counts_once(busy: int) -> None:
    """A sleeping thread is checked in some of the samples only; the first that finds it running counts it for the others too."""
    sampler, found = Sampler(False, 0.005), []

    def take() -> list[int]:
        others = frozenset(int(name) for name in os.listdir("/proc") if name.isdigit()) - {busy}
        return [threads for _, threads in sampler.take(others)]

    def sleeps() -> bool:
        found.extend(take())
        return len(found) > 100 and not any(found[-30:])

    def runs() -> bool:
        found.extend(take())
        return len(found) > 50 and any(found)

    try:
        os.kill(busy, signal.SIGSTOP)
        wait_for(sleeps, message="samples of a process that sleeps")
        found.clear()
        os.kill(busy, signal.SIGCONT)
        wait_for(runs, message="samples of it running")
    finally:
        sampler.stop()
    running = found[next(number for number, threads in enumerate(found) if threads) :]
    assert running[0] >= 4
    assert mode(running[1:]) == 1


def _open_of(pids: set[int]) -> set[int]:
    """Returns those of the pids whose `stat` is open here."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return {pid for pid in pids if any(link.startswith(f"/proc/{pid}/stat") for link in links)}  # of one that has ended: "… (deleted)"


def test_descriptors_of_processes_are_closed_at_their_end_and_at_the_samplers() -> None:
    sampler = Sampler(False, 0.005)
    programs = [
        subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"]) for _ in range(6)
    ]  # the descriptor of a sleeper is soon closed
    pids = {program.pid for program in programs}

    def opened() -> set[int]:
        sampler.take(frozenset(int(name) for name in os.listdir("/proc") if name.isdigit()) - pids)
        return _open_of(pids)

    try:
        wait_for(lambda: opened() == pids, message="a check of all")
        for program in programs[:3]:
            program.kill()
            program.wait(10)
        rest = {program.pid for program in programs[3:]}
        wait_for(lambda: opened() == rest, message="that those who have ended are forgotten")
    finally:
        sampler.stop()
        for program in programs:
            program.kill()
            program.wait(10)
    assert not _open_of(pids)


def test_more_processes_run_than_are_kept_open_and_all_count() -> None:
    programs = [subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"]) for _ in range(70)]
    all_pids = frozenset(int(name) for name in os.listdir("/proc") if name.isdigit()) - {program.pid for program in programs}
    found: list[int] = []
    sampler = Sampler(False, 0.01)

    def take() -> int:
        found.extend(threads for _, threads in sampler.take(all_pids))
        return len(found)

    try:
        wait_for(lambda: take() > 45, message="samples")
    finally:
        sampler.stop()
        for program in programs:
            program.kill()
        for program in programs:
            program.wait(10)
    assert fmean(found[20:45]) == pytest.approx(len(programs), rel=0.1)


def test_nothing_comes_after_the_end() -> None:
    sampler = Sampler(False, 0.01)
    sampler.stop()
    sampler.stop()
    assert sampler.take([]) == []
