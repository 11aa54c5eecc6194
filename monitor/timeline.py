"""The timeline of moves: one line for each process that moved, where it was at what time, the newest at the right."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.picture import HOME, Event, Picture
from monitor.pieces import Line, Piece, clip, joined, shorten

SPANS = (60, 300, 900, 3600, 14400)
"""Seconds that a timeline may be of."""
LABEL = 22


def span_of(picture: Picture) -> int:
    """Seconds that the timeline is of: the least of SPANS that has the last moves in it, half of them at least."""
    ages = sorted(picture.at - event.at for event in picture.events if event.what == "moved")
    middle = ages[len(ages) // 2] if ages else 0.0
    return next((span for span in SPANS if middle <= span * 0.8), SPANS[-1])


def draw(picture: Picture, width: int, height: int, blocks: bool = True) -> list[Line]:
    """Return the lines, a title first; those that moved last are at the top."""
    if height < 1:
        return []
    span = span_of(picture)
    begin = picture.at - span
    by_process: dict[int, list[Event]] = {}
    for event in picture.events:
        by_process.setdefault(event.pid, []).append(event)
    recent = [events for events in by_process.values() if events[-1].at >= begin]
    recent.sort(key=lambda events: -events[-1].at)
    title = f"moves of {picture.node}'s processes, the last {spoken(span)}"
    if not recent:
        return [[Piece(f"{title}: none"[:width], "title")]]
    lines: list[Line] = [[Piece(title[:width], "title")]]
    for events in recent[: height - 1]:
        process = picture.process(events[-1].pid)
        label = shorten(f"{events[-1].pid} {process.command if process else '(ended)'}", LABEL)
        lane = _lane(events, begin, span, max(1, width - LABEL - 1), blocks)
        lines.append(clip([Piece(f"{label:<{LABEL}} ", "plain" if process else "faded"), *lane], width))
    return lines


def spoken(span: int) -> str:
    """A span as people say it."""
    return f"{span} seconds" if span < 120 else f"{span // 60} minutes" if span < 7200 else f"{span // 3600} hours"


def _lane(events: Sequence[Event], begin: float, span: float, width: int, blocks: bool) -> Line:
    """Where a process was: dots at home, a line with the node's name away; x is a move that was not made, * a program executed."""
    at_home, away, failed = ("·", "━", "x") if blocks else (".", "=", "x")
    where = [_before(events)] * width
    marks: dict[int, str] = {}
    for event in events:
        cell = min(width - 1, max(0, int((event.at - begin) / span * width)))
        if event.what == "moved":
            where[cell:] = [event.target] * (width - cell)
        elif event.at >= begin:
            marks[cell] = failed if event.what == "failed" else "*"
    text, start = [], 0
    for cell in range(width + 1):
        if cell == width or where[cell] != where[start]:
            place, long = where[start], cell - start
            text.append(at_home * long if place == HOME else (place + away * long)[:long])
            start = cell
    flat = "".join(text)
    return joined([Piece(marks.get(cell, flat[cell]), _style(where[cell], cell in marks)) for cell in range(width)])


def _before(events: Sequence[Event]) -> str:
    return next((event.source for event in events if event.what != "executed"), events[0].target)


def _style(where: str, marked: bool) -> str:
    return "high" if marked else "faded" if where == HOME else "memory"


def told(event: Event) -> str:
    """An event in words."""
    again = f" ({event.times} times)" if event.times > 1 else ""
    if event.what == "executed":
        return f"process {event.pid} executed {event.reason} on {event.target}"
    if event.what == "failed":
        return f"process {event.pid} not to {event.target}: {event.reason}{again}"
    return f"process {event.pid}: {event.source} -> {event.target} ({event.reason})"
