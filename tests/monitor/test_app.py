"""The live monitor, key by key and click by click, on textual's pilot: a terminal of 80 by 24 that only programs see."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from monitor.drawings import frames
from monitor.drawings.chart import AXIS
from monitor.live import pages, screens
from monitor.live.app import Monitor
from monitor.live.canvas import Canvas
from monitor.picture import Picture, Process
from tests.monitor.pictures import FakeSource, node

pytestmark = pytest.mark.timeout(60)


Live = tuple[Monitor, Pilot[None], FakeSource]


@asynccontextmanager
async def live(source: FakeSource | None = None, size: tuple[int, int] = (80, 24), **options: Any) -> AsyncIterator[Live]:
    source = source or FakeSource()
    app = Monitor(source, source.picture(), interval=3600, **options)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot, source


def shown(app: Monitor) -> str:
    return "\n".join(app.texts())


async def until(app: Monitor, pilot: Pilot[None], what: Callable[[], bool]) -> None:
    """Lets results of threads arrive. Errors: AssertionError if `what` does not hold within some thousand turns."""
    for _ in range(2000):
        await app.workers.wait_for_complete()
        await pilot.pause(0.01)
        if what():
            return
    raise AssertionError(shown(app))


async def test_first_screen_is_the_chart_of_the_picture_that_it_began_with() -> None:
    async with live() as (app, _, source):
        assert list(app.texts()) == ["".join(piece.text for piece in line).rstrip() for line in
                                     frames.nodes(source.picture(), app.outlook, 80, 24).lines]  # fmt: skip


async def test_keys_of_the_first_screen() -> None:
    async with live() as (app, pilot, _):
        for keys, seen in (
            ("L", "guests  load, logarithmic"), ("s", "guests  speed"), ("m", "guests  memory, used and free (+)"),
            ("u", "guests  utilisability"), ("l", "guests  load\n"), ("d", " x"), ("t", "total: 3 of 5 nodes heard of"),
            ("right", "n2: lends"), ("right", "n3: blocked"), ("right", "n9: dead, nothing is known"), ("left", "n3: blocked"),
            ("end", "n10-with-a-very-long-name: silent"), ("home", "n1: lends"), ("down", "n10-with-a-very-long-name: silent"),
            ("up", "n1: lends"),
        ):  # fmt: skip
            assert seen not in shown(app), keys
            await pilot.press(keys)
            assert seen in shown(app), keys
        await pilot.press("d", "t")
        assert " x" not in shown(app)
        assert "total: " not in shown(app)


async def test_keys_of_numbering() -> None:
    async with live(size=(24, 24)) as (app, pilot, _):
        for key, below in (("w", "1   2   3   4"), ("V", "1234"), ("v", "1 2 3 4"), ("a", "1   2   3   4")):
            await pilot.press(key)
            assert next(line for line in app.texts() if line.startswith(" " * AXIS + "1")).strip() == below


async def test_enter_goes_down_and_escape_comes_up() -> None:
    async with live() as (app, pilot, _):
        await pilot.press("enter")
        await pilot.pause()
        assert "n1: 4 home processes and guests" in shown(app)
        await pilot.press("enter")
        await until(app, pilot, lambda: "moved twice" in shown(app))
        assert "why process 4711 is where it is" in shown(app)
        assert "stays: n3 would be no better" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "n1: 4 home processes" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "moves of n1's processes" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, screens.Nodes)


async def test_the_page_of_another_node_lists_our_guests_there_and_its_own_processes_and_guests() -> None:
    async with live() as (app, pilot, source):
        await pilot.press("right", "enter")
        await until(app, pilot, lambda: "n2: 4 home processes and guests, 2 more are not shown" in shown(app))
        rows = [line.split()[:4] for line in list(app.texts())[2:6]]
        assert rows == [
            ["4711", "joe", "n2", "away"], ["99", "ann", "n1", "away"], ["7", "ann", "home", "home"], ["4711", "bob", "here", "guest"],
        ]  # fmt: skip
        assert "work 4712" not in shown(app)
        assert source.listed == ["n2"]
        await pilot.press("down", "down")
        assert "stays: it is idle" in shown(app)
        await pilot.press("escape", "space")
        await until(app, pilot, lambda: app.listing is None)
        assert source.listed == ["n2"]


async def test_process_of_another_node_is_moved_from_there_and_ours_that_is_there_from_here() -> None:
    async with live() as (app, pilot, source):
        await pilot.press("right", "enter")
        await until(app, pilot, lambda: "make" in shown(app))
        await pilot.press("down", "m")
        await pilot.pause()
        assert "99 is a process of n2, and is moved from there" in shown(app)
        await pilot.press("up", "h")
        await until(app, pilot, lambda: "process 4711 is home" in shown(app))
        assert source.moves == [(4711, "home")]


async def test_a_node_that_does_not_list_its_processes_leaves_ours_on_show_and_the_reason() -> None:
    source = FakeSource()
    source.silent.add("n2")
    async with live(source) as (app, pilot, _):
        await pilot.press("right", "enter")
        await until(app, pilot, lambda: "n2 does not report its processes" in shown(app))
        assert "n2: 1 processes of n1 that are there" in shown(app)
        assert "work 4711" in shown(app)
        await pilot.press("escape")
        await until(app, pilot, lambda: "n2 does not report" not in shown(app))


async def test_why_of_another_users_process_is_a_sentence() -> None:
    async with live() as (app, pilot, _):
        await pilot.press("enter", "down", "down", "enter")
        await until(app, pilot, lambda: "process 4713 belongs to root" in shown(app))


async def test_filter_on_nodes_and_on_processes() -> None:
    async with live() as (app, pilot, _):
        await pilot.press("slash", "n", "3")
        await pilot.pause()
        assert "/n3_" in shown(app)
        assert "n3: blocked" in shown(app)
        await pilot.press("enter")
        await pilot.pause()
        assert "/n3_" not in shown(app)
        assert [one.name for one in app.outlook.nodes(app.picture)] == ["n3"]
        await pilot.press("escape", "enter")
        await pilot.pause()
        await pilot.press("slash", *"4712q", "backspace")
        await pilot.pause()
        assert "only with '4712'" in shown(app)
        assert "work 4711" not in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "work 4711" in shown(app)


async def test_m_and_a_target_move_the_chosen_process_and_the_outcome_is_shown() -> None:
    async with live() as (app, pilot, source):
        await pilot.press("enter", "down", "m")
        await pilot.pause()
        assert "move process 4712 (work 4712), now home, to:" in shown(app)
        await pilot.press("down", "enter")
        await until(app, pilot, lambda: "process 4712 is n2, frozen 12.5 ms" in shown(app))
        assert source.moves == [(4712, "n2")]
        await until(app, pilot, lambda: any(line.split()[:3] == ["4712", "joe", "n2"] for line in app.texts()))


async def test_h_brings_home_and_a_refusal_is_shown() -> None:
    async with live() as (app, pilot, source):
        await pilot.press("enter", "h")
        await until(app, pilot, lambda: "process 4711 is home" in shown(app))
        await pilot.press("m", "down", "down", "enter")
        await until(app, pilot, lambda: "n3 refuses it: blocked" in shown(app))
        assert source.moves == [(4711, "home"), (4711, "n3")]


async def test_targets_can_be_left_without_a_move() -> None:
    async with live() as (app, pilot, source):
        await pilot.press("enter", "m", "escape")
        await pilot.pause()
        assert isinstance(app.screen, screens.Processes)
        assert source.moves == []


async def test_a_guest_is_not_ours_to_move() -> None:
    async with live() as (app, pilot, source):
        await pilot.press("enter", "end", "m")
        await pilot.pause()
        assert "99 is a guest: n2 decides" in shown(app)
        assert source.moves == []


async def test_the_chosen_process_stays_chosen_when_others_go() -> None:
    async with live() as (app, pilot, source):
        await pilot.press("enter", "down")
        source.answer["processes"] = source.answer["processes"][1:]
        await pilot.press("space")
        await until(app, pilot, lambda: "work 4711" not in shown(app))
        await pilot.press("m")
        await pilot.pause()
        assert "move process 4712" in shown(app)


async def test_help_lists_every_key_and_goes_away() -> None:
    async with live() as (app, pilot, _):
        await pilot.press("?", "?")
        await pilot.pause()
        for keys in ("l L", "s m u", "w v V a", "d ", "t ", "/", "?", "q"):
            assert f"\n{keys}" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, screens.Nodes)


async def test_mouse_chooses_goes_in_and_turns_the_wheel() -> None:
    async with live() as (app, pilot, _):
        pitch = app.screen.drawn.chart.pitch  # type: ignore[attr-defined]
        await pilot.click(offset=(AXIS + pitch, 6))
        await pilot.pause()
        assert "n2: lends" in shown(app)
        await pilot.click(offset=(AXIS + pitch, 6))
        await pilot.pause()
        assert "n2: 1 processes of n1" in shown(app) or "n2: 4 home processes" in shown(app)
        await pilot.press("escape", "left", "enter")
        await pilot.click(offset=(3, 4))
        await pilot.pause()
        assert app.screen.key == (4713, "", Process)  # type: ignore[attr-defined]
        await pilot._post_mouse_events([screens.events.MouseScrollUp], offset=(3, 4))
        await pilot.pause()
        assert app.screen.key == (4712, "", Process)  # type: ignore[attr-defined]


@pytest.mark.parametrize("keys", [["q"], ["Q"], ["ctrl+c"], ["enter", "q"], ["enter", "m", "ctrl+c"], ["enter", "enter", "q"], ["?", "q"]])
async def test_quit_from_every_screen(keys: list[str]) -> None:
    async with live() as (app, pilot, _):
        await pilot.press(*keys)
        assert not app.is_running


async def test_trouble_is_shown_and_the_last_picture_stays() -> None:
    async with live() as (app, pilot, source):
        source.trouble = "no mosd answers on this node"
        await pilot.press("space")
        await until(app, pilot, lambda: "no mosd answers" in shown(app))
        assert "farhome as n1 sees it: 4 nodes" in shown(app)
        source.trouble = ""
        source.answer["nodes"] = [node("n1", 9.25, self=True)]
        await pilot.press("space")
        await until(app, pilot, lambda: "load 9.25" in shown(app))
        assert "no mosd answers" not in shown(app)


async def test_a_daemon_that_is_slow_holds_nothing_up() -> None:
    over = threading.Event()

    class Slow(FakeSource):
        def picture(self) -> Picture:
            over.wait(20)
            return super().picture()

    source = Slow()
    app = Monitor(source, FakeSource().picture(), interval=3600)
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("space", "space", "m")
            await pilot.pause()
            assert "memory, used and free" in shown(app)
            over.set()
    finally:
        over.set()


@pytest.mark.parametrize("colour", [True, False])
async def test_colours_only_if_they_are_wanted(colour: bool) -> None:
    async with live(colour=colour) as (app, _, _):
        canvas = app.screen.query_one(Canvas)
        styles = [segment.style for y in range(24) for segment in canvas.render_line(y)]
        assert any(style is not None and style.color is not None and style.color.name == "magenta" for style in styles) is colour


async def test_another_size_of_the_terminal_is_another_drawing() -> None:
    async with live() as (app, pilot, _):
        await pilot.resize_terminal(50, 12)
        await pilot.pause()
        await pilot.pause()
        lines = list(app.texts())
        assert len(lines) == 12
        assert max(len(line) for line in lines) <= 50


async def test_figures_that_come_while_a_screen_is_being_made_are_on_it_then() -> None:
    async with live() as (app, pilot, source):
        pid = next(iter(source.picture().processes)).pid
        app.push_screen(pages.Why(pid))
        app.redraw()  # as by an update that ends at this moment
        await until(app, pilot, lambda: f"why process {pid}" in shown(app))
