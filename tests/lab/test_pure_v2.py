"""Groups of nodes and guests where there is only the unified cgroup hierarchy, as on a new distribution; and none left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import cgroups

ROOT = Path(__file__).resolve().parents[2]
ALONE = 'umount -l -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 77; exec "$@"'


@pytest.mark.timeout(120)
def test_a_lab_and_a_move_with_the_unified_hierarchy_alone(lab_name: Callable[[], str]) -> None:
    name = lab_name()
    program = [sys.executable, "-P", "-m", "tests.lab.pure_v2", name]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", ALONE, "sh", *program],
        cwd=ROOT, text=True, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("no cgroup2 can be mounted here")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "versions": [2], "migrate": "", "in its group": True, "in the root group": "", "output": "done\n",
    }  # fmt: skip
    assert not any(one.exists() for one in cgroups.directories(name))
