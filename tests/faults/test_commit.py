"""Nodes that say nothing any more when the commit has been said."""

from __future__ import annotations

import pytest

from tests.faults.running import HOME, Running
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(300)
LINES = 3000


def test_the_deputy_answers_while_it_waits_for_the_word_that_the_process_runs(stoppable: Cluster) -> None:
    """Before this, it answered no request, for none of its processes, until link_timeout."""
    with Running(stoppable, "appender", f"lines {LINES} 5000") as process:
        process.works(30)
        with Stop(stoppable, "n2", "arrival: commit") as stop:
            waiting = stoppable.home.popen(["migrate", str(process.pid), "n2"], "", stdout=-1, stderr=-1)
            stop.wait(lambda: None if waiting.poll() is None else waiting.communicate())
            until("its deputy shows that n2 is not heard", lambda: (process.shown() or {}).get("state") == "cut off", seconds=30)
        waiting.communicate(timeout=30)
        process.works(30)
        process.moved(HOME)
        assert process.end(60) == f"appended {LINES}\nstatus 0\n"
        assert process.lines() == [str(number) for number in range(LINES)], "a line was written twice, or none"
