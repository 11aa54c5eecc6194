"""Whole screens as text: what is on them, and that they fit; the timeline of moves."""

from __future__ import annotations

import re

import pytest

from monitor import frames, processes, timeline
from monitor.outlook import Outlook
from monitor.pieces import text_of
from monitor.styles import painted
from tests.monitor.pictures import event, node, picture, process


def text(frame: frames.Frame) -> list[str]:
    return [text_of(line).rstrip() for line in frame.lines]


def test_first_screen_shows_cluster_chart_chosen_node_and_moves() -> None:
    lines = text(frames.nodes(picture(), Outlook(), 80, 24))
    assert lines[0].startswith("farhome as n1 sees it: 4 nodes, load 1.68, 2 guests  load")
    assert any("n1: lends, load 3.20, 1 core of speed 1.00, memory 12G/16G" in line for line in lines)
    assert any("0 guests, 3 home processes, utilisability 88%, owner idle 75s" in line for line in lines)
    assert any("moves of n1's processes, the last 60 seconds" in line for line in lines)
    assert lines[-1] == frames.FOOT_NODES


def test_what_the_owner_keeps_is_said_with_its_reason() -> None:
    closed = picture(nodes=[node("n1", 0.0, self=True, lending=False, closed_why="only from 18:00", owner_state="back")])
    lines = text(frames.nodes(closed, Outlook(), 80, 24))
    assert any("owner: back, lends nothing: only from 18:00" in line for line in lines)
    assert any("n1: closed" in line for line in lines)


def test_of_another_node_it_is_said_how_old_the_news_are_and_who_of_ours_is_there() -> None:
    lines = text(frames.nodes(picture(), Outlook(chosen="n2"), 80, 24))
    assert any("2 guests, 1 of ours, known for 1.4s" in line for line in lines)
    dead = text(frames.nodes(picture(), Outlook(chosen="n9", dead=True), 80, 24))
    assert any(line.startswith("n9: dead") for line in dead)


@pytest.mark.parametrize("width", [1, 20, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 10, 24, 60])
def test_every_screen_fits_and_fills_the_terminal(width: int, height: int) -> None:
    shown = picture()
    for frame in (
        frames.nodes(shown, Outlook(total=True, dead=True), width, height), frames.process_list(shown, "n1", "", 1, width, height),
        frames.target_list(shown, 4711, processes.targets(shown, shown.processes[0]), 0, width, height),
        frames.text("keys", frames.help_lines(), 99, width, height),
    ):  # fmt: skip
        assert all(len(text_of(line)) <= width for line in frame.lines)
        if height > 2:
            assert len(frame.lines) == height


def test_own_node_lists_all_its_processes_and_guests_another_those_that_are_there() -> None:
    shown = picture()
    assert [row.pid for row in processes.listed(shown, "n1")] == [4711, 4712, 4713, 99]
    assert [row.pid for row in processes.listed(shown, "n2")] == [4711]
    assert [row.pid for row in processes.listed(shown, "n1", "WORK 4712")] == [4712]
    lines = text(frames.process_list(shown, "n1", "", 0, 80, 24))
    assert lines[2].split() == ["4711", "joe", "n2", "away", "12s", "1", "work", "4711"]
    assert lines[5].split() == ["99", "ann", "here", "guest", "3.0s", "n2:", "make"]


def test_a_move_under_way_tells_how_far_it_has_come() -> None:
    (row,) = processes.listed(picture(processes=[process(1, state="leaving", share=0.426)], guests=[]), "n1")
    assert "leaving 43%" in processes.line(row)


def test_why_the_chosen_process_is_where_it_is_stands_below_the_list() -> None:
    shown = picture()
    assert text(frames.process_list(shown, "n1", "", 0, 80, 24))[-3:-1] == [
        "decision: stays: n3 would be no better", "last move: n3 -> n2 20s ago (asked)",
    ]  # fmt: skip
    assert text(frames.process_list(shown, "n1", "", 1, 80, 24))[-2] == "why: n3 refuses it: blocked"
    assert text(frames.process_list(shown, "n1", "", 2, 80, 24))[-2] == "it was started to stay at home"
    assert text(frames.process_list(shown, "n1", "", 3, 80, 24))[-2] == "a guest: n2 decides where it goes; its memory here is 256 MiB"


def test_a_long_list_follows_the_chosen_row_and_knows_what_a_line_is() -> None:
    shown = picture(processes=[process(pid) for pid in range(1, 101)], guests=[])
    frame = frames.process_list(shown, "n1", "", 60, 80, 24)
    assert frame.row_at(frame.top - 1) is None
    row = frame.row_at(frame.top + 3)
    assert row is not None
    assert text(frame)[frame.top + 3].split()[0] == str(row + 1)
    assert sum(piece.style == "chosen" and piece.text.split()[:1] == ["61"] for line in frame.lines for piece in line) == 1


def test_targets_are_home_the_balancers_choice_and_every_other_living_node() -> None:
    shown = picture()
    away, at_home = ([target.name for target in processes.targets(shown, one)] for one in shown.processes[:2])
    assert away == ["home", "balance", "n3", "n10-with-a-very-long-name"]
    assert at_home == ["balance", "n2", "n3", "n10-with-a-very-long-name"]


def test_timeline_tells_where_a_process_was_when() -> None:
    lines = [text_of(line) for line in timeline.draw(picture(), timeline.LABEL + 1 + 60, 9)]
    assert lines[0] == "moves of n1's processes, the last 60 seconds"
    assert lines[1].startswith("4712 work 4712")
    assert lines[2].startswith("4711 work 4711")
    lane = lines[2][timeline.LABEL + 1 :]
    assert lane == "·" * 20 + "n3" + "━" * 18 + "n2" + "━" * 18
    assert lines[1][timeline.LABEL + 1 :] == "·" * 50 + "x" + "·" * 9


def test_timeline_knows_what_was_executed_and_who_has_ended() -> None:
    shown = picture(processes=[], events=[event(30, 5, "n2", "n2", "executed", "gcc")])
    lines = [text_of(line) for line in timeline.draw(shown, timeline.LABEL + 1 + 60, 9, blocks=False)]
    assert lines[1].startswith("5 (ended)")
    assert lines[1][timeline.LABEL + 1 :] == "n2" + "=" * 28 + "*" + "=" * 29


def test_timeline_without_moves_says_so_and_its_span_has_the_moves_in_it() -> None:
    assert [text_of(line) for line in timeline.draw(picture(events=[]), 80, 5)] == ["moves of n1's processes, the last 60 seconds: none"]
    assert timeline.span_of(picture(events=[event(600, 1, "home", "n2"), event(700, 1, "n2", "n3")])) == 900


def test_a_painted_screen_has_colours_only_if_they_are_wanted() -> None:
    frame = frames.nodes(picture(), Outlook(), 80, 24)
    assert "\x1b[35m" in painted(frame.lines, True)
    plain = painted(frame.lines, False)
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain)
    assert "\x1b[2m" in plain
