"""A process that gives up rights while it is away has at home, and wherever it is, the rights that it has natively."""

from __future__ import annotations

import re

import pytest

from tests.faults.running import Running
from tests.moves.cluster import HOME, Cluster, until

pytestmark = pytest.mark.timeout(120)


def drops(cluster: Cluster, away: str = "", further: str = "", stays: bool = True) -> str:
    """Returns the output of the program and its shell. It is moved to `away` to drop its rights, then `further`."""
    with Running(cluster, "drops", "") as one:
        until("it is ready", lambda: "ready" in one.said)
        if away:
            one.moved(away)
        (one.directory / "go").touch()
        until("it has given up its rights", lambda: "half\n" in one.said, seconds=30)
        if away and stays:
            assert one.where() == away
        if further:
            one.moved(further)
        (one.directory / "on").touch()
        return re.sub(r"made-\w+", "made", one.end().replace(one.name, "NAME"))


@pytest.mark.parametrize("further", ["", "n3", HOME])
def test_rights_are_given_up_away(cluster: Cluster, further: str) -> None:
    natively = drops(cluster)
    assert "uid=65534" in natively and "mlock -1" in natively, natively
    assert drops(cluster, "n2", further) == natively
