"""A stub's loop finds room in an address space that is nearly taken."""

from __future__ import annotations

import mmap
import os

import pytest

from deputy.stub.footprint import HIGHEST, LOWEST, free_base
from engine.leaving.remains import BASES, GRID
from kernel_helpers.common.errors import FarhomeError

MIB = 1 << 20


def test_the_loop_is_in_the_greatest_gap_if_all_usual_places_are_taken() -> None:
    assert free_base(os.getpid(), MIB) in BASES
    shadow = (BASES[0] - MIB, BASES[-1] + GRID)
    base = free_base(os.getpid(), MIB, [shadow])
    assert base % GRID == 0
    assert base + MIB < shadow[0] or base > shadow[1]
    assert LOWEST < base < HIGHEST - MIB


def test_a_full_address_space_is_refused_with_a_sentence() -> None:
    with mmap.mmap(-1, MIB), pytest.raises(FarhomeError, match="leave no room"):
        free_base(os.getpid(), MIB, [(0, HIGHEST)])
