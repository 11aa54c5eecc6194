"""Questions about processors have the answers of home, wherever they are asked, and what is set is in force at home again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("mosrun", ["mosrun -L", "taskset -c 0 mosrun -L"], ids=["all", "bound to one"])
def test_affinity_and_numbers_are_those_of_home(cluster: Cluster, mosrun: str) -> None:
    with Running(cluster, "processors", "", mosrun=mosrun) as program:
        for target in (HOME, "n2", "n3", HOME, "n2"):
            if program.where() != target:
                program.moved(target)
            program.works()
            program.works()
        answers = set(program.lines()[:-1])
        (program.directory / "end").touch()
        assert "status 0" in program.end()
    assert len(answers) == 1, answers
    online = os.sysconf("SC_NPROCESSORS_ONLN")
    mine = 1 if "taskset" in mosrun else len(os.sched_getaffinity(0))
    assert answers.pop().startswith(f"{online} online {os.sysconf('SC_NPROCESSORS_CONF')} configured {mine} mine")


def test_a_processor_mask_set_away_is_in_force_at_home(cluster: Cluster) -> None:
    """The stub has the mask; the process is bound by it when it is home."""
    with Running(cluster, "counter", "lines 200 50 8") as counter:
        status = Path(cluster.home.root / "proc" / str(counter.pid) / "status")
        counter.moved("n2")
        assert cluster.home.run("taskset", "-pc", "0", str(counter.pid)).returncode == 0
        counter.moved("n3")
        counter.works()
        counter.moved(HOME)
        counter.works()
        allowed = next(line for line in status.read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
        assert allowed.split()[1] == "0"
