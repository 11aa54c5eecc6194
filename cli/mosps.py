"""mosps: the processes of this home node, wherever they are, and the guests that are here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cli.client import Client
from cli.command import Parser, format_age, print_json, run, table
from cli.exit_codes import OK


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        "mosps",
        "Shows the processes that mosrun started here, where each is, and why it does not move.",
        "  mosps               your own (root: everybody's)\n"
        "  mosps -a -J night   everybody's of job 'night'\n"
        "  mosps --guests      processes of other nodes that are here\n",
    )
    made.add_argument("-a", "--all", action="store_true", help="processes of all users")
    made.add_argument("-J", "--job", metavar="JOB", help="only those of this job")
    made.add_argument("--guests", action="store_true", help="guests on this node instead")
    made.add_argument("--json", action="store_true", help="a JSON list of objects")
    return made


def process_table(processes: Sequence[dict[str, Any]]) -> str:
    """The table that a person reads."""
    rows = [
        (p["pid"], p["user"], where(p), format_age(p["seconds"]), p["moves"], why(p) or "-", p["command"]) for p in processes
    ]
    return table(("PID", "USER", "WHERE", "SINCE", "MOVES", "WHY", "COMMAND"), rows, frozenset({0, 4}))


def where(row: dict[str, Any]) -> str:
    """The place, and the state if it is on its way."""
    return str(row["where"]) if row["state"] in ("home", "away") else f"{row['where']} ({row['state']})"


def why(row: dict[str, Any]) -> str:
    """Why it may not move, or did not."""
    held = ["home only"] if row["home_only"] else ["locked"] if row["locked"] else []
    return "; ".join([*held, *([row["why"]] if row["why"] else [])])


def guest_table(guests: Sequence[dict[str, Any]]) -> str:
    """The table of guests; memory in MiB."""
    rows = [(g["key"], g["user"], format_age(g["seconds"]), g["memory"] >> 20, g["command"] or "-") for g in guests]
    return table(("GUEST", "USER", "SINCE", "MB", "COMMAND"), rows, frozenset({3}))


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError."""
    options = parser().parse_args(arguments)
    if options.guests:
        guests = Client().call("ps", guests=True)["guests"]
        print_json(guests) if options.json else print(guest_table(guests))
        return OK
    processes = Client().call("ps", all=options.all, job=options.job)["processes"]
    print_json(processes) if options.json else print(process_table(processes))
    return OK


def main() -> int:
    """The installed program."""
    return run("mosps", body)


if __name__ == "__main__":
    sys.exit(main())
