"""Processes that execute: what their programs have used before decides whether they are placed at once."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from balancer.decisions.at_exec import COMING, LEAST_CPU, decide_at_exec, why_short
from balancer.decisions.cost import Line, MoveCost
from balancer.decisions.process import Process, Settings
from balancer.decisions.programs import MOST_PROGRAMS, MOST_USERS, RUNS, Expected, Programs
from balancer.load.load import LoadVector
from balancer.load.view import Entry, View
from lab import Lab, Node
from tests.balancer.vectors import node
from tests.lab.waiting import until
from tests.programs.build import program

QUICK = Settings(cost=MoveCost(Line(0.015, 1e-9), Line(0.12, 1e-9)))
"""Moves as they are on machines that have nothing else to do."""
COMPILER = Expected("/usr/lib/cc1", 0.6, 200.0, 5)
FRESH = Process(pid=7, cpu_seconds=0.0, memory=8 << 20)


def view_of(*vectors: LoadVector) -> View:
    return View(vectors[0].name, {vector.name: Entry(vector, 0.5) for vector in vectors})


def decided(view: View, expected: Expected = COMPILER, process: Process = FRESH, settings: Settings = QUICK, **coming: int) -> Any:
    return decide_at_exec(view, process, expected, random.Random(1), settings, coming)


# -- what programs have used ---------------------------------------------------------------------------------------------


def test_the_median_of_the_last_runs_is_expected_for_each_user() -> None:
    programs = Programs()
    for cpu in (9.0, 9.0, 9.0, 0.4, 0.5, 0.6, 0.7, 8.0):
        assert programs.record(1, "/bin/cc1", cpu) == []
    programs.record(2, "/bin/cc1", 3.0, 100.0)
    assert programs.expected(1, "/bin/cc1") == Expected("/bin/cc1", 0.6, 0.0, RUNS)
    assert programs.expected(2, "/bin/cc1") == Expected("/bin/cc1", 3.0, 100.0, 1)
    assert programs.expected(3, "/bin/cc1") is None


def test_a_program_that_has_become_short_is_forgotten() -> None:
    programs = Programs()
    programs.record(1, "/bin/x", 2.0)
    found = [programs.record(1, "/bin/x", 0.01) for _ in range(RUNS)]
    assert found == [[]] * (RUNS - 1) + [[(1, "/bin/x")]]
    assert list(programs) == []


def test_programs_and_users_are_bounded_and_the_longest_unused_makes_room() -> None:
    programs = Programs()
    for number in range(MOST_PROGRAMS):
        assert programs.record(1, f"/bin/{number}", 1.0) == []
    programs.record(1, "/bin/0", 1.0)
    assert programs.record(1, "/bin/more", 1.0) == [(1, "/bin/1")]
    for uid in range(2, MOST_USERS + 1):
        assert programs.record(uid, "/bin/a", 1.0) == []
    assert len(programs.record(MOST_USERS + 1, "/bin/a", 1.0)) == MOST_PROGRAMS
    assert len(list(programs)) == MOST_USERS


def test_stored_programs_are_the_same_after_loading() -> None:
    programs = Programs()
    for cpu in (0.4, 0.5, 0.6):
        programs.record(1, "/bin/cc1", cpu, 50.0)
    programs.record(2, "/bin/ld", 0.2)
    again = Programs.from_record(json.loads(json.dumps(programs.to_record())))
    assert list(again) == list(programs)
    assert all(again.expected(*key) == programs.expected(*key) for key in programs)


@pytest.mark.parametrize(
    "record", [None, [1], [["1", "/a", [1], []]], [[1, "/a", [], []]], [[1, "/a", [-1], []]], [[1, "/a", ["x"], []]], [[1, "/a", [1], 3]]]
)
def test_an_invalid_stored_record_is_refused(record: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Programs.from_record(record)


@pytest.mark.parametrize(("cpu", "calls"), [(-1.0, None), (float("nan"), None), (1.0, -1.0), (1e12, None)])
def test_an_impossible_usage_is_refused(cpu: float, calls: float | None) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Programs().record(1, "/bin/a", cpu, calls)


# -- the rule ------------------------------------------------------------------------------------------------------------


def test_a_long_program_on_a_busy_home_goes_at_once_and_a_short_one_stays() -> None:
    view = view_of(node("n1", 4), node("n2", 0.0))
    decision = decided(view)
    assert decision.target == "n2"
    assert "cc1 usually uses 0.60 s of cpu; on n2 that saves about" in decision.reason
    assert decision.slowdown is not None
    assert decided(view, replace(COMPILER, cpu=LEAST_CPU / 2)).target is None
    assert why_short(replace(COMPILER, cpu=0.03)) == "cc1 usually uses 0.03 s of cpu, less than 0.1 s"
    assert why_short(COMPILER) is None


def test_on_an_idle_home_it_stays() -> None:
    assert decided(view_of(node("n1", 1), node("n2", 0.0))).target is None


def test_a_process_stays_where_moves_take_long() -> None:
    view = view_of(node("n1", 4), node("n2", 0.0))
    slow = replace(QUICK, cost=MoveCost(Line(0.3, 1e-9), Line(0.9, 1e-9)))
    decision = decided(view, settings=slow)
    assert decision.target is None
    assert decision.reason.startswith("cc1 usually uses 0.60 s of cpu; that is about 2.4 s here, less than 3 times the 0.91 s")


def test_a_process_that_waited_for_its_turn_moves_only_for_its_remaining_time() -> None:
    view = view_of(node("n1", 4), node("n2", 0.0))
    assert decided(view, process=replace(FRESH, cpu_seconds=0.2)).target == "n2"
    assert "only 0.05 s of that are left" in decided(view, process=replace(FRESH, cpu_seconds=0.55)).reason


def test_a_program_that_calls_home_all_the_time_stays() -> None:
    view = view_of(node("n1", 4), node("n2", 0.0))
    assert decided(view, replace(COMPILER, calls=10_000.0)).target == "n2"
    assert decided(view, replace(COMPILER, calls=40_000.0)).target is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"locked": True}, "locked"), ({"home_only": True}, "stay at home"), ({"moving": True}, "under way"),
        ({"wanted": "n3"}, "wanted on n3"),
        ({"not_before": 5.0}, "the next is tried"), ({"trusted": frozenset({"n9"})}, "home is the best"),
    ],
)  # fmt: skip
def test_reasons_that_keep_other_processes_at_home_apply_at_exec_too(changes: dict[str, Any], words: str) -> None:
    decision = decided(view_of(node("n1", 4), node("n2", 0.0)), process=replace(FRESH, **changes))
    assert decision.target is None
    assert words in decision.reason


def test_to_one_node_a_bounded_number_is_under_way() -> None:
    view = view_of(node("n1", 16), node("n2", 0.0), node("n3", 2.0))
    assert decided(view, n2=COMING - 1).target == "n2"
    assert decided(view, n2=COMING).target == "n3"
    assert decided(view, n2=COMING, n3=COMING).target is None


def test_sixteen_that_begin_together_spread() -> None:
    """Each counts at once where it goes, as gossip counts what was sent."""
    loads = {"n1": 0.0, "n2": 0.0, "n3": 0.0, "n4": 0.0}
    rng, coming = random.Random(3), Counter[str]()
    for number in range(16):
        loads["n1"] += 1
        view = view_of(*(node(name, load) for name, load in loads.items()))
        target = decide_at_exec(view, replace(FRESH, pid=number), COMPILER, rng, QUICK, coming).target
        if target is not None:
            coming[target] += 1
            loads["n1"] -= 1
            loads[target] += 1
    assert max(loads.values()) <= 5
    assert min(loads.values()) >= 3


# -- with real daemons ---------------------------------------------------------------------------------------------------

SHORT, LONG = 20, 600
"""ms"""
MANY = 8


def notes(n1: Node, name: str) -> list[tuple[int, dict[str, Any]]]:
    """Returns the decisions made when that program was executed, each with its process."""
    found = []
    for other in ("n1", "n2", "n3"):
        for note in n1.ask_mosd("why", node=other)["decisions"]:
            if f"{name} usually uses" in note["reason"]:
                found.append((note["pid"], note))
    return found


@pytest.mark.timeout(180)
@pytest.mark.soak
def test_a_program_known_to_run_long_is_placed_at_exec_and_mosctl_why_shows_it(lab3: Lab) -> None:
    n1 = lab3.node("n1")
    for name in ("long", "short"):
        (n1.root / "tmp" / name).write_bytes(program("burns").read_bytes())
        (n1.root / "tmp" / name).chmod(0o755)
    n1.run(["mosrun", "sh", "-c", f"for i in 1 2 3; do /tmp/long {LONG}; /tmp/short {SHORT}; done"], timeout=60, check=True)
    many = f"for i in $(seq {MANY}); do /tmp/long {LONG} & /tmp/short {SHORT} & done; wait"
    n1.run(["mosrun", "sh", "-c", many], timeout=90, check=True)
    gone = [(pid, note) for pid, note in notes(n1, "long") if note["outcome"] == "made"]
    assert {note["target"] for _, note in gone} == {"n2", "n3"}
    assert not notes(n1, "short")
    shown = n1.run(["mosctl", "why", str(gone[0][0])], timeout=20, check=True, capture_output=True, text=True).stdout
    assert "long usually uses 0." in shown
    n1.stop_mosd()  # it keeps what it has learned
    kept = {path: seconds for _, path, seconds, _ in json.loads((n1.root / "var/lib/farhome/programs.json").read_text())["programs"]}
    assert set(kept) == {"/tmp/long"}
    assert len(kept["/tmp/long"]) == RUNS
    assert all(0.8 * LONG < 1000 * cpu < 2 * LONG for cpu in kept["/tmp/long"]), "away as at home"
    n1.start_mosd()
    until(lambda: {row["name"] for row in n1.ask_mosd("nodes")["nodes"]} == {"n1", "n2", "n3"})
    before = len(notes(n1, "long"))
    n1.run(["mosrun", "sh", "-c", many], timeout=90, check=True)
    assert len(notes(n1, "long")) > before
