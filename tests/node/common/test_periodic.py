"""Periodic steps continue after one of them has failed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from node.common.periodic import periodically


@pytest.mark.parametrize("waits", [False, True])
def test_a_failed_step_is_logged_and_the_next_is_made(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    made: list[int] = []

    def step() -> None:
        made.append(len(made))
        if len(made) == 2:
            raise ZeroDivisionError("the second")

    async def wait() -> None:
        await asyncio.sleep(0)
        step()

    async def live() -> None:
        task = asyncio.create_task(periodically("the count", wait if waits else step, lambda: 0.0))
        while len(made) < 4:
            await asyncio.sleep(0)
        task.cancel()

    with caplog.at_level(logging.ERROR, "mosd"):
        asyncio.run(asyncio.wait_for(live(), 10))
    assert [record.getMessage() for record in caplog.records] == ["the count met a fault"]


def test_a_periodic_step_may_begin_with_a_pause() -> None:
    made: list[float] = []

    async def live() -> None:
        begun = asyncio.get_running_loop().time()
        task = asyncio.create_task(periodically("it", lambda: made.append(asyncio.get_running_loop().time()), lambda: 0.05, delayed=True))
        while not made:
            await asyncio.sleep(0)
        task.cancel()
        assert made[0] - begun >= 0.05

    asyncio.run(asyncio.wait_for(live(), 10))
