"""Every parser in Python of bytes from outside is fuzzed, as those in C are (test_fuzzers.py)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoint.take import take
from tests.fuzz.conftest import LEAST, ROOT, SECONDS, Command, SideBySide

PYTHON_PARSERS = ["checkpoint", "context", "control", "datagram", "images", "masks", "messages", "values"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint of a small program, as it is written."""
    place = tmp_path_factory.mktemp("saved")
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(["sleep", "1000"], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        take(process.pid, 0, place / "saved", place / "images", place / "journal")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
    yield place / "saved"
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def parsers(checkpoint: Path, side_by_side: Callable[[Callable[[str], Command]], SideBySide]) -> SideBySide:
    def command(name: str) -> Command:
        corpus = ROOT / "tests/fuzz/corpus" / name
        files = sorted(corpus.iterdir()) if corpus.is_dir() else []
        return [sys.executable, "-m", "tests.fuzz.parsers", name, str(SECONDS), "1", checkpoint, *files], dict(os.environ)

    return side_by_side(command)


@pytest.mark.timeout(SECONDS + LEAST + 60)
@pytest.mark.parametrize("name", PYTHON_PARSERS)
def test_parser_in_python(name: str, parsers: SideBySide) -> None:
    done = parsers.result(name)
    assert done.returncode == 0, f"{done.stderr[-6000:]}\ninput: {done.stdout[-20000:]}"
