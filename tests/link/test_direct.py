"""A guest reads files through its own open files; after every operation on their descriptors it reads what it would read at home."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.calls.link_pair import Pair
from deputy.requests.direct_files import set_position
from kernel_helpers.link.ends.direct_files import POSITION
from tests.link.direct_away import PLACE
from tests.programs.build import program
from wire.control import Control

pytestmark = pytest.mark.timeout(60)


class DirectPair(Pair):
    """A pair with the home's part of direct files. `given_up`: how often one became home's again."""

    given_up = 0

    def step(self, timeout: float = 0.05) -> None:
        before = len(self.events)
        super().step(timeout)
        assert self.link is not None
        pid = self.process.pid
        for event in self.events[before:]:
            if event.kind == Control.POSITIONS:
                for number, position in POSITION.iter_unpack(event.data):
                    set_position(pid, number, position)
                    self.given_up += 1
                self.link.release()
            elif event.kind == Control.POSITION:
                number, serial, _ = PLACE.unpack(event.data)
                facts = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
                place = PLACE.pack(number, serial, int(facts.split("pos:")[1].split()[0]))
                self.link.send(Control.POSITIONED, event.tid, place)


@pytest.mark.parametrize("positions", ["own", "shared"])
def test_files_are_read_by_the_guest_itself(tmp_path: Path, positions: str) -> None:
    argv = [str(program("reader")), "3", "200000", "40"]
    away = [sys.executable, "-m", "tests.link.direct_away", positions]
    with DirectPair(argv, away_prefix=away, directory=str(tmp_path)) as pair:
        status, said = pair.run(50)
        assert (status, said) == (0, b"all as it should be\n")
        assert pair.link is not None
        forwarded, _ = pair.link.calls
    assert pair.given_up > 20 if positions == "own" else not pair.given_up
    print(forwarded, "calls forwarded,", pair.given_up, "files given up")
    assert os.listdir(tmp_path)


@pytest.mark.parametrize("positions", ["own", "shared"])
def test_reads_that_name_the_place_go_home_only_until_the_file_is_open_here(tmp_path: Path, positions: str) -> None:
    argv = [str(program("places")), "0", "400"]
    away = [sys.executable, "-m", "tests.link.direct_away", positions]
    with DirectPair(argv, away_prefix=away, directory=str(tmp_path)) as pair:
        assert pair.link is not None
        link, lines, rounds, before = pair.link, tmp_path / "lines", 0, 0

        def stays_here() -> bool:
            """Whether of the some 500 reads of each of the last rounds hardly one has gone home."""
            nonlocal rounds, before
            done = len(lines.read_text().split()) if lines.exists() else 0
            forwarded, _ = link.calls
            if done == rounds:
                return False
            each = (forwarded - before) / (done - rounds)
            rounds, before = done, forwarded
            return done > 20 and each < 200  # the file is another one each tenth

        pair.until(stays_here, 40, "reads that stay where the guest is")
        (tmp_path / "enough").touch()
        assert pair.run(15) == (0, b"all as it should be\n")
