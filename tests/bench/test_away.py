"""The bench of what being away costs, in small: small calls and a program, in time and in trips."""

from __future__ import annotations

import os

import pytest

from bench.away import away
from bench.away.programs import PROGRAMS
from bench.common.result import BenchFailed

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")]


def test_times_and_trips_of_small_calls_and_of_a_program_are_measured() -> None:
    cases = [away.Case("fork", "fork 2", 2, 1), away.Case("stat of a name", "stat 50 stat", 50, 1), away.LARGE["grep -r"]]
    samples = away.Samples()
    with away.lab_with_runner(0.0001) as (lab, runner):
        away.measure(runner, cases, samples)
        assert not runner.do(away.Case("nothing", "nothing 1", 1, 1)).trips
        calls = away.calls_at_home(lab, PROGRAMS[0])
        with pytest.raises(BenchFailed, match="flight did not end as it should"):
            runner.do(away.Case("flight", "fly 1", 1, 1))
    results = {result.case: result for case in cases for result in (*samples.results(case, ""), *samples.trips(case, case.calls or calls))}
    assert len(results) == 12
    assert all(result.ours > 0 for name, result in results.items() if "trips" not in name)
    for when in away.TIMES:
        assert 0 <= results[f"stat of a name, {when}, trips"].ours < 1.2
        assert results[f"grep -r, {when}, trips"].ours < 1.2 * calls
