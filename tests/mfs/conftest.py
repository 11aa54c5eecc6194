"""Servers of files for tests, and nodes with exports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Lab
from tests import leftovers
from tests.mfs.exports import with_exports
from tests.mfs.served import Served

if os.geteuid() != 0:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def mfs_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """n1, n2, n3, each with the others' exports under /mfs; shared by the tests of a file."""
    with with_exports(3, f"t-{os.environ[leftovers.RUN]}-{os.getpid()}-mfs-{request.module.__name__.rpartition('.')[2][5:]}"[:40]) as lab:
        yield lab


@pytest.fixture
def area(tmp_path: Path) -> Path:
    """A directory that every user can reach: two exports, and what is beside them."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent != Path("/") and parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    for name in ("shown", "fixed", "secret"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / "file").write_text(f"{name}\n")
    return tmp_path


@pytest.fixture
def served(area: Path) -> Iterator[Served]:
    """A server that shows `shown`, and `fixed` to be read only."""
    (area / "keys").mkdir()
    served = Served(area / "keys", [area / "shown"], [area / "fixed"])
    yield served
    served.kill()
