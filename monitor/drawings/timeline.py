"""The timeline: one line for each process that moved, from its birth to its end, where it was at what time, the newest at the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.drawings.pieces import Line, Piece, clip, joined, shorten
from monitor.picture import HOME, Event, Picture, Process

SPANS = (60, 300, 900, 3600, 14400)
"""Seconds that a timeline may be of."""
LABEL = 22
UNKNOWN = "?"
"""Where a process is whose node is not heard."""
_MARKS = {True: {"failed": "x", "executed": "*", "born": "├", "ended": "┤", "lost": "X"},
          False: {"failed": "x", "executed": "*", "born": "[", "ended": "]", "lost": "X"}}  # fmt: skip
_RANK = ("born", "executed", "failed", "ended", "lost")
"""Of several in one place the last one is seen."""


def span_of(picture: Picture) -> int:
    """Return seconds that the timeline is of: the least of SPANS that has the last moves in it, half of them at least."""
    ages = sorted(picture.at - event.at for event in picture.events if event.what == "moved")
    middle = ages[len(ages) // 2] if ages else 0.0
    return next((span for span in SPANS if middle <= span * 0.8), SPANS[-1])


def draw(picture: Picture, width: int, height: int, blocks: bool = True) -> list[Line]:
    """Return the lines, a title first; those that were lost are at the top, then those of which there is news."""
    if height < 1:
        return []
    span = span_of(picture)
    begin = picture.at - span
    by_process: dict[int, list[Event]] = {}
    for event in picture.events:
        by_process.setdefault(event.pid, []).append(event)
    recent = [events for events in by_process.values() if events[-1].at >= begin]
    recent.sort(key=lambda events: (events[-1].what != "lost", -events[-1].at))
    title = f"moves of {picture.node}'s processes, the last {spoken(span)}"
    if not recent:
        return [[Piece(f"{title}: none"[:width], "title")]]
    lines: list[Line] = [[Piece(title[:width], "title")]]
    for events in recent[: height - 1]:
        process = picture.process(events[-1].pid)
        ending = "(lost)" if events[-1].what == "lost" else "(ended)"
        label = shorten(f"{events[-1].pid} {process.command if process else ending}", LABEL)
        lane = _lane([*stays(picture, events)], begin, span, max(1, width - LABEL - 1), blocks)
        style = "alarm" if events[-1].what == "lost" else "plain" if process else "faded"
        lines.append(clip([Piece(f"{label:<{LABEL}} ", style), *_marked(lane, events, begin, span, blocks)], width))
    return lines


def spoken(span: int) -> str:
    """Return a span as people say it."""
    return f"{span} seconds" if span < 120 else f"{span // 60} minutes" if span < 7200 else f"{span // 3600} hours"


def stays(picture: Picture, events: Sequence[Event]) -> Iterator[tuple[float, str]]:
    """From when on a process was where: HOME, a node, UNKNOWN, or "" where there is none; before the first it was in its first place."""
    yield 0.0, _before(events)
    for event in events:
        if event.what in ("moved", "born"):
            yield event.at, event.target
        elif event.what in ("ended", "lost"):
            yield event.at, ""
    last, process = events[-1], picture.process(events[-1].pid)
    if process is None:
        if last.what not in ("ended", "lost") and not picture.unseen:
            yield last.at, ""  # it has ended, and nobody knows when
    elif is_unheard(picture, process):
        dead = picture.named(process.where)
        since = process.cut or (dead.since if dead is not None and dead.since is not None else last.at)
        yield max(since, last.at), UNKNOWN


def is_unheard(picture: Picture, process: Process) -> bool:
    """Return whether nothing is known of a process but where it was: its node is not heard."""
    node = picture.named(process.where) if process.where != HOME else None
    return process.cut > 0 or (node is not None and node.dead)


def _lane(found: Sequence[tuple[float, str]], begin: float, span: float, width: int, blocks: bool) -> list[tuple[str, str]]:
    """Where a process was, a character and its style for each column: dots at home, a line with the node's name away."""
    at_home, away = ("·", "━") if blocks else (".", "=")
    where = [""] * width
    for at, place in found:
        cell = _cell(at, begin, span, width)
        where[cell:] = [place] * (width - cell)
    drawn, start = [], 0
    for cell in range(width + 1):
        if cell == width or where[cell] != where[start]:
            place, long = where[start], cell - start
            text = {HOME: at_home, "": " ", UNKNOWN: UNKNOWN}.get(place, "") * long or (place + away * long)[:long]
            style = {HOME: "faded", "": "plain", UNKNOWN: "high"}.get(place, "memory")
            drawn += [(character, style) for character in text]
            start = cell
    return drawn


def _marked(lane: list[tuple[str, str]], events: Sequence[Event], begin: float, span: float, blocks: bool) -> Line:
    """The lane with what happened to the process besides moves."""
    marks: dict[int, str] = {}
    for event in events:
        cell = _cell(event.at, begin, span, len(lane))
        if event.what in _RANK and event.at >= begin and _RANK.index(event.what) >= _RANK.index(marks.get(cell, "born")):
            marks[cell] = event.what
    for cell, what in marks.items():
        style = {"lost": "alarm", "born": "plain", "ended": "plain"}.get(what, "high")
        lane[cell] = (_MARKS[blocks][what], style)
    return joined([Piece(character, style) for character, style in lane])


def _cell(at: float, begin: float, span: float, width: int) -> int:
    return min(width - 1, max(0, int((at - begin) / span * width)))


def _before(events: Sequence[Event]) -> str:
    """Where a process was before all that is known of it; "": it was not."""
    if events[0].what == "born":
        return ""
    return next((event.source for event in events if event.what != "executed"), events[0].target)


def in_words(event: Event) -> str:
    """Return an event in words."""
    again = f" ({event.times} times)" if event.times > 1 else ""
    at = "at home" if event.target == HOME else f"on {event.target}"
    if event.what == "executed":
        return f"process {event.pid} executed {event.reason} on {event.target}"
    if event.what == "failed":
        return f"process {event.pid} not to {event.target}: {event.reason}{again}"
    if event.what in ("born", "ended"):
        return f"process {event.pid} {'was born' if event.what == 'born' else 'ended'} {at}"
    if event.what == "lost":
        return f"PROCESS {event.pid} IS LOST, {at}: {event.reason}"
    return f"process {event.pid}: {event.source} -> {event.target} ({event.reason})"
