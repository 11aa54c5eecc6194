"""Home, a link, mosd or one of its programs ends: each user of files there gets an error, and no process hangs for good."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.common.nodes import build
from lab import Lab, Node, cgroups
from tests import leftovers
from tests.mfs.exports import EXPORTS, TIMEOUT, running, until_mounted, with_exports

AWAY = f"/mfs/n1{EXPORTS}"
BOUND = 30.0
"""Seconds."""
WORK = f"""
cd {AWAY} && exec 3> held-$$ && echo begun
while :; do
    if ls >/dev/null && echo x > file-$$ && cat file-$$ >/dev/null && echo more >&3; then :; else echo error; sleep 0.1; fi
done
"""

SOAK = pytest.mark.soak

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    """A lab that a test may break."""
    with with_exports(2, f"t-{os.environ[leftovers.RUN]}-{os.getpid()}-ends") as lab:
        yield lab


@pytest.fixture
def worker(own_lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """A program of n2 that works on n1's files, in a directory there and with one of them open, and says when it has had an error."""
    node = own_lab.node("n2")
    with node.popen(["sh", "-c", WORK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def until(what: str, condition: Callable[[], object], seconds: float = BOUND) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def hung(node: Node) -> list[str]:
    """Returns the node's processes that no signal ends."""
    found = []
    for pid in cgroups.processes(node.lab, node.name):
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if text.rpartition(")")[2].split()[0] == "D":
            found.append(text[:40])
    return found


def ends_when_killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(10)


def has_error(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "error\n"


@pytest.mark.parametrize("is_silent", [True, pytest.param(False, marks=SOAK)])
def test_a_home_that_dies_is_an_error(own_lab: Lab, worker: subprocess.Popen[str], is_silent: bool) -> None:
    own_lab.kill("n1", unplug=is_silent)
    has_error(worker)
    ends_when_killed(worker)
    until("processes hang", lambda: not hung(own_lab.node("n2")))


@SOAK
def test_a_process_that_waits_for_a_home_that_has_just_died_can_be_killed(own_lab: Lab, worker: subprocess.Popen[str]) -> None:
    own_lab.kill("n1")
    ends_when_killed(worker)
    until("processes hang", lambda: not hung(own_lab.node("n2")))


@SOAK
def test_a_link_that_is_cut_for_long_is_an_error_and_heals(own_lab: Lab, worker: subprocess.Popen[str]) -> None:
    own_lab.cut("n1", "n2")
    has_error(worker)
    own_lab.heal("n1", "n2")
    until_mounted(own_lab.node("n2"), own_lab.node("n1"))
    ends_when_killed(worker)


@SOAK
def test_a_short_cut_is_no_error(own_lab: Lab) -> None:
    away = own_lab.node("n2")
    script = f"cd {AWAY} && echo begun && for n in $(seq 60); do echo $n >> log || exit 1; sleep 0.02; done"
    with away.popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            own_lab.cut("n1", "n2")
            time.sleep(0.5)
            own_lab.heal("n1", "n2")
            assert process.wait(BOUND) == 0
        finally:
            process.kill()
    written = (own_lab.node("n1").root / EXPORTS.lstrip("/") / "log").read_text().split()
    assert written == [str(number) for number in range(1, 61)]


@pytest.fixture
def hanging(own_lab: Lab) -> Iterator[Callable[[int], None]]:
    """A file system in n1's exports, as `slow`, that is made to hang (SIGSTOP) and to go on (SIGCONT)."""
    home = own_lab.node("n1")
    home.run(["mkdir", f"{EXPORTS}/slow"], check=True)
    with home.popen([build("files/fuse_alone"), f"{EXPORTS}/slow"]) as server:

        def send(number: int) -> None:
            os.kill(server.pid if number == signal.SIGCONT else server.host_pid, number)  # what has brought it there stops with it

        try:
            until("it is not mounted", lambda: own_lab.node("n2").run(["test", "-f", f"{AWAY}/slow/large"]).returncode == 0)
            yield send
            send(signal.SIGCONT)
        finally:
            server.kill()
            home.run(["umount", "--lazy", f"{EXPORTS}/slow"], check=True, timeout=30)


@pytest.mark.parametrize("many", [1, pytest.param(40, marks=SOAK)])
def test_a_hanging_file_system_delays_no_other(own_lab: Lab, hanging: Callable[[int], None], many: int) -> None:
    away = own_lab.node("n2")
    hanging(signal.SIGSTOP)
    ask = f"for n in $(seq {many}); do test -e {AWAY}/slow/$n & done; wait; echo answered"
    with away.popen(["sh", "-c", ask], stdout=subprocess.PIPE, text=True) as waiting:
        end = time.monotonic() + 2 * TIMEOUT
        while time.monotonic() < end:
            away.run(f"echo x >{AWAY}/beside && cat {AWAY}/beside && ls -d {AWAY}/b* && ls {AWAY}", check=True, timeout=BOUND)
        assert waiting.poll() is None
        hanging(signal.SIGCONT)
        assert waiting.communicate(timeout=BOUND)[0] == "answered\n"


def test_a_link_that_is_cut_while_a_file_system_hangs_heals(own_lab: Lab, hanging: Callable[[int], None]) -> None:
    away = own_lab.node("n2")
    hanging(signal.SIGSTOP)
    with away.popen(["sh", "-c", f"echo asks; test -e {AWAY}/slow/1; echo answered"], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "asks\n"
        time.sleep(0.2)  # it has asked
        own_lab.cut("n1", "n2")
        time.sleep(TIMEOUT + 1)
        own_lab.heal("n1", "n2")
        until_mounted(away, own_lab.node("n1"))
        away.run(f"echo x >{AWAY}/beside && cat {AWAY}/beside && ls {AWAY}", check=True, timeout=BOUND)
        hanging(signal.SIGCONT)
        assert waiting.communicate(timeout=BOUND)[0] == "answered\n"
    until("it is not there", lambda: away.run(["test", "-f", f"{AWAY}/slow/large"], timeout=BOUND).returncode == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=SOAK)])
def test_mosd_removes_its_mounts_even_if_they_are_in_use(own_lab: Lab, worker: subprocess.Popen[str], number: int) -> None:
    away = own_lab.node("n2")
    away.stop_mosd(number)
    until("it is still mounted", lambda: away.run("grep -q fuse.mfs /proc/mounts").returncode)
    has_error(worker)
    ends_when_killed(worker)
    until("processes hang", lambda: not hung(away))
    away.start_mosd()
    until_mounted(away, own_lab.node("n1"))


@SOAK
def test_a_mount_program_that_is_killed_is_an_error_and_comes_back(own_lab: Lab, worker: subprocess.Popen[str]) -> None:
    away = own_lab.node("n2")
    for pid in running(away, "mfs-client"):
        os.kill(pid, signal.SIGKILL)
    has_error(worker)
    ends_when_killed(worker)
    until_mounted(away, own_lab.node("n1"))
    until("processes hang", lambda: not hung(away))


@SOAK
def test_a_home_that_comes_again_is_there_again(own_lab: Lab) -> None:
    home, away = own_lab.node("n1"), own_lab.node("n2")
    home.stop_mosd()
    home.start_mosd()
    until_mounted(away, home)
    away.run(["touch", f"{AWAY}/new"], check=True)
    assert (home.root / EXPORTS.lstrip("/") / "new").exists()


@SOAK
def test_a_lab_goes_down_while_programs_wait(own_lab: Lab, worker: subprocess.Popen[str]) -> None:
    own_lab.kill("n1")
    assert worker.poll() is None
    assert own_lab.down()
    worker.wait(10)
