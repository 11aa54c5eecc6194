"""Every parser of bytes from outside is fuzzed: five seconds each, an hour with ./test --all. What a fuzzer has found once is in corpus/,
and is tried each time before anything new."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint.take import take

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/fuzz"
BUILT = ROOT / ".build/fuzz"
LONG = bool(os.environ.get("FARHOME_LONG_TESTS"))
SECONDS = 3600 if LONG else 5
C_FUZZERS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c"))
PYTHON_PARSERS = ["checkpoint", "context", "control", "datagram", "images", "messages"]


@pytest.fixture(scope="module")
def built() -> Path:
    """The fuzzers of C, built unless they are."""
    if not shutil.which("clang"):
        pytest.skip("clang is not installed (Debian packages clang and libclang-rt-dev): the parsers in C are not fuzzed")
    probe = ["clang", "-fsanitize=fuzzer,address", "-x", "c", "-o", "/dev/null", "-"]
    source = "int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { (void)d; (void)n; return 0; }"
    if subprocess.run(probe, input=source, text=True, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("clang has no libFuzzer here (Debian package libclang-rt-dev): the parsers in C are not fuzzed")
    done = subprocess.run(["make", "-s", "-j2", "-C", HERE], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return BUILT


@pytest.mark.timeout(SECONDS + 1000)
@pytest.mark.parametrize("name", C_FUZZERS)
def test_parser_in_c(name: str, built: Path, tmp_path: Path) -> None:
    corpus, found = HERE / "corpus" / name, tmp_path / "found"
    found.mkdir()
    limits = ["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={tmp_path}/crash-"]
    command = [built / f"fuzz_{name}", *limits, f"-max_total_time={SECONDS}", "-seed=1", found, *([corpus] if corpus.is_dir() else [])]
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS + 300, check=False, env=environment)
    inputs = {path.name: path.read_bytes().hex() for path in tmp_path.glob("crash-*")}
    assert done.returncode == 0, f"{done.stderr[-6000:]}\n{inputs}"
    assert "DONE" in done.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint of a small program, as it is written."""
    place = tmp_path_factory.mktemp("saved")
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(["sleep", "1000"], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        take(process.pid, 0, place / "saved", place / "images", place / "journal")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
    yield place / "saved"
    shutil.rmtree(place)


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("name", PYTHON_PARSERS)
def test_parser_in_python(name: str, checkpoint: Path) -> None:
    corpus = HERE / "corpus" / name
    files = sorted(corpus.iterdir()) if corpus.is_dir() else []
    command = [sys.executable, "-m", "tests.fuzz.parsers", name, str(SECONDS), "1", checkpoint, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 100, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{done.stderr[-6000:]}\ninput: {done.stdout[-20000:]}"
