"""python -m lab.heal LAB FIRST SECOND TOKEN SECONDS: the detached helper that ends a cut in time."""

from __future__ import annotations

import sys
import time

from lab.lab import Lab
from lab.state import LabError


def main() -> int:
    """Wait, then heal that one cut; a lab that is gone by then, or a later cut of the same two, is left alone."""
    name, first, second, token, seconds = sys.argv[1:]
    time.sleep(float(seconds))
    try:
        Lab(name).heal(first, second, token=token)
    except LabError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
