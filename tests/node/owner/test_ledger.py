"""The ledger: sums by user and node that outlive daemons, and counters that begin anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.owner.ledger import BORROWED, LENT, Ledger, Reading


def sums(ledger: Ledger) -> dict[tuple[str, str, str], float]:
    return {(entry.direction, entry.user, entry.node): entry.seconds for entry in ledger.entries()}


def test_usage_is_added_once_across_daemon_restarts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    ledger.book(LENT, [Reading("n2-1", "anna", "n2", 5.0), Reading("n2-2", "anna", "n2", 1.0), Reading("n3-1", "anna", "n3", 2.0)])
    ledger.book(LENT, [Reading("n2-1", "anna", "n2", 7.5), Reading("n2-2", "anna", "n2", 1.0), Reading("n3-1", "anna", "n3", 2.0)])
    ledger.close()
    again = Ledger(tmp_path / "state" / "ledger.db")
    again.book(LENT, [Reading("n2-1", "anna", "n2", 8.0)])
    assert sums(again) == {(LENT, "anna", "n2"): 9.0, (LENT, "anna", "n3"): 2.0}
    again.close()


def test_a_counter_that_begins_anew_counts_from_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    for seconds in (5.0, 2.0, 3.0):
        ledger.book(BORROWED, [Reading("7-100", "bert", "n2", seconds)])
    assert sums(ledger) == {(BORROWED, "bert", "n2"): 8.0}
    ledger.book(BORROWED, [])
    ledger.book(BORROWED, [Reading("7-100", "bert", "n2", 4.0)])
    assert sums(ledger) == {(BORROWED, "bert", "n2"): 12.0}
    ledger.close()


def test_the_end_of_a_guest_does_not_reset_the_counters_of_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.book(LENT, [Reading("a", "anna", "n2", 5.0), Reading("b", "bert", "n2", 5.0)])
    ledger.book(LENT, [Reading("a", "anna", "n2", 6.0)], is_all=False)
    ledger.book(LENT, [Reading("b", "bert", "n2", 6.0)])
    assert sums(ledger) == {(LENT, "anna", "n2"): 6.0, (LENT, "bert", "n2"): 6.0}
    ledger.close()


def test_a_ledger_that_cannot_be_written_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ledger.db").mkdir()
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.book(LENT, [Reading("a", "anna", "n2", 5.0)])
    assert "ledger.db" in caplog.text
    with pytest.raises(OSError, match="Is a directory"):
        ledger.entries()
