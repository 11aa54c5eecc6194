"""A node that cannot give guests ids of their own, or is not to, takes those of its own administration alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from balancer.lending.policy import LendingPolicy
from node.common.config import Config
from node.common.paths import Paths
from node.guests import admission
from node.guests.guest import Guest, Surroundings
from node.guests.guests import Guests
from node.programs.programs import Programs


def _why(tmp_path: Path, table: dict[str, object], home: str) -> str | None:
    policy = LendingPolicy.from_table(table)
    paths = Paths(run=tmp_path, state=tmp_path, config=tmp_path / "node.toml")
    here = Guests(
        paths, lambda: Config("n2", "127.0.0.1"), lambda: policy, Programs(), lambda: Surroundings(1 << 40), lambda _: None, lambda *_: None
    )
    guest = Guest(home, 7, 1001, "anna", 1 << 20, 0.0, group=f"{home}-7")
    return asyncio.run(here._admission.why_not(guest))


def test_guests_of_its_own_administration_are_taken_and_others_are_refused_with_a_reason(tmp_path: Path) -> None:
    table: dict[str, object] = {"ids": "none", "administration": ["n1"]}
    assert _why(tmp_path, table, "n1") is None
    refusal = _why(tmp_path, table, "n3")
    assert refusal is not None and "administration" in refusal and "n3" in refusal and "user ids" in refusal


def test_with_ids_of_their_own_all_come(tmp_path: Path) -> None:
    assert _why(tmp_path, {"administration": ["n1"]}, "n3") is None


def test_a_kernel_that_makes_no_user_namespaces_counts_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "why_no_user_namespaces", lambda: "a user namespace: No space left on device")
    refusal = _why(tmp_path, {"administration": ["n1"]}, "n3")
    assert refusal is not None and "No space left on device" in refusal
    assert _why(tmp_path, {"administration": ["n1"]}, "n1") is None
