"""Whole screens as lines of text, for any size of terminal; what shows them need not know what is on them."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass

from monitor.drawings import chart, processes, timeline
from monitor.drawings.outlook import KEYS, Outlook
from monitor.drawings.pieces import Line, Piece, clip, compact, fill, format_age
from monitor.drawings.table import dead_since, summary, totals
from monitor.drawings.timeline import in_words
from monitor.picture import Listing, Node, Picture

FOOT_NODES = "l L s m u views  w v V a numbers  d dead  t total  Enter processes  / ? q"
FOOT_PROCESSES = "Enter why  m move  h home  / filter  Esc back  ? help  q quit"
FOOT_TARGETS = "Enter move it there  Esc back"
FOOT_TEXT = "Esc back  q quit"
FOOT_LOADING = "this is the first look; it becomes live, and takes keys, in a moment"
LEAST_CHART = 4
MOST_LANES = 7
PANE = 3


@dataclass(frozen=True)
class Frame:
    """The lines of a screen. Of a list: which line its first row is on, which row that is, and how many are shown."""

    lines: list[Line]
    top: int = 0
    first: int = 0
    shown: int = 0
    chart: chart.Chart | None = None

    def row_at(self, y: int) -> int | None:
        """Return the row of the list that is on a line."""
        return self.first + y - self.top if self.top <= y < self.top + self.shown else None


def nodes(picture: Picture, outlook: Outlook, width: int, height: int, blocks: bool = True, foot: str = "") -> Frame:
    """Return the first screen: the chart, what is known of the chosen node, the timeline of moves."""
    shown, index = outlook.nodes(picture), outlook.index(picture)
    title = [Piece(summary(picture.nodes), "title"), Piece(f"  {chart.VIEWS[outlook.view].title}", "memory")]
    head: list[Line] = [*alarm(picture, width), title, *([[Piece(totals(picture.nodes))]] if outlook.total else [])]
    about = _about(picture, shown[index]) if shown else ["no node has this text in its name", ""]
    rest = height - len(head) - len(about) - 1
    lanes = timeline.draw(picture, width, min(MOST_LANES, max(0, rest - LEAST_CHART), rest // 3), blocks)
    drawn = chart.draw(shown, outlook.view, outlook.numbering, index, width, max(1, rest - len(lanes)), blocks)
    lines = [*head, *drawn.lines, *([Piece(text)] for text in about), *lanes]
    return Frame(_framed(lines, width, height, foot or FOOT_NODES), top=len(head), chart=drawn)


def alarm(picture: Picture, width: int) -> list[Line]:
    """Return a line above all others as long as a process was lost lately."""
    losses = picture.losses()
    if not losses:
        return []
    at = time.strftime("%H:%M:%S", time.localtime(losses[0].at))
    many = f"{len(losses)} PROCESSES ARE LOST, the last at {at}: " if len(losses) > 1 else f"{at} "
    return [[Piece(f" {many}{in_words(losses[0])}".ljust(width)[:width], "alarm")]]


def _about(picture: Picture, node: Node) -> list[str]:
    """Two lines on a node."""
    if node.dead:
        here = sum(process.where == node.name for process in picture.processes)
        return [f"{node.name}: {dead_since(node)}, nothing is known of it any more", f"{here} of ours were there" if here else ""]
    first = (
        f"{node.name}: {node.state}, load {node.load:.2f}, {node.cores:g} core{'s' if node.cores != 1 else ''} of speed {node.speed:.2f}, "
        f"memory {compact(node.memory_used)}/{compact(node.memory_total)}"
    )
    here = sum(process.where == node.name for process in picture.processes)
    said = [f"{node.guests} guest{'s' if node.guests != 1 else ''}"]
    if node.self:
        said.append(f"{len(picture.processes) + picture.unseen} home processes")
    else:
        said += [f"{here} of ours", f"known for {format_age(node.age)}"]
    said += [f"utilisability {node.utilisability:.0%}"] if node.utilisability is not None else []
    said += [f"owner: {node.owner_state}"] if node.owner_state else []
    said += [f"owner idle {format_age(node.owner_idle)}"] if node.owner_idle is not None else []
    said += [f"lends nothing: {node.closed_why}"] if node.closed_why else []
    return [first, f"{' ' * len(node.name)}  {', '.join(said)}"]


def process_list(
    picture: Picture, node: str, wanted: str, chosen: int, width: int, height: int, foot: str = "", listing: Listing | None = None,
) -> Frame:  # fmt: skip
    """Return the processes of a node, and why the chosen one is where it is; of another node as far as it has reported them (`listing`)."""
    rows = processes.listed(picture, node, wanted, listing)
    known = node == picture.node or (listing is not None and listing.node == node)
    whose = "home processes and guests" if known else f"processes of {picture.node} that are there"
    only = f", only with {wanted!r}" if wanted else ""
    more = picture.unseen if node == picture.node else listing.unseen if listing is not None and known else 0
    unseen = f", {more} more are not shown" if more else ""
    head: list[Line] = [
        *alarm(picture, width), [Piece(f"{node}: {len(rows)} {whose}{only}{unseen}", "title")], [Piece(processes.COLUMNS, "title")]
    ]  # fmt: skip
    pane = list(processes.reasons(picture, rows[chosen])) if chosen < len(rows) else []
    body = _list([processes.line(row) for row in rows], chosen, width, max(1, height - len(head) - PANE - 1))
    below: list[Line] = [[Piece(text, "memory")] for text in pane[:PANE]]
    room = max(0, height - len(head) - len(body.lines) - len(below) - 1)
    lines = [*head, *body.lines, *([Piece("")] for _ in range(room)), *below]
    return Frame(_framed(lines, width, height, foot or FOOT_PROCESSES), len(head), body.first, body.shown)


def target_list(picture: Picture, pid: int, found: Sequence[processes.Target], chosen: int, width: int, height: int) -> Frame:
    """Return where a process may be sent."""
    process = picture.process(pid)
    command = f" ({process.command}), now {process.where}" if process else " has ended"
    head: list[Line] = [[Piece(f"move process {pid}{command}, to:", "title")], [Piece("")]]
    body = _list([target.label for target in found], chosen, width, max(1, height - len(head) - 1))
    return Frame(_framed([*head, *body.lines], width, height, FOOT_TARGETS), len(head), body.first, body.shown)


def text(title: str, lines: Sequence[str], first: int, width: int, height: int) -> Frame:
    """Return a page of text, from its line `first` on; long lines are broken."""
    broken = [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ") or [""]]
    first = min(first, max(0, len(broken) - height + 2))
    shown = broken[first : first + height - 2]
    return Frame(_framed([[Piece(title, "title")], *([Piece(line)] for line in shown)], width, height, FOOT_TEXT), 1, first, len(shown))


def help_lines() -> list[str]:
    """Return the page of help."""
    return [f"{keys:<11} {meaning}" for keys, meaning in KEYS]


def _list(rows: Sequence[str], chosen: int, width: int, height: int) -> Frame:
    first = max(0, min(chosen - height // 2, len(rows) - height))
    lines = [
        fill([Piece(row, "chosen" if first + number == chosen else "plain")], width)
        for number, row in enumerate(rows[first : first + height])
    ]
    return Frame(lines, 0, first, len(lines))


def _framed(lines: Sequence[Line], width: int, height: int, foot: str) -> list[Line]:
    """Exactly as many lines as the screen has, the last one the foot."""
    kept = [clip(line, width) for line in lines[: height - 1]]
    kept += [[Piece("")] for _ in range(height - 1 - len(kept))]
    return [*kept, clip([Piece(foot, "faded")], width)]
