"""migrate: moves a process to a node, to the best node, or home."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cli.client import Client
from cli.command import Parser, print_json, process_id, run
from cli.exit_codes import OK

WAIT = 3600.0
"""Seconds that a move may take; a big process over a slow network takes long, and the daemon has bounds of its own."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        "migrate",
        "Moves a running process, waits, and says where it is now and how long it stood still.",
        "  migrate 4711 n2         to node n2\n"
        "  migrate 4711 out        away from where it is, to the best other node\n"
        "  migrate 4711 balance    to the best node, which may be its home\n"
        "  migrate 4711 home       home\n",
        ending=(
            "A process that was not started with mosrun is moved as well, if it is yours (root: anybody's). It does not move "
            "automatically then, unless it is told to: migrate PID balance."
        ),
    )
    made.add_argument("pid", type=process_id, help="its pid at home")
    made.add_argument("target", help="home, out, balance or the name of a node")
    made.add_argument("--async", dest="no_wait", action="store_true", help="do not wait; mosps shows what becomes of it")
    made.add_argument("--json", action="store_true", help="one JSON object instead of the line")
    return made


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError."""
    options = parser().parse_args(arguments)
    answer = Client(timeout=WAIT).call("migrate", pid=options.pid, target=options.target, **{"async": options.no_wait})
    answer.pop("ok")
    if options.json:
        print_json(answer)
    elif answer.get("started"):
        print(f"process {options.pid} is on its way to {answer['target']}")
    elif not answer.get("moved"):
        print(f"process {options.pid} stays {place(answer['where'])}: {answer.get('reason', 'it is there already')}")
    else:
        frozen, total = answer["frozen_ms"], answer["total_ms"]
        print(f"process {options.pid} is {place(answer['where'])}, frozen {frozen:.1f} ms, total {total:.1f} ms")
    return OK


def place(where: str) -> str:
    """How a place is said in a sentence."""
    return "at home" if where == "home" else f"on {where}"


def main() -> int:
    """The installed program."""
    return run("migrate", body)


if __name__ == "__main__":
    sys.exit(main())
