"""Placement of programs that supervise guests: beside the guests while no move is under way, outside as soon as one begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from node.guests import resting
from node.guests.cgroups import GuestGroups
from node.guests.resting import Resting

ONE, OTHER = 4001, 4002


class _Groups(GuestGroups):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__([])
        self.places: dict[int, bool] = {}
        self.is_owner_back = False

    def place_remote(self, pid: int, is_at_rest: bool) -> None:
        self.places[pid] = is_at_rest

    def weigh_remotes(self, is_owner_back: bool) -> None:
        self.is_owner_back = is_owner_back


async def _becomes(groups: _Groups, places: dict[int, bool]) -> None:
    async with asyncio.timeout(20):
        while groups.places != places:
            await asyncio.sleep(0.01)


def _run(act: Callable[[Resting, _Groups, dict[str, int]], Awaitable[None]]) -> None:
    async def run() -> None:
        groups, programs = _Groups(), dict[str, int]()
        await act(Resting(groups, lambda: programs), groups, programs)

    asyncio.run(run())


def test_a_program_rests_when_none_of_its_guests_is_moved() -> None:
    async def act(of: Resting, groups: _Groups, programs: dict[str, int]) -> None:
        programs |= {"a": ONE, "b": ONE, "c": OTHER}
        of.runs("a")
        of.runs("c")
        await _becomes(groups, {OTHER: True})  # b is on its way
        of.runs("b")
        await _becomes(groups, {ONE: True, OTHER: True})
        of.moves("a")
        await _becomes(groups, {ONE: False, OTHER: True})
        del programs["a"]
        of.forget("a")
        of.runs("b")
        await _becomes(groups, {ONE: True, OTHER: True})

    _run(act)


def test_a_supervisor_of_a_new_guest_is_not_moved() -> None:
    async def act(of: Resting, groups: _Groups, programs: dict[str, int]) -> None:
        programs["a"] = ONE
        of.runs("a")
        of.moves("a")
        await asyncio.sleep(2 * resting.AWHILE)
        assert groups.places == {}

    _run(act)


def test_all_are_out_while_the_owner_is_back() -> None:
    async def act(of: Resting, groups: _Groups, programs: dict[str, int]) -> None:
        programs |= {"a": ONE, "b": OTHER}
        of.runs("a")
        await _becomes(groups, {ONE: True})
        of.leave(True)
        await of.settled()
        assert groups.places == {ONE: False, OTHER: False} and groups.is_owner_back
        of.runs("b")
        of.leave(False)
        assert not groups.is_owner_back
        await _becomes(groups, {ONE: True, OTHER: True})

    _run(act)


def test_a_number_that_another_program_has_by_now_is_placed_again() -> None:
    async def act(of: Resting, groups: _Groups, programs: dict[str, int]) -> None:
        programs["a"] = ONE
        of.runs("a")
        await _becomes(groups, {ONE: True})
        programs.clear()
        of.forget("a")
        of.moves("z")  # makes it check the places again
        await of.settled()
        groups.places.clear()
        programs["b"] = ONE
        of.runs("b")
        await _becomes(groups, {ONE: True})

    _run(act)
