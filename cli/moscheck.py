"""moscheck: what of a process or a program could move, and what keeps it at home, before anything happens."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cli.common import executable
from cli.common.client import Client
from cli.common.command import Parser, print_json, printable, process_id, run
from cli.common.exit_codes import FAILED, OK, USAGE, CommandError

WAIT = 30.0
"""Seconds; a process with very much memory is looked through for as long as the daemon allows."""
LONG_COMMAND = 60


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = Parser(
        "moscheck",
        "Says whether a process or a program could move, and all that keeps it at home. Nothing is touched, nothing is started.",
        "  moscheck 4711          a running process, started by mosrun or not\n"
        "  moscheck ./simulate    a program, as far as can be seen without running it\n"
        "  moscheck ./4711        a program whose name is a number\n",
        ending="0: it could move; 1: it could not. A program that is not there is 64.",
    )
    made.add_argument("subject", metavar="PROG|PID", help="a program, as mosrun would find it, or the id of a process of this node")
    made.add_argument("--json", action="store_true", help="one JSON object instead of the lines")
    return made


def check_process(pid: int) -> dict[str, Any]:
    """Return what the node daemon finds. Errors: CommandError."""
    answer = Client(timeout=WAIT).call("check", pid=pid)
    answer.pop("ok")
    command = answer["command"] if len(answer["command"]) <= LONG_COMMAND else answer["command"][:LONG_COMMAND] + "…"
    notes = list(answer["notes"])
    if answer.get("where", "home") != "home":
        notes.append(f"it is on {answer['where']} now")
    if "target" in answer and not answer["reasons"] and answer["target"] is None:
        notes.append(f"no node takes it now: {answer['decision']}")
    return {**answer, "subject": f"process {pid} ({command})", "can_move": not answer["reasons"], "notes": notes}


def check_program(name: str) -> dict[str, Any]:
    """Return what its file reports. Errors: CommandError, OSError."""
    path = executable.find(name)
    if path is None:
        raise CommandError(f"{name or repr('')}: not found", USAGE)
    finding = executable.examine(path)
    chain = [printable(one) for one in (path, *finding.chain)]
    return {
        "path": chain[0], "interpreters": chain[1:], "subject": " by ".join(chain), "can_move": not finding.reasons,
        "reasons": [printable(one) for one in finding.reasons], "notes": [printable(one) for one in finding.notes],
    }  # fmt: skip


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError, OSError."""
    options = parser().parse_args(arguments)
    subject: str = options.subject
    if subject.isascii() and subject.isdigit():
        try:
            answer = check_process(process_id(subject))
        except argparse.ArgumentTypeError as error:
            raise CommandError(str(error), USAGE) from None
    else:
        answer = check_program(subject)
    if options.json:
        print_json(answer)
    else:
        print(f"{answer['subject']} {'could' if answer['can_move'] else 'cannot'} move{':' if answer['reasons'] else ''}")
        for line in answer["reasons"]:
            print(f"  {line}")
        for line in answer["notes"]:
            print(f"  note: {line}")
    return OK if answer["can_move"] else FAILED


def main() -> int:
    """Run the installed program; return its exit status."""
    return run("moscheck", body)


if __name__ == "__main__":
    sys.exit(main())
