"""The simulated bench of the balancer, on seeds that nothing was tuned on."""

from __future__ import annotations

import pytest

from bench.sharing.balance import EQUAL, MIXED, batch, ideal_response, run, stream


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_target_is_met_on_fresh_seeds() -> None:
    results = run((301, 302))
    assert len(results) == 16
    assert [result.case for result in results if result.ratio > 1] == []


def test_ideal_sharing_gives_each_job_its_work_when_there_are_more_cores_than_jobs() -> None:
    jobs = stream(MIXED, 1)[:3]
    assert ideal_response(MIXED, jobs) == pytest.approx(sum(job.work for job in jobs) / 2.0 / len(jobs))


def test_batch_is_born_at_one_node_and_stream_at_all_mostly_at_a_quarter() -> None:
    assert {job.home for job in batch(EQUAL, 1)} == {0}
    homes = [job.home for job in stream(EQUAL, 1)]
    assert set(homes) == set(range(16))
    assert 0.6 < sum(home < 4 for home in homes) / len(homes) < 0.8
