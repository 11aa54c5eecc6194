"""An owner comes back while the guests cannot leave: the guests are frozen, and go as soon as another node or home can take them."""

from __future__ import annotations

import pytest

from lab import cgroups
from node.guests.cgroups import GuestGroups
from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)
NUMBERS = 100_000_000
COMPUTES = f"""python3 -c '
import os, time
while not os.path.exists("go"):
    time.sleep(0.02)
with open("lines", "w") as file:
    print("begun", file=file, flush=True)
    print(sum(number % 7 for number in range({NUMBERS})), file=file)
' > out 2>&1"""
"""Computes for some seconds without a call once `go` exists: a guest that waits for its home stands still already, and in no way that the
kernel calls frozen."""


def test_a_guest_that_cannot_leave_in_time_is_frozen_and_goes_home_when_the_link_is_back(cluster: Cluster) -> None:
    node = cluster.lab.node("n2")
    with (node.root / "etc/farhome/node.toml").open("a") as file:
        file.write("[lend.owner]\nevict_after = 0.1\ndeadline = 0.5\n")
    node.run(["mosctl", "reload"], check=True)
    with Running(cluster, "appender", "", command=COMPUTES) as guest:
        guest.moved("n2")
        (guest.directory / "go").touch()
        until("it computes", lambda: guest.lines() == ["begun"])
        cluster.lab.cut(HOME, "n2")
        node.ask_mosd("owner", back=True)
        until("it is late", lambda: node.ask_mosd("owner")["stage"] == "late")
        groups = GuestGroups(cgroups.directories(cluster.lab.name, "n2"))
        until("it stands still", lambda: groups.stands_still(f"n1-{guest.pid}"))
        cluster.lab.heal(HOME, "n2")
        until("it is at home", lambda: guest.where() == HOME, seconds=60)
        shown = guest.shown()
        assert shown is not None
        assert "mosctl owner back" in shown["why"]
        assert guest.end(60) == "status 0\n"
        assert guest.lines() == ["begun", str(NUMBERS // 7 * 21 + sum(range(NUMBERS % 7)))]
