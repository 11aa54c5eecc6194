"""tools/setup and what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.access import needs_ordinary_users_here

ROOT = Path(__file__).resolve().parent.parent.parent


def test_with_nothing_to_do_it_is_quick_and_needs_no_network() -> None:
    subprocess.run([ROOT / "tools" / "setup"], check=True, timeout=600)
    started = time.monotonic()
    result = subprocess.run(["unshare", "--net", ROOT / "tools" / "setup"], check=True, timeout=60, capture_output=True, text=True)
    assert time.monotonic() - started < 2
    assert (result.stdout, result.stderr) == ("", "")


def test_criu_works_on_this_kernel() -> None:
    result = subprocess.run([ROOT / ".build" / "criu", "check"], timeout=60, capture_output=True, text=True, check=False)
    assert "Looks good" in result.stdout + result.stderr


def test_the_python_of_the_environment_is_the_systems() -> None:
    assert sys.version_info >= (3, 11)
    assert Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()


@pytest.mark.parametrize("user", ["root", "farhome-a"])
def test_pycriu_reads_images_from_any_directory(user: str) -> None:
    if user != "root":
        needs_ordinary_users_here()
    program = (
        "from pycriu import images\n"
        "image = {'magic': 'PSTREE', 'entries': [{'pid': 7, 'ppid': 0, 'pgid': 7, 'sid': 7, 'threads': [7, 8]}]}\n"
        "assert images.loads(images.dumps(image)) == image\n"
    )
    become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
    subprocess.run([*become, ROOT / ".venv/bin/python", "-I", "-c", program], check=True, timeout=30, cwd="/")


@pytest.mark.soak
def test_criu_can_be_had_anew(tmp_path: Path) -> None:
    environment = {**os.environ, "FARHOME_CRIU_CACHE": str(tmp_path / "cache")}
    (tmp_path / "build").mkdir()
    subprocess.run([ROOT / "tools" / "criu", tmp_path / "build"], check=True, timeout=600, env=environment)
    result = subprocess.run([tmp_path / "build" / "criu", "check"], timeout=60, capture_output=True, text=True, check=False)
    assert "Looks good" in result.stdout + result.stderr
    assert (tmp_path / "build" / "pycriu" / "pycriu" / "images").is_dir()
