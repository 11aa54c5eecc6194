"""Ids for guests that a test makes itself, on the machine and not in a lab."""

from __future__ import annotations

import tempfile
from pathlib import Path

from remote.sandbox import identity


def own_ids() -> identity.Identities:
    """A block, by chance: hardly one that another test has. What holds it has no name any more: it leaves nothing behind."""
    with tempfile.TemporaryDirectory() as directory:
        return identity.take(identity.DEFAULT, file=Path(directory) / "ids")
