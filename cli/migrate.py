"""migrate: moves a process to a node, to the best node, or home."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cli.common.client import Client
from cli.common.command import Parser, print_json, process_id, run
from cli.common.exit_codes import OK, USAGE, CommandError

PERIOD = 0.25
"""Seconds between two looks at how far a move has come."""
WAIT = 3600.0
"""Seconds that a move may take; a big process over a slow network takes long, and the daemon has bounds of its own."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = Parser(
        "migrate",
        "Moves a running process, waits, and says where it is now and how long it stood still.",
        "  migrate 4711 n2         to node n2\n"
        "  migrate 4711 out        away from where it is, to the best other node\n"
        "  migrate 4711 balance    to the best node, which may be its home\n"
        "  migrate 4711 home       home\n"
        "  migrate 4711 checkpoint saved    goes on where it is; mosrun --restart saved starts it again from there\n",
        ending=(
            "A process that was not started with mosrun is moved as well, if it is yours (root: anybody's). It does not move "
            "automatically then, unless it is let: migrate PID balance."
        ),
    )
    made.add_argument("pid", type=process_id, help="its pid at home")
    made.add_argument("target", help="home, out, balance, checkpoint or the name of a node")
    made.add_argument("directory", nargs="?", help="with checkpoint: where it goes; ./ckpt.PID if left out")
    made.add_argument("--engine", choices=("auto", "pour", "criu"), default="", help="how it leaves, not as the configuration says")
    made.add_argument(
        "--memory", choices=("auto", "precopy", "postcopy"), default="",
        help="when its memory goes, not as the configuration says: all of it ahead, all of it after, or (auto) ahead, and after it what it "
        "writes faster than the network carries",
    )  # fmt: skip
    made.add_argument("--async", dest="no_wait", action="store_true", help="do not wait; mosps shows what becomes of it")
    made.add_argument("-v", "--verbose", action="store_true", help="also what the move was made of, with times")
    made.add_argument("--json", action="store_true", help="one JSON object instead of the line")
    return made


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError."""
    options = parser().parse_args(arguments)
    if options.target == "checkpoint":
        return checkpoint(options.pid, options.directory or f"ckpt.{options.pid}", options.json)
    if options.directory is not None:
        raise CommandError("only a checkpoint goes to a directory (migrate --help shows how)", USAGE)
    with shown_progress(options.pid):
        fields = {"pid": options.pid, "target": options.target, "engine": options.engine, "memory": options.memory}
        answer = Client(timeout=WAIT).call("migrate", **fields, **{"async": options.no_wait})
    answer.pop("ok")
    if options.json:
        print_json(answer)
    else:
        print(outcome(options.pid, answer))
        if options.verbose:
            print("\n".join(made_of(answer.get("steps", []))))
    return OK


def outcome(pid: int, answer: Mapping[str, Any]) -> str:
    """Return what came of a move, in one sentence."""
    if answer.get("started"):
        return f"process {pid} is on its way to {answer['target']}"
    if not answer.get("moved"):
        return f"process {pid} stays {place(answer['where'])}: {answer.get('reason', 'it is there already')}"
    follows = f", {answer['follows_bytes'] / 2**20:.1f} MB follow" if answer.get("follows_bytes") else ""
    return f"process {pid} is {place(answer['where'])}, frozen {answer['frozen_ms']:.1f} ms, total {answer['total_ms']:.1f} ms{follows}"


def made_of(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each step of a move, those in which the process stood still under a heading of their own."""
    lines = []
    for frozen, heading in ((False, "while it ran:"), (True, "while it stood still:")):
        taken = [step for step in steps if step["frozen"] is frozen]
        lines += [heading] * bool(taken) + [f"{step['ms']:9.1f} ms  {step['step']}" for step in taken]
    return lines


def checkpoint(pid: int, directory: str, as_json: bool) -> int:
    """Errors: CommandError."""
    path = os.path.abspath(directory)
    answer = Client(timeout=WAIT).call("checkpoint", pid=pid, directory=path)
    answer.pop("ok")
    if as_json:
        print_json({**answer, "directory": path})
    else:
        stays = f"; it is at home now: {answer['why']}" if answer["why"] else ""
        size = answer["bytes"] / 2**20
        print(f"process {pid} is checkpointed to {directory}, frozen {answer['frozen_ms']:.1f} ms, {size:.1f} MB{stays}")
    return OK


@contextmanager
def shown_progress(pid: int) -> Iterator[None]:
    """On a terminal, a line that reports how far the move has come, as long as there is something to show; gone in the end."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(pid, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(PERIOD + 1)


def _watch(pid: int, over: threading.Event) -> None:
    shown = False
    try:
        client = Client()
        while not over.wait(PERIOD):
            found: dict[str, Any] = next((one for one in client.call("ps")["processes"] if one["pid"] == pid), {})
            if "progress" in found:
                sys.stderr.write(f"\r{progress_line(pid, found['progress'])}\x1b[K")
                sys.stderr.flush()
                shown = True
    except CommandError:
        pass  # the user who asked for the move sees why
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def progress_line(pid: int, progress: dict[str, Any]) -> str:
    """Return how far a move has come whose memory goes ahead of the process."""
    sent, total, left, rate = (progress[key] for key in ("sent", "total", "left", "rate"))
    line = f"process {pid}: {sent >> 20} of {total >> 20} MB"
    if progress["round"] > 1:
        line = f"process {pid}: {sent >> 20} MB, round {progress['round']}, {left / 2**20:.1f} MB written again"
    if rate > 0:
        line += f", {rate / 2**20:.0f} MB/s"
        if progress["round"] <= 1 and sent < total:
            line += f", {(total - sent) / rate:.0f} s left"
    return line


def place(where: str) -> str:
    """Return how a place is said in a sentence."""
    return "at home" if where == "home" else f"on {where}"


def main() -> int:
    """Run the installed program; return its exit status."""
    return run("migrate", body)


if __name__ == "__main__":
    sys.exit(main())
