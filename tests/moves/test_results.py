"""Results of calls in memory: with memory that cannot be written, ends in the middle, overlaps, or changes meanwhile, away as at home.

Every row of calls.table is tried (results.py generates the calls, tests/programs/results.c reports what each did).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster, until
from tests.moves.results import lines

AT_ONCE = re.compile(
    r"(read|readv|pipe2|socketpair|accept|recvfrom|recvmsg|recvmmsg|sendmmsg|writev|wait4|waitid|ppoll|pselect6|epoll_wait|getdents64|sendfile"
    r"|timer_create|cachestat)\.0\."
)
"""Names of the calls in the short run."""


def reports(cluster: Cluster, script: str, away: Sequence[str], manner: str = "") -> dict[str, str]:
    """Moves results.c to the nodes in turn, then returns its report of each call."""
    with Running(cluster, "results", "", command=f"sh -c 'while [ ! -e go ]; do sleep 0.05; done; exec ./{{name}} script {manner}'") as one:
        (one.directory / "script").write_text(script)
        for node in away:
            one.moved(node)
        (one.directory / "go").touch()
        said = one.end(900).splitlines()
    assert said[-2:] == ["all reported", "status 0"], said[-5:]
    return dict(line.split(": ", 1) for line in said[:-2])


def differences(cluster: Cluster, script: str, away: Sequence[str], manner: str = "") -> list[tuple[str, str, str]]:
    """Returns the calls that report the same twice at home and something else away."""
    with ThreadPoolExecutor() as beside:
        runs = [beside.submit(reports, cluster, script, where, manner) for where in ((), (), away)]
        natively, again, there = (run.result() for run in runs)
    assert natively.keys() == there.keys()
    same = [name for name in natively if natively[name] == again[name]]
    assert len(same) > 0.9 * len(natively)
    return [(name, natively[name], there[name]) for name in same if natively[name] != there[name]]


@pytest.mark.timeout(300)
def test_results_of_calls_that_take_something(cluster: Cluster) -> None:
    script = "".join(f"{line}\n" for _, line in lines() if AT_ONCE.match(line))
    assert script.count("\n") > 25
    assert differences(cluster, script, ["n2"]) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("away", [["n2"], ["n2", "n3"]], ids=["out", "hop"])
def test_results_of_every_row(cluster: Cluster, away: list[str]) -> None:
    script = "".join(f"{line}\n" for _, line in lines())
    assert script.count("\n") > 400
    assert differences(cluster, script, away) == []


def test_every_row_with_memory_is_among_them() -> None:
    assert len({line.split()[0] for _, line in lines()}) == len(list(lines()))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", ["read", "meanwhile", "grows"])
def test_memory_that_is_the_programs(cluster: Cluster, what: str) -> None:
    def run(away: bool) -> str:
        with Running(cluster, "beside", what) as one:
            if away:
                one.moved("n2")
            (one.directory / "go").touch()
            until(f"it has reported; its output is {one.said!r}", lambda: one.lines() == ["reported"], seconds=60)
            shown = one.shown()
            assert shown is not None
            assert what == "grows" or not away or shown["where"] == "n2", "it has gone home"
            (one.directory / "end").touch()
            return one.end()

    natively = run(away=False)
    assert natively.endswith("status 0\n")
    assert run(away=True) == natively
