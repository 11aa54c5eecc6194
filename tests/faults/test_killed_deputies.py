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
    """Returns the pid of a process's deputy on the host machine; 0: there is none."""
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
@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_the_process_goes_on_unless_it_has_left(stoppable: Cluster, rounds: int, with_mosd: bool) -> None:
    """The next mosd mends the process, if mosd has been killed, too."""
    rng, left = random.Random(rounds), rounds
    while left > 0:
        with Running(stoppable, "kinds", "beats 8 20") as process:
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
    # Its node may say so a moment after the stub has ended with its deputy.
    until(f"it runs on n2; {delay * 1e3:.1f} ms", lambda: log_lines(process.cluster, "n2", f"guest {HOME}-{process.pid} runs here"))
    until(f"its guest has ended; {delay * 1e3:.1f} ms", lambda: not process.cluster.guests("n2"), seconds=15)
    return False


def kill_at(process: Running, node: str, step: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Kills the process's deputy when its way out has come to that step, after `meanwhile`."""
    with Stop(process.cluster, node, step) as stop:
        waiting = process.cluster.home.popen(["migrate", str(process.pid), "n2"], "", stdout=-1, stderr=-1)
        stop.wait(lambda: None if waiting.poll() is None else waiting.communicate())
        meanwhile()
        os.kill(deputy_of(process), signal.SIGKILL)
        waiting.communicate(timeout=30)


@pytest.mark.parametrize(("node", "step"), [("n2", "arrival: run"), (HOME, "out: running there")])
def test_the_guest_of_one_that_has_just_left_ends_with_it(stoppable: Cluster, node: str, step: str) -> None:
    """At once, and not when its node has waited for its home long enough."""
    with Running(stoppable, "kinds", "beats 8 20") as process:
        until("it moves", lambda: process.move("n2").done and process.move(HOME).done, seconds=30, every=0.5)
        kill_at(process, node, step)
        assert process.end().endswith("status 137\n")
    until("the guest has ended", lambda: not stoppable.guests("n2"), seconds=15)


@pytest.mark.parametrize("with_mosd", [False, True], ids=["alone", "with mosd"])
@pytest.mark.parametrize("step", ["out: link made", "out: restored there"])
def test_a_ready_copy_on_a_node_ends_if_its_deputy_has_not_decided(stoppable: Cluster, step: str, with_mosd: bool) -> None:
    """The node does not know whether the process is to run there; its home does: it goes on at home, and can leave again."""
    home = stoppable.lab.node(HOME)

    def is_ready() -> None:
        time.sleep(0.5)  # the node reports this only to the deputy
        if with_mosd:
            home.stop_mosd(signal.SIGKILL)

    with Running(stoppable, "kinds", "beats 8 20") as process:
        kill_at(process, HOME, step, is_ready)
        if with_mosd:
            home.start_mosd()
        process.works()
        until("nothing is left of it", lambda: not stoppable.guests("n2"), seconds=15)
        until("it can leave", lambda: process.move("n2").done, seconds=30, every=0.5)
        process.works()
        (process.directory / "enough").touch()
        assert process.end().endswith("status 0\n")


def test_the_guest_ends_if_its_end_is_heard_before_its_arrival(stoppable: Cluster) -> None:
    """Its daemon finds its end and the deputy's last message at once."""
    node = stoppable.lab.node(HOME)
    with Running(stoppable, "kinds", "beats 8 20") as process:
        with Stop(stoppable, HOME, "out: captured") as stop:
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
    until("the guest has ended", lambda: not stoppable.guests("n2"), seconds=15)


def test_the_guest_ends_if_no_daemon_ran_at_the_end_of_its_process(stoppable: Cluster) -> None:
    node = stoppable.lab.node(HOME)
    with Running(stoppable, "kinds", "beats 8 20") as process:
        until("it moves", lambda: process.move("n2").done, seconds=30, every=0.5)
        node.stop_mosd(signal.SIGKILL)
        try:
            os.kill(deputy_of(process), signal.SIGKILL)
            assert process.end().endswith("status 137\n")
        finally:
            node.start_mosd()
    until("the guest has ended", lambda: not stoppable.guests("n2"), seconds=15)


def test_the_guest_ends_if_its_daemon_was_killed_before_it_could_report(stoppable: Cluster) -> None:
    """The next one does not know that there was such a process: the node asks it."""
    node = stoppable.lab.node(HOME)
    with Running(stoppable, "kinds", "beats 8 20") as process:
        until("it moves", lambda: process.move("n2").done, seconds=30, every=0.5)
        os.kill(deputy_of(process), signal.SIGKILL)
        until("that is seen", lambda: log_lines(stoppable, HOME, f"process {process.pid} ended while it was on n2"), every=0.001)
        node.stop_mosd(signal.SIGKILL)
        node.start_mosd()
        assert process.end().endswith("status 137\n")
    until("the guest has ended", lambda: not stoppable.guests("n2"), seconds=30)


PARENT = """
import ctypes, os, sys, time
def await_file(name):
    while not os.path.exists(name):
        time.sleep(0.02)
await_file("go")
if not os.fork():
    if sys.argv[1] == "home":
        ctypes.CDLL(None).syscall(436, 900, 901, 2)  # close_range, which takes it there
    open("child", "w").write(str(os.getpid()))
    await_file("enough")
    os._exit(0)
print("child ended with", os.wait()[1], flush=True)
"""


def bears(process: Running) -> int:
    """Makes it fork while no daemon at home can hear of that; returns the child's pid."""
    process.moved("n2")
    process.cluster.lab.node(HOME).signal_mosd(signal.SIGSTOP)
    (process.directory / "go").touch()
    return int(until("the child is there", lambda: (child := process.directory / "child").exists() and child.read_text(), seconds=30))


def test_a_child_of_which_no_daemon_knows_ends_with_its_deputy(stoppable: Cluster) -> None:
    node = stoppable.lab.node(HOME)
    with Running(stoppable, "kinds", "", command=f"python3 -c '{PARENT}' away") as process:
        try:
            bears(process)
            os.kill(deputy_of(process), signal.SIGKILL)
        finally:
            node.signal_mosd(signal.SIGCONT)
        assert process.end().endswith("status 137\n")
    until("the guests have ended", lambda: not stoppable.guests("n2"), seconds=30)


def test_a_child_that_is_home_before_a_daemon_knows_of_it_is_listed(stoppable: Cluster) -> None:
    node = stoppable.lab.node(HOME)
    with Running(stoppable, "kinds", "", command=f"python3 -c '{PARENT}' home") as process:
        try:
            child = bears(process)
            log = stoppable.home.root / f"run/farhome/log/deputy-{process.pid}.log"
            until("it is home", lambda: f"process {child} is home" in log.read_text(), seconds=30)
            until("its socket is gone there", lambda: not (stoppable.home.root / f"run/farhome/deputy/{child}.sock").exists())
        finally:
            node.signal_mosd(signal.SIGCONT)
        until("it is listed", lambda: child in [row["pid"] for row in stoppable.processes(process.job)], seconds=20)
        (process.directory / "enough").touch()
        assert process.end().endswith("child ended with 0\nstatus 0\n")


def test_a_process_that_goes_on_and_ends_is_not_lost(stoppable: Cluster) -> None:
    with Running(stoppable, "kinds", "beats 8 20") as process:
        until("it moves", lambda: process.move("n2").done and process.move(HOME).done, seconds=30, every=0.5)
        kill_at(process, HOME, "out: captured", meanwhile=(process.directory / "enough").touch)  # it checks for the file as soon as it runs
        assert process.end().endswith("status 0\n")
    until("it has gone on", lambda: log_lines(stoppable, HOME, f"process {process.pid} goes on without its deputy"))
    time.sleep(2.5)  # for the daemon to make up its mind
    assert not log_lines(stoppable, HOME, f"process {process.pid} is lost")
