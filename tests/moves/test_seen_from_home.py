"""Home shows of a process that is away, and that has come back, the same pid, parent, descriptors, command and state as before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.workloads import USER

pytestmark = pytest.mark.timeout(120)


class Seen:
    """A home process in the home node's /proc."""

    def __init__(self, running: Running) -> None:
        self.path = running.cluster.home.root / "proc" / str(running.pid)

    def status(self) -> dict[str, str]:
        lines = (self.path / "status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def state(self) -> str:
        return self.status()["State"][0]

    def lasting(self) -> dict[str, object]:
        """All that a move must not change."""
        status = self.status()
        names = ("Name", "Umask", "Tgid", "PPid", "Uid", "Gid", "Groups", "NSpid", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs")
        stat = (self.path / "stat").read_text().rpartition(")")[2].split()
        found: dict[str, object] = {name: status[name] for name in names}
        found["session, group, terminal, started"] = (stat[3], stat[2], stat[4], stat[19])
        found["command"] = (self.path / "cmdline").read_bytes()
        found["descriptors"] = {fd.name: os.readlink(fd) for fd in sorted((self.path / "fd").iterdir())}
        found["directory"] = os.readlink(self.path / "cwd")
        found["program"] = os.readlink(self.path / "exe")
        found["limits"] = (self.path / "limits").read_text()
        return found

    def mappings(self) -> list[str]:
        """Address range, protection and file of each mapping: what the program made of its address space."""
        return [" ".join([*line.split(), ""][i] for i in (0, 1, 5)) for line in (self.path / "maps").read_text().splitlines()]


@pytest.mark.parametrize("user", ["", USER], ids=["root", "ordinary user"])
def test_a_process_that_came_home_is_as_if_it_had_never_left(cluster: Cluster, user: str) -> None:
    with Running(cluster, "counter", "lines 100 50 8", user) as counter:
        counter.works()
        seen = Seen(counter)
        lasting, mappings, native = seen.lasting(), seen.mappings(), seen.status()
        assert native["TracerPid"] == "0"
        for target in ("n2", "n3", HOME):
            counter.moved(target)
            counter.works()
            assert seen.lasting() == lasting
        until("no tracer is attached", lambda: seen.status()["TracerPid"] == "0")
        now = seen.status()
        for name in ("Seccomp", "Seccomp_filters", "SigBlk", "Threads", "VmSize", "VmData", "VmStk", "VmExe", "VmLib"):
            assert now[name] == native[name], name
        assert seen.mappings() == mappings
        assert "counted 100" in counter.end()


def test_memory_is_given_up_at_home(cluster: Cluster) -> None:
    with Running(cluster, "counter", "lines 200 50 256") as counter:
        seen = Seen(counter)
        counter.works()
        before = int(seen.status()["VmRSS"].split()[0])
        assert before > 256 << 10
        counter.moved("n2")
        until("the memory is given up", lambda: int(seen.status()["VmRSS"].split()[0]) < 32 << 10)
        counter.works()
        counter.moved(HOME)
        counter.works()
        until("all of it has followed", lambda: int(seen.status()["VmRSS"].split()[0]) > 256 << 10)


@pytest.mark.parametrize("target", ["n2", HOME], ids=["away", "after coming home"])
def test_stop_and_continue(cluster: Cluster, target: str) -> None:
    """The shell's kill -STOP and -CONT hold it and let it go; a stopped process can still be moved."""
    with Running(cluster, "counter", "lines 150 50 8") as counter:
        seen = Seen(counter)
        counter.moved("n2")
        if target == HOME:
            counter.moved(HOME)
        counter.works()
        assert cluster.home.run("kill", "-STOP", str(counter.pid)).returncode == 0
        until("it is shown as stopped", lambda: seen.state() in "Tt")
        stands = until("it stands still", lambda: stable(counter))
        move = counter.move("n3")  # done or refused, both are right; what counts is that it is still stopped and whole
        assert stable(counter) == stands, f"it ran while it was stopped ({move})"
        assert seen.state() in "Tt"
        assert cluster.home.run("kill", "-CONT", str(counter.pid)).returncode == 0
        counter.works()
        assert "counted 150" in counter.end()
        until("no images of its moves are left", lambda: not images_of(counter))


def images_of(counter: Running) -> list[Path]:
    """Returns what moves of this process have left on all nodes. A daemon that has just started has CRIU look at the kernel beside them."""
    names = (f"out-{counter.pid}", f"in-{HOME}-{counter.pid}", f"hop-{HOME}-{counter.pid}")
    directories = [counter.cluster.place(node).root / "run/farhome/images" for node in counter.cluster.names]
    return [directory / name for directory in directories for name in names if (directory / name).exists()]


def stable(counter: Running) -> int:
    """The number of lines when it has not changed for a while (four times its interval), else 0."""
    before = len(counter.lines())
    try:
        until("", lambda: len(counter.lines()) != before, seconds=0.2)
    except TimeoutError:
        return before
    return 0


def test_mosps_and_migrate_show_the_true_state(cluster: Cluster) -> None:
    with Running(cluster, "counter", "lines 200 50 8") as counter:
        counter.works()
        first = counter.shown()
        assert first is not None
        assert (first["where"], first["state"], first["moves"]) == ("home", "home", 0)
        move = counter.move("n2")
        assert move.done
        assert 0 < move.frozen_ms <= move.total_ms
        shown = counter.shown()
        assert shown is not None
        assert (shown["where"], shown["state"], shown["moves"]) == ("n2", "away", 1)
        assert not shown["why"]
        guests = cluster.place("n2").run("mosps", "--guests", "--json").stdout
        assert f"n1-{counter.pid}" in guests
        refused = cluster.home.run("migrate", str(counter.pid), "n9")
        assert refused.returncode != 0
        assert len(refused.stderr.splitlines()) == 1
        stranger = cluster.home.run("migrate", str(counter.pid), "n3", user="farhome-b")
        assert stranger.returncode == 77
        counter.works()
        counter.moved(HOME)
        until("n2 has no guest", lambda: not cluster.guests("n2"))
        until("no images of its moves are left", lambda: not images_of(counter))


def test_only_the_programs_files_are_needed_from_home(cluster: Cluster) -> None:
    """The program's file exists on no other node; it is removed at home while the process is away, and that is no harm either."""
    with Running(cluster, "counter", "lines 120 50 8") as counter:
        program = counter.directory / counter.name
        assert not Path(str(cluster.place("n2").root) + f"/tmp/{counter.name}").exists()
        counter.moved("n2")
        counter.works()
        program.unlink()
        counter.moved("n3")
        counter.works()
        counter.moved(HOME)
        counter.works()
        assert "counted 120" in counter.end()
