"""A storm over a real job in a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab import Lab, LabError
from lab.storm import storm
from tests import leftovers


@pytest.fixture(scope="module")
def lab3() -> Iterator[Lab]:
    with Lab.up(3, name=f"t-{os.environ[leftovers.RUN]}-{os.getpid()}-storm") as lab:
        yield lab


def test_a_storm_moves_a_job_until_it_has_ended(lab3: Lab) -> None:
    program = "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass\nprint('done')"
    job = lab3.node("n1").popen(["mosrun", "-J", "7", "python3", "-c", program], stdout=-1)
    lines: list[str] = []
    result = storm(lab3, "7", every=(0.1, 0.3), seed=42, report=lines.append)
    output, _ = job.communicate(timeout=30)
    assert (output, job.returncode) == (b"done\n", 0)
    assert result.seed == 42
    assert result.moves["out"] > 0, result.refusals
    assert len(lines) == result.moves.total()
    assert not result.failures
    assert "seed 42" in result.sentence()


def test_a_storm_over_nothing_says_so(lab3: Lab) -> None:
    with pytest.raises(LabError, match="no process of job 9"):
        storm(lab3, "9", seed=1, start_within=0.5)
