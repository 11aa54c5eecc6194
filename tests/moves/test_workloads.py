"""The workloads themselves: the same in every native run, and a difference would be seen."""

from __future__ import annotations

import dataclasses

import pytest

from tests.moves.outcome import Here, differences, run
from tests.moves.test_storm import OF_A_KIND
from tests.moves.workloads import BY_NAME, WORKLOADS, Workload


@pytest.mark.parametrize(
    "workload", [pytest.param(one, id=one.name, marks=pytest.mark.soak if one.name in OF_A_KIND else ()) for one in WORKLOADS]
)
def test_native_runs_are_equal(workload: Workload) -> None:
    first, second = (run(Here(), workload, scale=0.04, timeout=60) for _ in range(2))
    assert not first.timed_out
    assert first.output
    assert differences(first, second) == []


@pytest.mark.parametrize(
    "alteration",
    [
        "; echo more",
        "; echo more >&2",
        "; exit 1",
        "; echo x >> lines",
        "; chmod 600 lines",
        "; rm lines",
        "; ln -s lines link",
        "; sleep 100",
    ],
)
def test_a_difference_is_seen(alteration: str) -> None:
    workload = BY_NAME["counter"]
    altered = dataclasses.replace(workload, script=workload.script + alteration)
    native = run(Here(), workload, scale=0.02)
    assert differences(native, run(Here(), altered, scale=0.02, timeout=5 if "sleep" in alteration else 60))
