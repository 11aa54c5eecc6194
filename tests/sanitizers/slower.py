"""The factor by which tests wait longer for programs built with sanitizers, which run several times slower."""

from __future__ import annotations

from kernel_helpers.common.library import build_directory

SLOWER = 5
"""Than what is built without; no kind of them is worse."""


def bound(seconds: float) -> float:
    """The seconds that a test waits for what takes less than `seconds` as a rule."""
    return seconds * SLOWER if "san" in build_directory().name else seconds
