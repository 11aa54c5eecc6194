"""The frame of the benches, and the ones of the balancing side in a real lab."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import FOLDERS
from bench.common.nodes import bench_lab, build
from bench.common.result import BenchFailed, Result
from bench.moves import freeze

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)


def test_result_has_medians_and_their_ratio() -> None:
    result = Result.of("case", [4, 1, 3], [2.0, 1.0, 100.0], unit="us", baseline_name="other")
    assert (result.ours, result.baseline, result.ratio, result.n) == (3, 2.0, 1.5, 3)
    assert list(result.to_json()) == ["case", "ours", "unit", "baseline", "baseline_name", "ratio", "n"]


@pytest.mark.parametrize(("ours", "baseline"), [([], [1.0]), ([1.0], []), ([1.0], [0.0])])
def test_nothing_to_compare_is_a_failure(ours: list[float], baseline: list[float]) -> None:
    with pytest.raises(BenchFailed, match="nothing to compare"):
        Result.of("case", ours, baseline, unit="us", baseline_name="other")


@pytest.mark.parametrize(("name", "folder"), FOLDERS.items())
def test_each_bench_is_in_its_folder(name: str, folder: str) -> None:
    assert callable(importlib.import_module(f"bench.{folder}.{name}").run)


@pytest.mark.parametrize("arguments", [[], ["speed"], ["start", "--fast"], ["start", "link"]])
def test_wrong_usage_ends_with_64(arguments: list[str]) -> None:
    done = bench(*arguments)
    assert done.returncode == 64
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(180)
@pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")
def test_start_prints_exactly_one_json_object() -> None:
    done = bench("start", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {"bench", "machine", "results"}
    assert report["bench"] == "start"
    assert {"cpu", "cores", "kernel", "memory", "python"} <= set(report["machine"])
    (result,) = report["results"]
    assert result["case"] == "mosrun true"
    assert result["baseline_name"] == "true"
    assert result["ratio"] == pytest.approx(result["ours"] / result["baseline"])
    assert 1 < result["ratio"] < 1000


@pytest.mark.timeout(180)
@pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")
def test_moves_and_plain_criu_bring_the_memory_whole_to_where_it_is_to_be() -> None:
    program = build("moves/freeze")
    ours = freeze.Ours()
    with bench_lab(3) as lab:
        freeze.moves(lab, program, 10, -1, ours)
        alone = freeze.plain(lab, program, 10, 0)
    for kind in ("out", "hop", "home"):
        (frozen,), (total,) = ours.frozen[kind], ours.total[kind]
        assert 0 < frozen < total < 60_000
    assert 0 < alone < 60_000
