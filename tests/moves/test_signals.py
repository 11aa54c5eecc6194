"""Signals that are blocked until they are wanted come then, and say who sent them, also while the process is away."""

from __future__ import annotations

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("how", ["wait", "fd", "ppoll", "pselect"])
@pytest.mark.parametrize("early", [True, False], ids=["sent before it is taken", "sent while it waits"])
def test_a_blocked_signal_comes_when_it_is_wanted(cluster: Cluster, how: str, early: bool) -> None:
    with Running(cluster, "taker", f"3 {how}") as taker:
        for number in range(3):
            until("it computes", lambda number=number: taker.lines().count("ready") == number + 1)  # type: ignore[misc]
            if taker.where() != "n2":
                print(taker.move("n2"))  # may be refused, as long as the signal is taken as it would be at home
            if not early:
                until("it waits", lambda: waits(taker), seconds=20)
            # A shell that stays until the signal was sent: its own kill, so that the sender has a pid.
            assert cluster.home.run("sh", "-c", f"kill -USR1 {taker.pid}").returncode == 0
            until("it has taken the signal", lambda number=number: len(taker.lines()) >= 2 * number + 2, seconds=20)  # type: ignore[misc]
            assert taker.lines()[2 * number + 1] == "signal 10 code 0, sender told"
        assert taker.end() == "status 0\n"


def waits(taker: Running) -> bool:
    """Whether none of its processes, here or there, computes any more."""
    states = []
    for pid in taker.host_pids():
        try:
            with open(f"/proc/{pid}/stat") as stat:
                states.append(stat.read().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return bool(states) and "R" not in states
