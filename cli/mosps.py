"""mosps: the processes of this home node, wherever they are, and the guests that are here."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cli.common.client import Client
from cli.common.command import Parser, format_age, print_json, process_id, run, table
from cli.common.exit_codes import OK
from cli.migrate import place

LONG_COMMAND = 60
SHOWN = 6
"""Reasons of each kind in a line of -v; --why shows all."""
WORDS = {"asked": "somebody asked", "balance": "the balancer"}
"""What moved a process, other than a call or a node's owner."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = Parser(
        "mosps",
        "Shows the processes that mosrun started here, or migrate took, where each is, and why it does not move.",
        "  mosps               your own (root: everybody's)\n"
        "  mosps -a -J night   everybody's of job 'night'\n"
        "  mosps -v            also what took each home, how often, and why moves were not made\n"
        "  mosps --why 4711    all that became of one, also when it has ended\n"
        "  mosps --guests      processes of other nodes that are here\n",
    )
    made.add_argument("-a", "--all", action="store_true", help="processes of all users")
    made.add_argument("-J", "--job", metavar="JOB", help="only those of this job")
    made.add_argument("-v", "--verbose", action="store_true", help="also what took each home, and why moves were not made")
    what = made.add_mutually_exclusive_group()
    what.add_argument("--why", metavar="PID", type=process_id, help="one process: what took it home, moves that failed, the last few")
    what.add_argument("--guests", action="store_true", help="guests on this node instead")
    made.add_argument("--json", action="store_true", help="a JSON list of objects")
    return made


def process_table(processes: Sequence[dict[str, Any]]) -> str:
    """Return the table that a person reads."""
    rows = [(p["pid"], p["user"], where(p), format_age(p["seconds"]), p["moves"], why(p) or "-", p["command"]) for p in processes]
    return table(("PID", "USER", "WHERE", "SINCE", "MOVES", "WHY", "COMMAND"), rows, frozenset({0, 4}))


def verbose_table(processes: Sequence[dict[str, Any]]) -> str:
    """Return the same, and below each line what took it home and why it did not move."""
    header, *lines = process_table(processes).split("\n")
    found = [header]
    for line, p in zip(lines, processes, strict=True):
        found.append(line)
        if p["taken_home"]:
            found.append(f"    came home for: {counted(p['taken_home'])}")
        if p["failed"]:
            found.append(f"    did not move: {counted(p['failed'])}")
    return "\n".join(found)


def counted(counts: Sequence[dict[str, Any]]) -> str:
    """Reasons in one line, those that came more often first."""
    said = [spoken(c) + (f" ({c['times']} times)" if c["times"] > 1 else "") for c in counts[:SHOWN]]
    return "; ".join([*said, *([f"and {len(counts) - SHOWN} more"] if len(counts) > SHOWN else [])])


def spoken(count: dict[str, Any]) -> str:
    """Return a reason as people say it."""
    return f"the call {count['reason']}" if count.get("call") else WORDS.get(count["reason"], str(count["reason"]))


def history(p: dict[str, Any], now: float) -> Iterator[str]:
    """The lines of --why."""
    ended = p["state"] in ("ended", "lost")
    times = {0: "never", 1: "once"}.get(p["moves"], f"{p['moves']} times")
    begun = ", adopted" if p["adopted"] else ""
    command = p["command"] if len(p["command"]) <= LONG_COMMAND else p["command"][:LONG_COMMAND] + "…"
    yield f"process {p['pid']} ({command}) {'was' if ended else 'is'} {place(p['where'])}, moved {times}{begun}"
    for title, counts in (("came home for", p["taken_home"]), ("did not move", p["failed"])):
        if counts:
            yield f"{title}:"
            rows = [(f"{c['times']}x", f"{format_age(max(0.0, now - c['last']))} ago", spoken(c)) for c in counts]
            yield from (f"  {line}" for line in table(rows[0], rows[1:], frozenset({0, 1})).split("\n"))
    if p["recent"]:
        yield "last:"
        for h in p["recent"]:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(h["at"]))
            again = f" ({h['times']} times)" if h["times"] > 1 else ""
            if h["what"] == "executed":
                yield f"  {at}  {h['target']}: executed {h['reason']}"
                continue
            if h["what"] in ("ended", "lost"):
                yield f"  {at}  {h['target']}: " + ("ended" if h["what"] == "ended" else f"LOST: {h['reason']}")
                continue
            verb = "->" if h["what"] == "moved" else "not to"
            reason = spoken({"reason": h["reason"], "call": h["what"] == "moved" and h["reason"] in calls(p)})
            yield f"  {at}  {h['source']} {verb} {h['target']}: {reason}{again}"


def calls(p: dict[str, Any]) -> set[str]:
    """Return the reasons of a process that are system calls."""
    return {c["reason"] for c in p["taken_home"] if c["call"]}


def where(row: dict[str, Any]) -> str:
    """Return the place, and the state if it is on its way."""
    if row["state"] in ("home", "away"):
        return str(row["where"])
    progress = row.get("progress")
    share = f" {min(100, 100 * progress['sent'] // max(1, progress['total']))} %" if progress else ""
    return f"{row['where']} ({row['state']}{share})"


def why(row: dict[str, Any]) -> str:
    """Return why it may not move, or did not."""
    held = ["home only"] if row["home_only"] else [] if not row["locked"] else ["adopted"] if row["adopted"] else ["locked"]
    held += [f"trusts {', '.join(row['trust'])} alone"] if row.get("trust") else []
    missed = row.get("checkpoint", {}).get("why")
    return "; ".join([*held, *([row["why"]] if row["why"] else []), *([f"no checkpoint: {missed}"] if missed else [])])


def guest_table(guests: Sequence[dict[str, Any]]) -> str:
    """Return the table of guests; memory in MiB."""
    rows = [(g["key"], g["user"], format_age(g["seconds"]), g["memory"] >> 20, g["command"] or "-") for g in guests]
    return table(("GUEST", "USER", "SINCE", "MB", "COMMAND"), rows, frozenset({3}))


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError."""
    options = parser().parse_args(arguments)
    if options.guests:
        guests = Client().call("ps", guests=True)["guests"]
        print_json(guests) if options.json else print(guest_table(guests))
        return OK
    if options.why is not None:
        answer = Client().call("why", pid=options.why)
        answer.pop("ok")
        print_json(answer) if options.json else print("\n".join(history(answer, time.time())))
        return OK
    processes = Client().call("ps", all=options.all, job=options.job, verbose=options.verbose)["processes"]
    print_json(processes) if options.json else print((verbose_table if options.verbose else process_table)(processes))
    return OK


def main() -> int:
    """Run the installed program; return its exit status."""
    return run("mosps", body)


if __name__ == "__main__":
    sys.exit(main())
