"""What every command but mosrun shares: a parser whose errors are one sentence with exit code 64, and an end without traceback."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cli.common import exit_codes
from cli.common.exit_codes import CommandError
from kernel_helpers.common.errors import FarhomeError

MOST_PROCESSES = 1 << 22
"""PID_MAX_LIMIT of the kernel."""


class Parser(argparse.ArgumentParser):
    """argparse, whose complaint is one line. exits: what the command may end with; ending: a sentence about that."""

    def __init__(
        self, prog: str, description: str = "", examples: str = "", exits: tuple[int, ...] = exit_codes.COMMON, ending: str = "",
        **options: Any,
    ) -> None:  # fmt: skip
        self.examples = examples
        self.exits = exits
        self.ending = ending
        if examples:
            said = f"\n{ending}\n" if ending else ""
            options["epilog"] = f"examples:\n{examples}\n{exit_codes.text(exits)}{said}"
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=terminal_size().columns - 2)
        super().__init__(prog=prog, description=description, formatter_class=formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(exit_codes.USAGE, f"{self.prog}: {message} ({self.prog.split()[0]} --help shows how)\n")


def terminal_size() -> os.terminal_size:
    """Columns and lines of the terminal, 80 by 24 where there is none. As shutil's, which takes 6 ms to be loaded: too long for a start."""
    try:
        found = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    except (OSError, ValueError):
        found = os.terminal_size((80, 24))
    reported = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    columns, lines = (int(word) if word.isdecimal() and int(word) else size for word, size in zip(reported, found, strict=True))
    return os.terminal_size((columns or 80, lines or 24))


def process_id(text: str) -> int:
    """Return a parser's type: the id of a process. Errors: ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MOST_PROCESSES):
        raise argparse.ArgumentTypeError(f"{text!r} is no process id")
    return int(text)


def _open_outputs() -> None:
    """What was closed when we were started is /dev/null from now on."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _abandon_output() -> None:
    """What cannot be written is not tried again at the end, where Python has words of its own for it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(prog: str, body: Callable[[Sequence[str] | None], int], arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of a command's body; every error that is meant for its user becomes one line on stderr."""
    _open_outputs()
    try:
        code = body(arguments)
        sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.code
    except FarhomeError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        _abandon_output()  # the reader of a pipe went away, as readers do
        return exit_codes.OK
    except OSError as error:
        print(f"{prog}: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", file=sys.stderr)
        _abandon_output()
        return exit_codes.FAILED
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def printable(text: str) -> str:
    """Return the text with no character that a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    import json

    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def format_age(seconds: float) -> str:
    """Return a duration as people write it: 5s, 3m, 2h05, 4d."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 86400}d"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], right: frozenset[int] = frozenset()) -> str:
    """Columns as wide as they must be; the last one as long as it is, on a terminal as long as there is room. right: columns
    that are set flush right."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    last = len(header) - 1
    most = terminal_size().columns if sys.stdout.isatty() else None
    return "\n".join(
        "  ".join(
            cell if i == last and i not in right else cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(line)
        ).rstrip()[:most]
        for line in lines
    )


def add_json(made: argparse.ArgumentParser) -> None:
    """Adds --json."""
    made.add_argument("--json", action="store_true", help="as JSON")
