"""Names chosen by users and other nodes are plain text on another user's terminal and in logs, and command nothing."""

from __future__ import annotations

import io
import logging
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_mosrun import daemon, framed
from wire.logs import Lines

ROOT = Path(__file__).resolve().parents[2]
EVIL = "\x1b]0;owned\x07\x1b[2J\rmosd: all is well\x9b31m\x7f"
GUEST = {"key": f"n9-{EVIL}", "user": EVIL, "seconds": 1.0, "memory": 0, "command": EVIL}


def run(directory: Path, *argv: str) -> str:
    """Returns what a command prints, on both of its outputs."""
    environment = {"PATH": os.environ["PATH"], "FARHOME_RUN": str(directory), "LC_ALL": "C.UTF-8"}
    done = subprocess.run([str(ROOT / "bin" / argv[0]), *argv[1:]], env=environment, capture_output=True, timeout=20, check=False)
    return (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("command", ["mosps", "mosps --json --guests", "migrate 5 n2", "mosctl nodes", "mosrun -r n2 true"])
def test_a_refusal_is_text(command: str, tmp_path: Path) -> None:
    with daemon(tmp_path, [framed({"ok": False, "error": f"n2 says: {EVIL}", "code": 75})]):
        said = run(tmp_path, *command.split())
    assert "n2 says: ?]0;owned??[2J?mosd: all is well" in said
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_names_are_text(form: list[str], tmp_path: Path) -> None:
    with daemon(tmp_path, [framed({"ok": True, "guests": [GUEST]})]):
        said = run(tmp_path, "mosps", "--guests", *form)
    assert said.count("owned") == 3
    assert said.replace("\n", "").isprintable()


def test_a_record_of_a_log_is_one_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines("n1 %(levelname)s %(message)s"))
    logger = logging.Logger("said")
    logger.addHandler(handler)
    logger.warning("n2 says: %s", f"no\nn1 INFO all is well{EVIL}")
    try:
        raise ValueError("ours")
    except ValueError:
        logger.exception("a fault")
    first, second, *traceback = stream.getvalue().splitlines()
    assert first.startswith("n1 WARNING n2 says: no | n1 INFO all is well?]0;owned") and first.isprintable()
    assert second == "n1 ERROR a fault"
    assert traceback[0].startswith("Traceback") and traceback[-1] == "ValueError: ours"
