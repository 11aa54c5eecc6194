"""Every parser in C of bytes from outside is fuzzed: a second each, an hour with ./test --all. What a fuzzer has found once is in
corpus/, and is tried each time before anything new."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.conftest import LEAST, ROOT, SECONDS, Command, SideBySide

HERE = ROOT / "tests/fuzz"
BUILT = ROOT / ".build/fuzz"
C_FUZZERS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c"))
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for inputs that the fuzzers keep, and for those that they fail at."""
    return tmp_path_factory.mktemp("fuzzers")


@pytest.fixture(scope="module")
def fuzzers(built: Path, place: Path, side_by_side: Callable[[Callable[[str], Command]], SideBySide]) -> SideBySide:
    def command(name: str) -> Command:
        corpus, found = HERE / "corpus" / name, place / name
        found.mkdir()
        limits = ["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={place}/{name}-crash-"]
        words = [built / f"fuzz_{name}", *limits, f"-max_total_time={SECONDS}", "-seed=1", found, *([corpus] if corpus.is_dir() else [])]
        return words, {**os.environ, **ENVIRONMENT}

    return side_by_side(command)


@pytest.mark.timeout(SECONDS + LEAST + 1000)
@pytest.mark.parametrize("name", C_FUZZERS)
def test_parser_in_c(name: str, fuzzers: SideBySide, place: Path) -> None:
    done = fuzzers.result(name)
    inputs = {path.name: path.read_bytes().hex() for path in place.glob(f"{name}-crash-*")}
    assert done.returncode == 0, f"{done.stderr[-6000:]}\n{inputs}"
    assert "DONE" in done.stderr
