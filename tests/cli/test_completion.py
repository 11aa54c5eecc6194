"""The completion for bash knows every option and verb of the parsers, and completes in a real bash."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

import pytest

from cli import migrate, mon, moscheck, mosctl, mosd, mosps
from cli.mosrun import mosrun

FILE = Path(__file__).resolve().parents[2] / "tools" / "completion" / "farhome.bash"
PARSERS = {module.__name__.rpartition(".")[2]: module.parser for module in (migrate, mon, moscheck, mosctl, mosd, mosps, mosrun)}


def complete(*words: str) -> list[str]:
    """Returns the completions that bash offers for the last of words."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"source {FILE}; COMP_WORDS=({quoted}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1));"
        f" _farhome_{words[0]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    environment = {**os.environ, "FARHOME_RUN": "/nonexistent"}
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=True, env=environment).stdout.split()


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings} - ({"-h"} if parser.prog != "mosrun" else set())


@pytest.mark.parametrize("command", sorted(set(PARSERS) - {"mosctl"}))
def test_all_options_are_offered(command: str) -> None:
    assert set(complete(command, "-")) == options_of(PARSERS[command]())


def test_all_verbs_of_mosctl_are_offered_with_their_options() -> None:
    verbs = next(action for action in mosctl.parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert set(complete("mosctl", "")) == set(verbs.choices) | {"--help"}
    for verb, parser in verbs.choices.items():
        if verb != "cluster":
            words = {str(word) for action in parser._actions if not action.option_strings for word in action.choices or ()}
            assert set(complete("mosctl", verb, "")) == (options_of(parser) | words) - {"--help"}
    assert complete("mosctl", "cluster", "") == ["init", "token", "join", "remove", "add-authority", "resign"]


def test_the_program_of_mosrun_is_completed_as_a_program() -> None:
    assert complete("mosrun", "-r", "n2", "-J", "j", "/bin/fals") == ["/bin/false"]
    assert complete("migrate", "17", "o") == ["out"]
