"""The programs under test, built once; a native run of them to compare with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Native = Callable[..., tuple[int, bytes]]


def _built(name: str, directory: Path) -> Path:
    subprocess.run(["gcc", "-O2", "-pthread", "-w", "-o", directory / name, HERE / f"{name}.c"], check=True, timeout=60)
    return directory / name


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built tests/link/guest.c."""
    return _built("guest", tmp_path_factory.mktemp("guest"))


@pytest.fixture(scope="session")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built tests/link/rare.c."""
    return _built("rare", tmp_path_factory.mktemp("rare"))


@pytest.fixture
def native_in(tmp_path: Path) -> Native:
    """Runs a command in a directory of its own: (exit status, output)."""

    def run(*command: str) -> tuple[int, bytes]:
        directory = tmp_path / "native"
        directory.mkdir()
        done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        return done.returncode, done.stdout

    return run


@pytest.fixture
def native(guest: Path, native_in: Native) -> Native:
    """The same for tests/link/guest.c."""

    def run(*arguments: str) -> tuple[int, bytes]:
        return native_in(str(guest), *arguments)

    return run
