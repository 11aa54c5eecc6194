"""The tests of rooms with all C built with sanitizers: nothing is used after its end, read beyond its bounds, or undefined, and no two
threads write without a lock. Only with ./test --all.

Not among it: `resident.bin`, which becomes a part of other processes and has no C library, and the programs that tests move.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import leftovers
from tests.sanitizers.build import ROOT, build
from tests.sanitizers.slower import SLOWER

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3000)]
BEYOND_ITS_END = """
import ctypes
from kernel_helpers.common import library
allocate = library.load().malloc
allocate.restype = ctypes.c_void_p
ctypes.memset(allocate(10), 0, 11)
"""
AT_ONCE = """
import ctypes, threading
from kernel_helpers.common import library
allocate = library.load().malloc
allocate.restype = ctypes.c_void_p
memory = allocate(1 << 20)
def write():
    for _ in range(1000):
        ctypes.memset(memory, 0, 1 << 20)
threads = [threading.Thread(target=write) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
MISTAKES = {"asan,ubsan": (BEYOND_ITS_END, "heap-buffer-overflow"), "tsan": (AT_ONCE, "data race")}
"""Something that is wrong, and what is reported of it."""


ROOMS = ("engine", "link", "mfs")
TIMEOUT = f"timeout={120 * SLOWER}"
"""Timeout of each test that sets none itself."""


@pytest.fixture(scope="module", params=sorted(MISTAKES))
def built(request: pytest.FixtureRequest) -> Path:
    target = build(request.param)
    for old in (target / "reports").iterdir():
        old.unlink()
    return target


def run(built: Path, *words: str, log: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "FARHOME_BUILD": str(built)}
    environment.pop(leftovers.RUN, None)
    with open(log, "wb") as output:
        command = [built / "python" / "bin" / "python", *words]
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=2900, check=False)


def reports(built: Path) -> str:
    return "".join(f"{path.name}:\n{path.read_text(errors='replace')[:6000]}\n" for path in sorted((built / "reports").iterdir()))


def test_a_mistake_is_reported(built: Path, tmp_path: Path) -> None:
    mistake, name = MISTAKES[built.name]
    assert run(built, "-c", mistake, log=tmp_path / "log").returncode
    assert name in reports(built)
    for path in (built / "reports").iterdir():
        path.unlink()


@pytest.mark.parametrize(("built", "room"), [(kinds, room) for kinds in MISTAKES for room in ROOMS], indirect=["built"])
def test_nothing_is_reported(built: Path, room: str, tmp_path: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not soak and not alone", "-o", TIMEOUT, f"tests/{room}"]
    done = run(built, *words, log=tmp_path / "log")
    found = reports(built)
    assert not found, found[:60000]
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-20000:]
