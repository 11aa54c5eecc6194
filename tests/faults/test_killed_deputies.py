"""Deputies that are killed at any moment of a departure, not only where a move can be stopped."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running, log_lines
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(600)
LATEST = 0.15
"""Seconds after a deputy's begin: by then the process has left."""


def deputy_of(process: Running) -> int:
    """As this machine numbers it; 0: it is not there."""
    node = os.readlink(process.cluster.home.root.parent / "ns/pid")  # the same number may be another's in another laboratory
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                is_its = b"deputy" in words and words[words.index(b"--pid") + 1] == str(process.pid).encode()
                if is_its and os.readlink(entry / "ns/pid") == node and not is_zombie(entry):
                    return int(entry.name)
    return 0


def is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"


def kill_in_departure(process: Running, delay: float, with_mosd: bool) -> None:
    node = process.cluster.lab.node(HOME)
    waiting = process.cluster.home.popen(["migrate", str(process.pid), "n2"], "", stdout=-1, stderr=-1)
    deputy = until("its deputy has begun", lambda: deputy_of(process), every=0.001)
    time.sleep(delay)
    if with_mosd:
        node.stop_mosd(signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(deputy, signal.SIGKILL)
    waiting.communicate(timeout=30)
    if with_mosd:
        node.start_mosd()


@pytest.mark.parametrize("with_mosd", [False, True], ids=["alone", "with mosd"])
@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.soak)])
def test_the_process_goes_on_unless_it_has_left(cluster: Cluster, rounds: int, with_mosd: bool) -> None:
    """Which another mosd sees to, if that has been killed, too."""
    rng, left = random.Random(rounds), rounds
    while left > 0:
        with Running(cluster, "kinds", "beats 8 20") as process:
            survived = 0
            while left > 0 and goes_on_after(process, rng.uniform(0.0, LATEST), with_mosd):
                survived, left = survived + 1, left - 1
            left -= 1
            if process.process.poll() is None:
                until("it can leave", lambda process=process: process.move("n2").done, seconds=30, every=0.5)  # type: ignore[misc]
                process.works()
                (process.directory / "enough").touch()
                assert process.end().endswith("status 0\n")


def goes_on_after(process: Running, delay: float, with_mosd: bool) -> bool:
    """delay: seconds from the deputy's begin to its end."""
    kill_in_departure(process, delay, with_mosd)
    journals = process.cluster.home.root / "run/farhome/deputy"
    until("what it was is put back", lambda: not any(path.suffix == ".journal" for path in journals.iterdir()))
    before = len(process.lines())
    until("it goes on, or ends", lambda: process.process.poll() is not None or len(process.lines()) > before)
    if process.process.poll() is None:
        return True
    assert process.said.endswith("status 137\n"), f"{delay * 1e3:.1f} ms: {process.said}"
    assert log_lines(process.cluster, "n2", f"guest {HOME}-{process.pid} runs here"), f"{delay * 1e3:.1f} ms"
    return False


def kill_at(process: Running, node: str, step: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Kills its deputy when its way out has come to that step, of whoever is at it, after `meanwhile`."""
    with Stop(process.cluster, node, step) as stop:
        waiting = process.cluster.home.popen(["migrate", str(process.pid), "n2"], "", stdout=-1, stderr=-1)
        stop.wait(lambda: None if waiting.poll() is None else waiting.communicate())
        meanwhile()
        os.kill(deputy_of(process), signal.SIGKILL)
        waiting.communicate(timeout=30)


@pytest.mark.parametrize(("node", "step"), [("n2", "arrival: run"), (HOME, "out: start there")])
def test_the_guest_of_one_that_has_just_left_ends_with_it(stoppable: Cluster, node: str, step: str) -> None:
    """At once, and not when its node has waited for its home long enough."""
    with Running(stoppable, "kinds", "beats 8 20") as process:
        until("it moves", lambda: process.move("n2").done and process.move(HOME).done, seconds=30, every=0.5)
        kill_at(process, node, step)
        assert process.end().endswith("status 137\n")
    place = stoppable.place("n2")
    until("the guest has ended", lambda: '"pid"' not in place.run("mosps", "--json", "--guests").stdout, seconds=15)


def test_its_guest_ends_though_its_end_is_heard_before_that_it_has_come(stoppable: Cluster) -> None:
    """Its daemon finds both at once: its end, and the deputy's last word."""
    node, place = stoppable.lab.node(HOME), stoppable.place("n2")
    with Running(stoppable, "kinds", "beats 8 20") as process:
        with Stop(stoppable, HOME, "out: capture") as stop:
            waiting = stoppable.home.popen(["migrate", str(process.pid), "n2"], "", stdout=-1, stderr=-1)
            stop.wait(lambda: None if waiting.poll() is None else waiting.communicate())
            node.signal_mosd(signal.SIGSTOP)
        try:
            log = stoppable.home.root / f"run/farhome/log/deputy-{process.pid}.log"
            until("its deputy has reported it", lambda: "is on n2" in log.read_text(), seconds=30)
            time.sleep(0.1)
            os.kill(deputy_of(process), signal.SIGKILL)
            until("its stub has ended", lambda: not (stoppable.home.root / f"proc/{process.pid}").exists())
        finally:
            node.signal_mosd(signal.SIGCONT)
        waiting.communicate(timeout=30)
        assert process.end().endswith("status 137\n")
    until("the guest has ended", lambda: '"pid"' not in place.run("mosps", "--json", "--guests").stdout, seconds=15)


def test_its_guest_ends_though_no_daemon_was_there_when_it_ended(stoppable: Cluster) -> None:
    node, place = stoppable.lab.node(HOME), stoppable.place("n2")
    with Running(stoppable, "kinds", "beats 8 20") as process:
        until("it moves", lambda: process.move("n2").done, seconds=30, every=0.5)
        node.stop_mosd(signal.SIGKILL)
        try:
            os.kill(deputy_of(process), signal.SIGKILL)
            assert process.end().endswith("status 137\n")
        finally:
            node.start_mosd()
    until("the guest has ended", lambda: '"pid"' not in place.run("mosps", "--json", "--guests").stdout, seconds=15)


def test_one_that_goes_on_and_ends_is_not_lost(stoppable: Cluster) -> None:
    with Running(stoppable, "kinds", "beats 8 20") as process:
        until("it moves", lambda: process.move("n2").done and process.move(HOME).done, seconds=30, every=0.5)
        kill_at(process, HOME, "out: capture", meanwhile=(process.directory / "enough").touch)  # it looks for it as soon as it runs
        assert process.end().endswith("status 0\n")
    until("it has gone on", lambda: log_lines(stoppable, HOME, f"process {process.pid} goes on without its deputy"))
    time.sleep(2.5)  # for the daemon to make up its mind
    assert not log_lines(stoppable, HOME, f"process {process.pid} is lost")
