"""`mon`: the cluster, live, on a terminal or a page: nodes, processes and where they are, moves, and why."""

from __future__ import annotations

import argparse
import contextlib
import curses
import locale
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from cli.common import exit_codes
from cli.common.client import Client, CommandError
from cli.common.command import Parser, print_json, run, terminal_size
from monitor.drawings import frames, styles
from monitor.drawings.outlook import Outlook
from monitor.drawings.pieces import text_of
from monitor.drawings.table import render
from monitor.picture import Listing, Nonsense, Picture, listing_of, picture_of
from monitor.source import Trouble

ANSWER_SECONDS = 5.0
WEB_PORT = 7280

EXAMPLES = (
    "  mon                 live; ? shows the keys, q quits\n"
    "  mon -n 0.5          the same, twice a second\n"
    "  mon --once          a table of the nodes once, as plain text\n"
    "  mon --json          a list of the nodes, for scripts\n"
    "  mon --web           a page on this machine's loopback, and /metrics for Prometheus\n"
    "  mon --web 8000 --allow-moves  the same elsewhere; who has the address that it prints may move your processes\n"
)


class DaemonSource:
    """The daemon of this node, asked as the user who runs this."""

    def picture(self) -> Picture:
        """Errors: Trouble."""
        try:
            return fetch()
        except CommandError as error:
            raise Trouble(str(error)) from None

    def listing(self, node: str) -> Listing:
        """Errors: Trouble."""
        try:
            return listing_of(self._call("processes", ANSWER_SECONDS, node=node))
        except CommandError as error:
            raise Trouble(str(error)) from None
        except Nonsense as error:
            raise Trouble(f"{node} does not speak as it should: {error}") from None

    def why(self, pid: int) -> list[str]:
        """Errors: Trouble."""
        from cli.mosps import history

        try:
            return [*history(self._call("why", ANSWER_SECONDS, pid=pid), time.time())]
        except CommandError as error:
            raise Trouble(str(error)) from None

    def move(self, pid: int, target: str) -> str:
        """Errors: Trouble."""
        from cli.migrate import WAIT, outcome

        try:
            return outcome(pid, self._call("migrate", WAIT, pid=pid, target=target))
        except CommandError as error:
            raise Trouble(str(error)) from None

    @staticmethod
    def _call(operation: str, timeout: float, **request: object) -> dict[str, object]:
        """Errors: CommandError."""
        with contextlib.closing(Client(timeout)) as client:
            return client.call(operation, **request)


def fetch() -> Picture:
    """Return what the daemon of this node sees. Errors: CommandError."""
    with contextlib.closing(Client(ANSWER_SECONDS)) as client:
        answer = client.call("watch")
    try:
        return picture_of(answer)
    except Nonsense as error:
        raise CommandError(f"the mosd of this node does not speak as it should: {error}", exit_codes.UNAVAILABLE) from None


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a port")
    return int(text)


def parser() -> Parser:
    """Return the command line."""
    made = Parser("mon", "Shows the cluster: nodes and their load, speed and memory, processes, moves, and why.", EXAMPLES)
    how = made.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print a table of the nodes once and end")
    how.add_argument("--json", action="store_true", help="print the nodes once as JSON and end")
    how.add_argument(
        "--web", type=_port, nargs="?", const=WEB_PORT, metavar="PORT", help=f"serve a page on loopback (port {WEB_PORT}; 0: any)"
    )
    made.add_argument("--allow-moves", action="store_true", help="with --web: processes may be moved from the page")
    made.add_argument("-n", type=_interval, default=1.0, metavar="SECONDS", help="time between two looks (default 1)")
    return made


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError."""
    made = parser()
    options = made.parse_args(arguments)
    if options.allow_moves and options.web is None:
        made.error("--allow-moves goes with --web")
    with contextlib.suppress(locale.Error):  # a locale that is not installed
        locale.setlocale(locale.LC_ALL, "")
    blocks = "utf" in (locale.nl_langinfo(locale.CODESET) or "").lower()
    if options.json:
        picture = fetch()
        print_json([asdict(node) | {"state": node.state} for node in picture.nodes if picture.is_shown(node)])
    elif options.web is not None:
        from monitor.web.server import serve

        try:
            serve(DaemonSource(), options.web, options.allow_moves, options.n)
        except OSError as error:
            raise CommandError(f"no page can be served at port {options.web}: {error.strerror}", exit_codes.FAILED) from None
    elif options.once or not sys.stdout.isatty() or not sys.stdin.isatty():
        picture = fetch()
        for line in render([node for node in picture.nodes if picture.is_shown(node)], terminal_size().columns, 1 << 20, blocks):
            print(text_of(line).rstrip())
    else:
        live(options.n, blocks)
    return exit_codes.OK


def live(interval: float, blocks: bool) -> None:
    """Shows it until q or Ctrl-C. Errors: CommandError: no daemon, reported before the screen is taken, or no terminal."""
    source, picture, colour = DaemonSource(), fetch(), not os.environ.get("NO_COLOR")
    _check_terminal()
    size = terminal_size()
    first = frames.nodes(picture, Outlook(), size.columns, size.lines, blocks, frames.FOOT_LOADING)
    try:
        # The first picture is there in the time that textual takes to be loaded, and takes the screen over.
        print(styles.painted(first.lines, colour), end="", flush=True)
        from monitor.live.app import Monitor

        monitor = Monitor(source, picture, interval, blocks, colour)
    except BaseException:
        print(styles.ORDINARY, end="", flush=True)
        raise
    monitor.run()


def _check_terminal() -> None:
    """Errors: CommandError: it cannot even put the cursor somewhere."""
    try:
        curses.setupterm()
        able = curses.tigetstr("cup") is not None
        reason = "its cursor cannot be moved"
    except curses.error as error:
        able, reason = False, str(error)
    if not able:
        raise CommandError(f"the terminal cannot show the cluster ({reason}); try --once", exit_codes.UNAVAILABLE)


def main() -> int:
    """Run the installed program; return its exit status."""
    return run("mon", body)


if __name__ == "__main__":
    sys.exit(main())
