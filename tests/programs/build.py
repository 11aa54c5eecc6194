"""Builds the C programs of this directory, once, into `.build/programs`."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("FARHOME_BUILD", HERE.parents[1] / ".build")) / "programs"


def program(name: str) -> Path:
    """Returns the path of the built program `name` (`NAME.static`: with nothing to load); compiles it when its source is newer. Safe
    between processes."""
    source, target = HERE / f"{name.removesuffix('.static')}.c", BUILD / name
    static = ["-static"] if name.endswith(".static") else []
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in (source, *HERE.glob("*.h")))
        if not target.exists() or target.stat().st_mtime < newest:
            warnings = ["-Wall", "-Wextra", "-Werror"]
            command = ["gcc", "-std=gnu11", "-O2", *warnings, "-pthread", *static, "-o", f"{target}.new", str(source), "-lm"]
            subprocess.run(command, check=True, timeout=120)
            os.replace(f"{target}.new", target)
    return target
