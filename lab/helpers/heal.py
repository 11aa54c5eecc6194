"""python -m lab.helpers.heal LAB FIRST SECOND TOKEN WHEN: the detached helper that ends a cut in time.

WHEN: seconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import sys
import time

from lab.lab import Lab
from lab.state import LabError


def main() -> int:
    """Wait, then heal that one cut; a lab that is gone by then, or a later cut of the same two, is left alone."""
    name, first, second, token, when = sys.argv[1:]
    time.sleep(max(0.0, float(when) - time.monotonic()))
    try:
        Lab(name).heal(first, second, token=token)
    except LabError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
