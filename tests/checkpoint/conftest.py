"""Directories for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that other users can enter, too."""
    with TemporaryDirectory(prefix="farhome-checkpoint-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
