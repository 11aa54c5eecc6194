"""The counting program, compiled once, where ordinary users can run it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from remote.sandbox import rehearsal
from tests.engine.support import COUNTER


@pytest.fixture(scope="session")
def counter() -> Iterator[str]:
    with TemporaryDirectory(prefix="farhome-test-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        source = directory / "counter.c"
        source.write_text(COUNTER)
        program = directory / "counter"
        subprocess.run(["gcc", "-O1", "-g", "-pthread", "-o", str(program), str(source)], check=True, timeout=60)
        yield str(program)


@pytest.fixture(scope="session", autouse=True)
def criu_knows_the_kernel() -> None:
    """Has CRIU learn about the kernel first, as on a node."""
    with TemporaryDirectory(prefix="farhome-test-") as name:
        rehearsal.ensure(Path(name))
