"""What benches compare with, installed when it is needed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from bench.common.nodes import ROOT
from bench.common.result import BenchFailed

TIMEOUT = 900.0
"""Seconds that it may take to install."""
PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(program: str) -> str | None:
    """The path of a program, a daemon's too."""
    return shutil.which(program, path=PLACES)


def require(kind: str, programs: Sequence[str]) -> None:
    """Installs peers of a kind (tools/peers) if one of these programs is not there. Errors: BenchFailed."""
    if all(find(program) for program in programs):
        return
    command = [str(ROOT / "tools/peers"), kind]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        said = done.stderr.strip().splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        said = [str(error)]
    if missing := [program for program in programs if find(program) is None]:
        raise BenchFailed(f"{missing[0]}, which this compares with, cannot be had: {said[-1] if said else 'its package lacks it'}")
