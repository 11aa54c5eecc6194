"""Checks of what ordinary users may do with this clone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def needs_ordinary_users_here() -> None:
    """Skips the test where they cannot enter the directory of this clone, /root say. In nodes of the lab they can."""
    if not all(os.stat(parent).st_mode & 0o001 for parent in (ROOT, *ROOT.parents)):
        pytest.skip("ordinary users cannot enter the directory of this clone; in nodes of the lab they can")
