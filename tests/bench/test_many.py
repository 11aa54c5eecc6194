"""The bench of many processes that are away: every one is found on both sides."""

from __future__ import annotations

import os

import pytest

from bench.common.nodes import bench_lab, checked
from bench.common.result import BenchFailed
from bench.processes import many


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")
def test_memory_of_each_process_is_measured_at_home_and_away() -> None:
    with bench_lab(2) as lab:
        home, away = lab.node("n1"), lab.node("n2")
        before = {name: (many.KSM / name).read_text() for name in many.MERGING if many.KSM.is_dir()}
        native, found = many.measure(home, away, 8)
        for stubs, guests in found.values():
            assert len(native) == 8
            # A supervisor is bigger than a program that only sleeps, and none has more than a few MiB of its own.
            assert max(native) < stubs < 64
            assert max(native) < guests < 64
        if before:
            # The first were executed, each with addresses of its own; the last are forked from one process, and much alike.
            assert found[", merged"][0] < 0.8 * found[""][0]
            assert before == {name: (many.KSM / name).read_text() for name in many.MERGING}
        away_now = checked(home, ["mosps"])
        assert away_now.count(" n2 ") == 8, away_now
        with pytest.raises(BenchFailed, match="1 are not away"):
            many.memory_of(home, away, [1])
