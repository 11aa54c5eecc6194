"""The journal of decisions: bounded, repeats counted, moves with what came of them."""

from __future__ import annotations

from balancer.decisions.journal import PER_PROCESS, Journal
from balancer.decisions.process import Decision


def stay(pid: int, figure: float) -> Decision:
    return Decision(pid, None, f"a slowdown of {figure:.2f} here and 1.00 on n2 is too little to gain")


def test_same_decision_again_is_counted_with_its_newest_figures() -> None:
    journal = Journal()
    for second in range(50):
        journal.record(second, stay(1, second / 10), "home")
    (note,) = journal.of_process(1)
    assert (note.first, note.last, note.times) == (0, 49, 50)
    assert "4.90" in note.reason
    journal.record(50, Decision(1, None, "it is locked against automatic moves"), "home")
    journal.record(51, stay(1, 1.0), "n3")
    assert [note.times for note in journal.of_process(1)] == [50, 1, 1]


def test_a_decided_move_is_recorded_with_its_outcome() -> None:
    journal = Journal()
    journal.record(1, Decision(1, "n2", "saves 5 s"), "home")
    journal.concluded(1, "n2", "n2 is busier than was known")
    journal.record(3, Decision(1, "n2", "saves 6 s"), "home")
    journal.concluded(1, "n2", "made")
    journal.concluded(1, "n9", "made")
    journal.concluded(7, "n2", "made")
    assert [(note.target, note.outcome) for note in journal.of_process(1)] == [("n2", "n2 is busier than was known"), ("n2", "made")]


def test_notes_of_a_node_are_those_that_name_it() -> None:
    journal = Journal()
    journal.record(1, Decision(1, "n2", "saves 5 s"), "home")
    journal.record(2, Decision(2, None, "n2's owner is back"), "home")
    journal.record(3, Decision(3, None, "a slowdown of 1.00 here and 1.50 on n22 is too little"), "home")
    journal.record(4, Decision(4, "home", "saves 1 s"), "n2")
    assert [note.pid for note in journal.of_node("n2")] == [1, 2, 4]


def test_the_journal_is_bounded_and_forgets_the_oldest_decisions_first() -> None:
    journal = Journal(limit=100)
    for second in range(1000):
        journal.record(second, Decision(second % 7, f"n{second}", "it is better there"), "home")
    assert len(journal) <= 100
    assert all(0 < len(journal.of_process(pid)) <= PER_PROCESS for pid in range(3, 7))
    assert journal.of_process(6)[-1].target == "n993"
    for pid in range(100, 300):
        journal.record(2000 + pid, stay(pid, 1.0), "home")
    assert len(journal) == 100
    assert journal.of_process(6) == []
