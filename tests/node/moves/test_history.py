"""Moves home and failed moves of a process are counted by reason, the last few with their time; the history survives in a file."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from node.moves import history
from node.moves.history import KEPT_HAPPENINGS, KEPT_REASONS, OTHERS, History
from node.moves.home_process import HomeProcess, from_record


def test_moves_home_are_counted_by_call() -> None:
    kept = History()
    for at in range(10):
        kept = kept.moved(at, "home", "n2", "asked").moved(at + 0.5, "n2", "home", "execve" if at % 5 == 0 else "clone3")
    kept = kept.moved(11, "home", "n2", "balance").moved(12, "n2", "home", "n2 wants its machine back")
    assert kept.row()["taken_home"] == [
        {"reason": "clone3", "times": 8, "last": 9.5, "call": True},
        {"reason": "execve", "times": 2, "last": 5.5, "call": True},
        {"reason": "n2 wants its machine back", "times": 1, "last": 12, "call": False},
    ]
    assert kept.row()["failed"] == []
    assert [h["target"] for h in kept.row()["recent"]] == ["n2", "home"] * (KEPT_HAPPENINGS // 2)
    assert "recent" not in kept.row(happenings=False)


def test_the_same_refusal_again_and_again_is_one_happening_that_counts() -> None:
    kept = History().moved(1, "n2", "home", "fork")
    for at in range(2, 200):
        kept = kept.not_moved(at, "home", "n2", "it uses io_uring (descriptor 3)")
    assert [(h.what, h.times, h.at) for h in kept.recent] == [("moved", 1, 1), ("failed", 198, 199)]
    assert kept.row()["failed"] == [{"reason": "it uses io_uring (descriptor 3)", "times": 198, "last": 199}]


def test_the_history_is_bounded() -> None:
    kept = History()
    for at in range(1000):
        kept = kept.not_moved(at, "home", f"n{at}", f"reason {at} " + "x" * 1000)
    assert len(kept.failed) == KEPT_REASONS + 1
    assert kept.failed[OTHERS].times == 1000 - KEPT_REASONS
    assert len(kept.recent) == KEPT_HAPPENINGS
    assert len(json.dumps(asdict(kept))) < 20000


def test_the_history_is_restored_from_the_processs_file() -> None:
    kept = History().moved(1.5, "home", "n2", "asked").moved(2.5, "n2", "home", "vfork").not_moved(3.5, "home", "n3", "n3 does not lend")
    entry = HomeProcess(7, 8, 9, adopted=True, locked=True, history=kept)
    assert from_record(json.loads(json.dumps(asdict(entry)))) == entry
    older = {key: value for key, value in asdict(entry).items() if key not in ("history", "adopted")}
    assert from_record(older).history == History()


@pytest.mark.parametrize("record", [None, [], {}, {"home": [], "failed": {}, "recent": []}, {"home": {"x": 1}, "failed": {}, "recent": []},
                                    {"home": {}, "failed": {}, "recent": [{"at": "soon"}]}])  # fmt: skip
def test_a_record_that_makes_no_sense_is_refused(record: object) -> None:
    with pytest.raises(ValueError, match="history"):
        history.from_record(record)


def test_a_loss_replaces_an_end_in_either_order() -> None:
    moved = History().moved(1, "home", "n2", "asked")
    assert [h.what for h in moved.ended(2, "n2").recent] == ["moved", "ended"]
    for kept in (moved.ended(2, "n2").lost(3, "n2", "its deputy died"), moved.lost(3, "n2", "its deputy died").ended(4, "n2")):
        assert [(h.what, h.at, h.target) for h in kept.recent] == [("moved", 1, "n2"), ("lost", 3, "n2")]
        assert kept.lost(9, "n2", "again") == kept


def test_a_move_that_is_heard_of_after_the_end_was_before_it() -> None:
    kept = History().ended(5, "home").moved(7, "home", "n2", "asked")
    assert [(h.what, h.at, h.target) for h in kept.recent] == [("moved", 5, "n2"), ("ended", 5, "n2")]
