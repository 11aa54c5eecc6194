"""After each failure at each step of a move, the process is where docs/moving.md says, whole, once, and nothing is left of the move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import matrix, stops
from tests.faults.matrix import Cell, Lab

pytestmark = pytest.mark.timeout(240)

CELLS = list(matrix.cells(matrix.DOCUMENT.read_text()))
OUTCOMES = {"here", "there", "either", "ends", "lost"}
SAMPLE = {
    ("out", "pour", "out: restored there", "deputy"), ("out", "pour", "out: restored there", "target remote"),
    ("out", "pour", "commit said", "deputy"), ("out", "pour", "commit said", "home mosd"), ("out", "criu", "out: dump", "deputy"),
    ("hop", "pour", "commit said", "left remote"), ("home", "pour", "home: running", "deputy"),
}  # fmt: skip
"""The cells that are tried each time."""


class Keeper:
    """One lab for all cells, and another after one that has failed."""

    def __init__(self) -> None:
        self._held: Lab | None = None

    def get(self) -> Lab:
        self._held = self._held or Lab()
        return self._held

    def drop(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.cluster.down()


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*stops.ENVIRONMENT)
        keeper = Keeper()
        yield keeper
        keeper.drop()


def name(cell: Cell) -> str:
    return "-".join((cell.way, cell.engine, cell.step, cell.actor)).replace(": ", "-").replace(" ", "_")


def key(cell: Cell) -> tuple[str, str, str, str]:
    return (cell.way, cell.engine, cell.step, cell.actor)


def test_the_page_covers_every_way_and_outcome() -> None:
    assert {(cell.way, cell.engine) for cell in CELLS} == {(way, "pour") for way in matrix.PLACES} | {("out", "criu"), ("hop", "criu")}
    assert {cell.outcome for cell in CELLS} == OUTCOMES
    assert len({key(cell) for cell in CELLS}) == len(CELLS)
    assert {key(cell) for cell in CELLS} >= SAMPLE


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, id=name(cell), marks=[] if key(cell) in SAMPLE else [pytest.mark.soak]) for cell in CELLS]
)
def test_a_failure_at_a_step(keeper: Keeper, cell: Cell) -> None:
    lab = keeper.get()
    try:
        matrix.play(lab, cell)
    except BaseException as error:
        print(f"{cell}: {error!r}")
        keeper.drop()
        raise
