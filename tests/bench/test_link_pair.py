"""The pair that the bench of the link measures: each side on its own processors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench.calls.link_pair import Pair

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.skipif(os.geteuid() != 0, reason="a filter without no_new_privs needs root")
def test_the_guest_runs_on_the_processors_of_its_node(tmp_path: Path) -> None:
    program = tmp_path / "guest"
    subprocess.run(["gcc", "-O2", "-w", "-pthread", "-o", program, ROOT / "tests/link/guest.c"], check=True, timeout=60)
    *others, last = sorted(os.sched_getaffinity(0))
    with Pair([str(program), "bench", "g", "2000000000"], away_prefix=["taskset", "-c", str(last)], directory=str(tmp_path)) as pair:
        pair.until(lambda: pair.link is not None and pair.link.calls[0] > 100, 20, "no call was made")
        assert os.sched_getaffinity(pair.guest) == {last}
        assert os.sched_getaffinity(pair.process.pid) == {*others, last}
