"""Limits that a program sets itself bind it where it is."""

from __future__ import annotations

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)

SAID = "prlimit 0, old 1, 24 MiB 1; new 1; setrlimit 0, 36 MiB 1; nonsense -1 Invalid argument; 38 MiB 1, 50 MiB 0\n"


def test_a_stack_limit_is_set_away_and_the_process_stays_there(cluster: Cluster) -> None:
    with Running(cluster, "stack", "") as stack:
        until("it is ready", lambda: len(stack.lines()) == 1)
        stack.moved("n2")
        (stack.directory / "go").touch()
        until("it is done", lambda: len(stack.lines()) == 2)
        assert stack.where() == "n2"
        stack.moved("n3")
        stack.moved("n1")
        (stack.directory / "end").touch()
        assert stack.end() == SAID + "status 0\n"
