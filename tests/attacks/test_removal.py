"""A node that is taken out: no file, no guest, no process and no connection is left that joins it with the others."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.mfs.nodes import Pair, until

PATIENCE = 10.0 * 6
"""Seconds within which a removal is everywhere: 10, times six for a machine that is busy with other tests."""


@pytest.fixture
def lab() -> Iterator[Pair]:
    pair = Pair(3)
    yield pair
    pair.lab.down()


def where(lab: Pair, number: int) -> dict[int, str]:
    """Returns the node on which each process of that node runs."""
    return {row["pid"]: row["where"] for row in lab[number].ask_mosd("ps", all=True)["processes"]}


def guests(lab: Pair, number: int) -> list[str]:
    return [row["key"] for row in lab[number].ask_mosd("ps", guests=True)["guests"]]


def test_files_guests_and_processes_part_from_a_removed_node(lab: Pair) -> None:
    programs = [lab[1].popen(["mosrun", "sleep", "1000"]), lab[3].popen(["mosrun", "sleep", "1000"])]
    try:
        for number, target in ((1, "n3"), (3, "n1")):
            (pid,) = until(lambda number=number: [*where(lab, number)], "the process is known")  # type: ignore[misc]
            lab.sh(number, f"migrate {pid} {target}")
        assert [*where(lab, 1).values()] == ["n3"]
        assert guests(lab, 1)
        assert lab.sh(3, "ls /mfs/n1/tmp >/dev/null; echo ok") == "ok\n"
        begun = time.monotonic()
        lab.sh(1, "mosctl cluster remove n3", timeout=60)
        for number in (1, 2):
            until(lambda number=number: "/mfs/n3" not in lab.mounts(lab[number]), "the mount goes", PATIENCE)  # type: ignore[misc]
        until(lambda: not guests(lab, 1), "the guest goes", PATIENCE)
        until(lambda: "n3" not in where(lab, 1).values(), "our process comes home", PATIENCE)
        for number in (1, 2):
            until(
                lambda number=number: not any(one["peer"] == "n3" and one["connected"] for one in lab[number].ask_mosd("mfs")["served"]),  # type: ignore[misc]
                "nothing is served to it", PATIENCE,
            )  # fmt: skip
        assert time.monotonic() - begun < 4 * PATIENCE
        assert [*where(lab, 1).values()] == ["home"]  # it was not hostile, so our process lives
        refused = lab[3].run("ls /mfs/n1/tmp", text=True, timeout=60)
        assert refused.returncode != 0
    finally:
        for program in programs:
            program.kill()
            program.wait(20)
