"""The bench of the file tree runs to its end, in one round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.timeout(1200), pytest.mark.soak, pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")]


def test_every_way_to_files_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "mfs", "--json"],
        cwd=ROOT,
        env=os.environ | {"FARHOME_BENCH_ROUNDS": "1"},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = {row["case"]: row for row in json.loads(done.stdout)["results"]}
    assert {"read, warm", "create, nothing old", "PostMark at its data, blocks of 4096", "gcc, away"} <= results.keys()
    assert all(row["n"] >= 1 and row["ours"] > 0 for row in results.values())
