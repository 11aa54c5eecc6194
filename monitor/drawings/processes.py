"""The processes of a node as a list: its home processes, wherever they are, and its guests. Of another node than the one that is asked
those of ours that are there come first, then what it reports about the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monitor.drawings.pieces import format_age, shorten
from monitor.picture import HOME, Guest, Listing, Picture, Process

COLUMNS = f"{'PID':>7} {'USER':<9} {'WHERE':<12} {'STATE':<12} {'SINCE':>5} {'MOVES':>5}  COMMAND"


@dataclass(frozen=True)
class Target:
    """Where a process may be sent: what is asked of the daemon, and what the user sees about it."""

    name: str
    label: str


def listed(picture: Picture, node: str, wanted: str = "", listing: Listing | None = None) -> list[Process | Guest]:
    """Return the processes of a node, guests last, those alone that have the wanted text in what is shown of them. `listing`: what that
    node reports, if it is another one."""
    rows: list[Process | Guest] = [process for process in picture.processes if node in (picture.node, process.where)]
    if node == picture.node:
        rows += picture.guests
    elif listing is not None and listing.node == node:
        ours = {process.pid for process in rows if isinstance(process, Process)}
        rows += listing.processes
        rows += [guest for guest in listing.guests if guest.home != picture.node or guest.pid not in ours]
    return [row for row in rows if wanted.lower() in line(row).lower()]


def line(row: Process | Guest) -> str:
    """One line of the list."""
    if isinstance(row, Guest):
        where, state, moves, command = "here", "guest", "", f"{row.home}: {row.command}"
    else:
        where, moves, command = row.where, str(row.moves), row.command
        state = f"{row.state} {row.share:.0%}" if row.share is not None else row.state
    return (
        f"{row.pid:7d} {shorten(row.user, 9):<9} {shorten(where, 12):<12} {shorten(state, 12):<12} "
        f"{format_age(row.seconds):>5} {moves:>5}  {command}"
    )


def reasons(picture: Picture, row: Process | Guest) -> Iterator[str]:
    """Why it is where it is: what holds it, what was refused, what the balancer thinks of it, its last move."""
    if isinstance(row, Guest):
        yield f"a guest: {row.home} decides where it goes; its memory here is {row.memory >> 20} MiB"
        return
    if row.home_only:
        yield "it was started to stay at home"
    elif row.locked:
        yield "it is not moved automatically"
    if row.decision:
        yield f"decision: {row.decision}"
    if row.why:
        yield f"why: {row.why}"
    last = next((event for event in reversed(picture.events) if event.pid == row.pid and event.what == "moved"), None)
    if last is not None:
        yield f"last move: {last.source} -> {last.target} {format_age(max(0.0, picture.at - last.at))} ago ({last.reason})"


def targets(picture: Picture, process: Process) -> list[Target]:
    """Return where a process may be sent by hand, home first."""
    found = [Target(HOME, "home")] if process.where != HOME else []
    found.append(Target("balance", "where the balancer thinks best"))
    for node in picture.living():
        if not node.self and node.name != process.where:
            found.append(Target(node.name, f"{node.name}: load {node.load:.2f}, speed {node.speed:.2f}, {node.state}"))
    return found
