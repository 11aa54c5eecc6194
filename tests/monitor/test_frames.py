"""Whole screens as text: what is on them, and that they fit; the timeline of moves."""

from __future__ import annotations

import re
from typing import Any

import pytest

from monitor.drawings import frames, processes, timeline
from monitor.drawings.outlook import Outlook
from monitor.drawings.pieces import text_of
from monitor.drawings.styles import painted
from tests.monitor.pictures import NOW, event, node, picture, process


def text(frame: frames.Frame) -> list[str]:
    return [text_of(line).rstrip() for line in frame.lines]


def test_first_screen_shows_cluster_chart_chosen_node_and_moves() -> None:
    lines = text(frames.nodes(picture(), Outlook(), 80, 24))
    assert lines[0].startswith("farhome as n1 sees it: 4 nodes, load 1.68, 2 guests  load")
    assert any("n1: lends, load 3.20, 1 core of speed 1.00, memory 12G/16G" in line for line in lines)
    assert any("0 guests, 3 home processes, utilisability 88%, owner idle 75s" in line for line in lines)
    assert any("moves of n1's processes, the last 60 seconds" in line for line in lines)
    assert lines[-1] == frames.FOOT_NODES


def test_a_closed_node_is_shown_with_the_owners_reason() -> None:
    closed = picture(nodes=[node("n1", 0.0, self=True, lending=False, closed_why="only from 18:00", owner_state="back")])
    lines = text(frames.nodes(closed, Outlook(), 80, 24))
    assert any("owner: back, lends nothing: only from 18:00" in line for line in lines)
    assert any("n1: closed" in line for line in lines)


def test_the_page_of_another_node_shows_the_age_of_its_data_and_our_guests_there() -> None:
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


def test_a_move_under_way_shows_its_progress() -> None:
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


def test_a_long_list_follows_the_chosen_row_and_maps_lines_to_rows() -> None:
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


def test_timeline_shows_where_a_process_was_when() -> None:
    lines = [text_of(line) for line in timeline.draw(picture(), timeline.LABEL + 1 + 60, 9)]
    assert lines[0] == "moves of n1's processes, the last 60 seconds"
    assert lines[1].startswith("4712 work 4712")
    assert lines[2].startswith("4711 work 4711")
    lane = lines[2][timeline.LABEL + 1 :]
    assert lane == "·" * 20 + "n3" + "━" * 18 + "n2" + "━" * 18
    assert lines[1][timeline.LABEL + 1 :] == "·" * 50 + "x" + "·" * 9


def test_timeline_shows_executions_and_ends() -> None:
    shown = picture(processes=[], events=[event(30, 5, "n2", "n2", "executed", "gcc")])
    lines = [text_of(line) for line in timeline.draw(shown, timeline.LABEL + 1 + 60, 9, blocks=False)]
    assert lines[1].startswith("5 (ended)")
    assert lines[1][timeline.LABEL + 1 :] == "n2" + "=" * 28 + "*" + " " * 29  # it has ended since, and its end is not known


def lanes(**changes: Any) -> dict[str, str]:
    """The timeline of a picture, by what stands before each line."""
    drawn = [text_of(line) for line in timeline.draw(picture(**changes), timeline.LABEL + 1 + 60, 9)]
    return {line[: timeline.LABEL].rstrip(): line[timeline.LABEL + 1 :] for line in drawn[1:]}


def test_timeline_begins_at_births_and_ends_at_ends() -> None:
    happened = [event(40, 5, "n2", "n2", "born"), event(20, 5, "n2", "n2", "ended"), event(50, 6, "home", "home", "born"),
                event(30, 6, "home", "n2"), event(10, 6, "n2", "n2", "lost", "its deputy died")]  # fmt: skip
    assert lanes(processes=[], events=happened) == {
        "6 (lost)": " " * 10 + "├" + "·" * 19 + "n2" + "━" * 18 + "X" + " " * 9,
        "5 (ended)": " " * 20 + "├2" + "━" * 18 + "┤" + " " * 19,
    }


def test_timeline_of_a_number_that_another_process_has_taken_over() -> None:
    happened = [event(30, 5, "home", "n2"), event(20, 5, "n2", "n2", "ended"), event(10, 5, "home", "home", "born"),
                event(5, 5, "home", "n3")]  # fmt: skip
    assert lanes(processes=[process(5, "n3", command="next")], events=happened) == {
        "5 next": "·" * 30 + "n2" + "━" * 8 + "┤" + " " * 9 + "├" + "·" * 4 + "n3" + "━" * 3
    }


def test_timeline_shows_nothing_for_a_node_that_is_not_heard() -> None:
    moved = [event(40, 5, "home", "n2"), event(30, 6, "home", "n9")]
    found = lanes(
        processes=[process(5, "n2", cut=NOW - 20, command="cut"), process(6, "n9", command="dead")], events=moved,
        dead=[{"name": "n9", "since": NOW - 15}],
    )  # fmt: skip
    assert found["5 cut"] == "·" * 20 + "n2" + "━" * 18 + "?" * 20
    assert found["6 dead"] == "·" * 30 + "n9" + "━" * 13 + "?" * 15


def test_a_loss_is_above_all_else_on_every_screen_for_an_hour() -> None:
    def shown(ago: float) -> list[list[str]]:
        one = picture(events=[event(ago, 5, "n2", "n2", "lost", "its deputy died")])
        return [text(frames.nodes(one, Outlook(), 80, 24)), text(frames.process_list(one, "n1", "", 0, 80, 24))]

    for lines in shown(30):
        assert "PROCESS 5 IS LOST, on n2: its deputy died" in lines[0]
        assert len(lines) == 24
    for lines in shown(2 * 3600):
        assert not any("IS LOST" in line for line in lines[:1])
    two = picture(events=[event(ago, pid, "n2", "n2", "lost", "gone") for ago, pid in ((30, 5), (20, 6))])
    (line,) = frames.alarm(two, 100)
    assert text_of(line).startswith(" 2 PROCESSES ARE LOST, the last at ")
    assert "PROCESS 6 IS LOST" in text_of(line)
    assert "\x1b[1;7;31m" in painted([line], True)
    assert "\x1b[1;7m" in painted([line], False)


def test_dead_nodes_are_shown_with_since_when_until_they_are_of_yesterday() -> None:
    dead = [{"name": "n9", "since": NOW - 60}, {"name": "n8", "since": NOW - 2 * 86400}, {"name": "n7", "since": None}]
    shown = picture(dead=dead)
    assert [one.name for one in Outlook().nodes(shown) if one.dead] == ["n9"]
    assert [one.name for one in Outlook(dead=True).nodes(shown) if one.dead] == ["n7", "n8", "n9"]
    stranded = picture(dead=dead, processes=[process(1, "n8")])
    assert [one.name for one in Outlook().nodes(stranded) if one.dead] == ["n8", "n9"]
    (line,) = [line for line in text(frames.nodes(shown, Outlook(chosen="n9"), 80, 24)) if line.startswith("n9: dead")]
    assert re.match(r"n9: dead since [\d:-]+", line)


def test_timeline_without_moves_says_so_and_its_span_has_the_moves_in_it() -> None:
    assert [text_of(line) for line in timeline.draw(picture(events=[]), 80, 5)] == ["moves of n1's processes, the last 60 seconds: none"]
    assert timeline.span_of(picture(events=[event(600, 1, "home", "n2"), event(700, 1, "n2", "n3")])) == 900


def test_a_painted_screen_has_colours_only_if_they_are_wanted() -> None:
    frame = frames.nodes(picture(), Outlook(), 80, 24)
    assert "\x1b[35m" in painted(frame.lines, True)
    plain = painted(frame.lines, False)
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain)
    assert "\x1b[2m" in plain
