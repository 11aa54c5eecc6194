"""Programs that others have written ask for the same, and get the same, natively and away."""

from __future__ import annotations

import shutil

import pytest

from tests.referee.given import MORE, SHORT
from tests.referee.shown import Showing, processes


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", SHORT)
def test_given_programs(showing: Showing, name: str) -> None:
    found = showing.differences(SHORT[name])
    assert not found, "\n".join(found)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MORE)
def test_more_given_programs(showing: Showing, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} here")
    found = showing.differences(MORE[name])
    assert not found, "\n".join(found)


def test_processes_are_identified_by_their_births() -> None:
    lines = ["9 close(3) = 0", "9 execve('sh', <('sh', 'begins-now', NULL)>) = ?", "9 fork() = 1000002 <0.1 on n2>", "1000003 close(1) = 0",
             "9 fork() = 1000003 <0.1 on n2>", "1000002 read(0) = ? (interrupted)", "1000002 close(2) = 0", "9 close(9) = 0"]  # fmt: skip
    found = {place: calls[-1] for place, calls in processes(lines).items()}
    assert found == {(): "close(9) = 0", (1,): "close(2) = 0", (2,): "close(1) = 0"}
