"""Files in which the kernel reports figures, as the daemon reads them: many times a second, so by plain calls."""

from __future__ import annotations

import os

MOST = 4096
"""Bytes that are more than any of them has."""


def read(path: str | os.PathLike[str]) -> bytes:
    """Return all of it. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, MOST)
    finally:
        os.close(descriptor)
