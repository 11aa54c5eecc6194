"""The guest program, built once; a native run of it to compare with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Native = Callable[..., tuple[int, bytes]]


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built tests/link/guest.c."""
    program = tmp_path_factory.mktemp("guest") / "guest"
    subprocess.run(["gcc", "-O2", "-pthread", "-w", "-o", program, HERE / "guest.c"], check=True, timeout=60)
    return program


@pytest.fixture
def native(guest: Path, tmp_path: Path) -> Native:
    """Runs the program natively in a directory of its own: (exit status, output)."""

    def run(*arguments: str) -> tuple[int, bytes]:
        directory = tmp_path / "native"
        directory.mkdir()
        done = subprocess.run([guest, *arguments], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        return done.returncode, done.stdout

    return run
