"""The simplest cases, step by step: a program goes out, hops and comes home, and at each place goes on with its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tests.moves.cluster import HOME, Cluster, until
from tests.moves.outcome import Outcome, differences, directory_of, run
from tests.moves.storm import native_outcome
from tests.moves.workloads import BY_NAME, USER


def carried(cluster: Cluster, name: str, user: str, scale: float, route: list[str], grows: str) -> tuple[Outcome, Outcome]:
    """Runs the workload and takes its first process along the route, each time waiting until file `grows` has grown
    there. Returns the native outcome and that of the moved run."""
    native = native_outcome(cluster, BY_NAME[name], user, scale)
    job = f"step-{name}"
    results: list[Outcome] = []
    thread = Thread(
        target=lambda: results.append(
            run(cluster.home, BY_NAME[name], scale=scale, user=user, launcher=f"mosrun -L -J {job} --", timeout=native.seconds * 5 + 30)
        ),
        daemon=True,
    )
    thread.start()
    try:
        process = until("the process is registered", lambda: next(iter(cluster.processes(job)), None))
        pid, source = int(process["pid"]), HOME
        size = file_size(directory_of(cluster.home, BY_NAME[name]) / grows)
        until("the program works at home", lambda: size() > 0)
        for target in route:
            move = cluster.migrate(pid, source, target)
            print(move)
            assert move.done, move.said
            shown = cluster.process(pid, job)
            assert shown is not None
            assert cluster.where(shown) == target
            before = size()
            until(f"the program works on {target}", lambda before=before: size() > before)  # type: ignore[misc]
            source = target
    finally:
        thread.join(native.seconds * 5 + 60)
    assert results, "the program did not end"
    return native, results[0]


def file_size(path: Path) -> Callable[[], int]:
    """Returns a function that returns the size of the file in bytes, 0 while it does not exist."""

    def size() -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    return size


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "ordinary user"])
def test_counter_goes_out_hops_and_comes_home(cluster: Cluster, user: str) -> None:
    native, moved = carried(cluster, "counter", user, 2.0, ["n2", "n3", HOME, "n3", HOME], "lines")
    assert differences(native, moved) == []


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "ordinary user"])
def test_python_with_files_and_signals_goes_out_hops_and_comes_home(cluster: Cluster, user: str) -> None:
    native, moved = carried(cluster, "python", user, 2.0, ["n2", "n3", HOME], "log")
    assert differences(native, moved) == []


def test_a_program_that_ends_away_is_as_if_it_had_ended_at_home(cluster: Cluster) -> None:
    native, moved = carried(cluster, "counter", "", 0.7, ["n2"], "lines")
    assert differences(native, moved) == []
