"""The bench of the link, in small: every case is measured, and without other interposers as well."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.calls import interposers, link

ROOT = Path(__file__).resolve().parents[2]
SMALL = """
import json
from bench.calls import link
link.COUNT, link.ROUNDS, link.TURNS = 50, 1, 1
print(json.dumps([vars(row) for row in link.measure()]))
"""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")]


@pytest.mark.parametrize("others", [True, False])
def test_every_case_is_measured(others: bool, tmp_path: Path) -> None:
    path = os.environ["PATH"]
    if not others:  # all commands but those
        hidden = {command[0] for command, _ in interposers.INTERPOSERS.values()}
        for directory in path.split(":"):
            for program in Path(directory).glob("*"):
                if program.name not in hidden and not (tmp_path / program.name).exists():
                    (tmp_path / program.name).symlink_to(program)
        path = str(tmp_path)
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SMALL],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [link.Row(**row) for row in json.loads(done.stdout)]
    cases = {row.case for row in rows if row.baseline_name in ("native", "TCP ping-pong")}
    assert set(link.FORWARDED) | set(link.ON_THE_NODE) <= cases
    compared = {row.baseline_name for row in rows} - {"native", "TCP ping-pong", "not encrypted", "a MAC alone"}
    assert not compared if not others else compared >= {name for name in ("proot",) if shutil.which(name)}
    for without in ("not encrypted", "a MAC alone"):
        assert {f"{case}, encrypted" for case in link.FORWARDED} <= {row.case for row in rows if row.baseline_name == without}
    assert all(time > 0 for row in rows if row.case in cases for time in row.ours + row.baseline)
