"""The real bench of balancing, in small: every system runs jobs on the nodes of a lab, under their quotas, and leaves nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

from bench.common.nodes import build
from bench.sharing.batch import Speeds, forget_ends, measure_speeds, pareto
from bench.sharing.mosrun_nodes import Mosrun, state_of_daemon
from bench.sharing.parallel_nodes import parallel
from bench.sharing.slurm import PROGRAMS, slurm
from lab import Lab, cgroups
from node.guests.cgroups import GuestGroups

LEAST_OF_A_PIECE = 0.3e-3
"""Seconds of processor, however quick that is."""
SPEEDS = Speeds({"n1": 100.0, "n2": 300.0})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")


def test_the_bound_is_that_of_all_work_or_of_the_longest_job() -> None:
    assert SPEEDS.bound([400, 400, 400, 400]) == 4.0
    assert SPEEDS.bound([900, 100]) == 3.0


@pytest.mark.parametrize("sizes", [[1.0] * 16, [1.0, 50.0, 2.0]])
def test_work_is_scaled_to_a_bound(sizes: list[float]) -> None:
    assert SPEEDS.bound(SPEEDS.scaled(sizes, 20.0)) == pytest.approx(20.0, rel=0.01)


def test_paretos_sizes_are_those_of_their_seed_and_half_of_them_are_short() -> None:
    assert pareto(400, 1) == pareto(400, 1) != pareto(400, 2)
    assert sorted(pareto(400, 1))[200] == pytest.approx(2, rel=0.2)
    assert max(pareto(400, 1)) > 10


def _used(lab: Lab) -> float:
    """Seconds of processor that all nodes have used."""
    return sum(GuestGroups(cgroups.directories(lab.name, node.name)).cpu_of_node() or 0.0 for node in lab.nodes())


@needs_root
@pytest.mark.timeout(120)
@pytest.mark.skipif(shutil.which("parallel") is None, reason="GNU parallel is not installed: tools/peers")
@pytest.mark.skipif(any(shutil.which(name) is None for name in PROGRAMS), reason="Slurm is not installed: tools/peers")
def test_the_others_run_every_job_within_the_quotas_of_the_nodes(lab_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHELL", raising=False)
    program = build("sharing/batch")
    with Lab.up(2, name=lab_name(), cpus=0.8, speed={"n1": 0.25}, mosd=False) as lab:
        speeds = measure_speeds(lab, program, 0.5)
        assert all(0 < share < 1.2 for share in speeds.granted.values()), speeds
        each = round(sum(speeds.of.values()) / 10)
        with parallel(lab) as first, slurm(lab) as second:
            for system in (first, second):
                forget_ends(lab.nodes())
                before = _used(lab)
                with system.going():
                    ends = system.run(program, [each] * 4, 0.4)
                assert len(ends) == 4
                assert min(ends) > 0
                # They were in the groups of the nodes, and so bound by the quotas.
                assert _used(lab) - before > 4 * each * LEAST_OF_A_PIECE
        for node in lab.nodes():
            running = [path.read_text() for path in (node.root / "proc").glob("[0-9]*/comm")]
            assert not {"munged\n", "slurmd\n", "slurmctld\n"} & set(running), running


@needs_root
@pytest.mark.timeout(120)
def test_ours_runs_every_job_and_stands_still_between(lab_name: Callable[[], str]) -> None:
    program = build("sharing/batch")
    with Lab.up(2, name=lab_name(), cpus=0.9) as lab:
        ours = Mosrun(lab)
        with ours.going():
            assert len(ours.run(program, [100] * 3, 1.0)) == 3
            assert {state_of_daemon(node) for node in lab.nodes()} <= {"R", "S", "D"}
        assert {state_of_daemon(node) for node in lab.nodes()} == {"T"}
