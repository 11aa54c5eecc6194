"""The bench of hostile guests: each kind is a guest indeed, and nothing of it is left."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bench.common.nodes import bench_lab, build
from bench.lending import hostile
from lab import Lab

pytestmark = [pytest.mark.timeout(240), pytest.mark.soak, pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with bench_lab(2, configuration=hostile.LEND) as made:
        yield made


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_the_owners_program_works_beside_it_and_the_node_answers(lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "WORK", 3.0)
    owner = hostile.Beside(lab, build("processes/cpu"))
    with hostile.hostile(lab, build("lending/hostile"), kind) as key:
        times, others = owner.work()
        assert times and others > 0
        assert key in hostile.guests(lab.node("n2"))
    assert not hostile.guests(lab.node("n2"))
