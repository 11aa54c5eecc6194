"""Man pages, rendered from the commands' own parsers: `python -m cli.man DIRECTORY` writes all of them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli import lab, migrate, mon, moscheck, mosctl, mosd, mosps
from cli.common import exit_codes
from cli.common.command import Parser
from cli.mosrun import mosrun

COMMANDS = {
    "mosrun": mosrun, "migrate": migrate, "mosps": mosps, "moscheck": moscheck, "mon": mon, "mosctl": mosctl, "mosd": mosd, "lab": lab,
}  # fmt: skip
SECTIONS = {"mosctl": 8, "mosd": 8}
"""Commands for administrators; all others are in section 1."""
FILES = {
    "mosd": (
        ("/etc/farhome/node.toml", "configuration"),
        ("/var/lib/farhome/", "keys and certificates, files of homes that guests have mapped"),
        ("/run/farhome/", "sockets, registry, logs of deputies and remotes; gone with a reboot"),
    ),
    "mosctl": (("/etc/farhome/node.toml", "configuration"),),
}


def section(name: str) -> int:
    """Return the section of the manual that a command's page is in."""
    return SECTIONS.get(name, 1)


def file_name(name: str) -> str:
    """Return how the file of a command's page is called."""
    return f"{name}.{section(name)}"


def escape(text: str) -> str:
    """Plain text as roff reads it: no backslash, hyphen or leading control character means anything."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in escaped.split("\n"))


def usage(parser: argparse.ArgumentParser) -> str:
    """Return the synopsis in one line, without the command's name."""
    words = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    return words.removeprefix(parser.prog).strip()


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        if action.option_strings:
            value = "" if action.nargs == 0 else f" \\fI{escape(formatter._format_args(action, action.dest.upper()))}\\fR"
            term = ", ".join(f"\\fB{escape(name)}\\fR{value}" for name in action.option_strings)
        else:
            term = f"\\fI{escape(str(action.metavar or action.dest))}\\fR"
        text = formatter._expand_help(action) if action.help else ""
        yield f".TP\n{term}\n{escape(text)}\n"


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every verb's parser and help, verbs of verbs after the verb that they are of."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, verb in action.choices.items():
                yield verb, texts.get(name, "")
                yield from _verbs(verb)


def _verb_sections(parser: argparse.ArgumentParser) -> str:
    parts = []
    for verb, text in _verbs(parser):
        if any(isinstance(action, argparse._SubParsersAction) for action in verb._actions):
            continue  # only a name for those below it
        words = " ".join(usage(verb).replace("[-h]", "").split())
        parts.append(f".SS {escape(f'{verb.prog} {words}')}\n{escape(_sentence(verb.description or text))}\n")
        parts += [piece for piece in _options(verb) if "show this help" not in piece]
    return ".SH VERBS\n" + "".join(parts) if parts else ""


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith(".") else f"{text[:1].upper()}{text[1:]}."


def page(name: str) -> str:
    """Return the roff text of a command's page."""
    parser = COMMANDS[name].parser()
    assert isinstance(parser, Parser)
    description = parser.description or ""
    summary = re.split(r"(?<=[^.])[.:](?: |$)", description, maxsplit=1)[0]
    text = f'.\\" Generated from {COMMANDS[name].__name__.replace(".", "/")}.py by python \\-m cli.man.\n'
    text += f'.TH {name.upper()} {section(name)} "" farhome "farhome manual"\n'
    text += f".SH NAME\n{name} \\- {escape(summary[:1].lower() + summary[1:])}\n"
    text += f".SH SYNOPSIS\n.B {name}\n{escape(usage(parser))}\n"
    text += f".SH DESCRIPTION\n{escape(description)}\n"
    text += ".SH OPTIONS\n" + "".join(_options(parser)) + _verb_sections(parser)
    text += f".SH EXAMPLES\n.nf\n{escape(parser.examples.rstrip())}\n.fi\n"
    text += ".SH EXIT STATUS\n" + "".join(f".TP\n{code}\n{escape(exit_codes.MEANINGS[code])}\n" for code in parser.exits)
    if parser.ending:
        text += f".PP\n{escape(parser.ending)}\n"
    if name in FILES:
        text += ".SH FILES\n" + "".join(f".TP\n.I {escape(path)}\n{escape(what)}\n" for path, what in FILES[name])
    others = ", ".join(f"\\fB{other}\\fR({section(other)})" for other in COMMANDS if other != name)
    return text + f".SH SEE ALSO\n{others}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes every page, `NAME.SECTION`, into a directory."""
    parser = argparse.ArgumentParser(prog="python -m cli.man", description="Writes the man pages of all commands.")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args(arguments).directory
    directory.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        (directory / file_name(name)).write_text(page(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
