"""The short bench: what it measures, and how it holds that against its record."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.common.result import BenchFailed, Result
from bench.short import record, short
from tests.bench.test_bench import bench


def result(case: str, ratio: float, unit: str = "us") -> Result:
    return Result(case, ratio * 2, unit, 2.0, "other", ratio, 3)


@pytest.mark.parametrize(
    ("ratio", "unit", "said"),
    [
        (10.0, "us", ""), (13.9, "us", ""), (14.1, "us", "worse"), (7.1, "ms", ""), (6.9, "MiB", "better"),
        (13.9, "MiB/s", ""), (14.4, "MiB/s", "better"), (7.2, "/s", ""), (7.0, "/s", "worse"),
    ],
)  # fmt: skip
def test_a_ratio_is_held_against_its_record_and_of_rates_less_is_worse(ratio: float, unit: str, said: str) -> None:
    recorded = {"case": record.Entry(ratio=10.0, unit=unit, commit="abc")}
    assert record.verdict(result("case", ratio, unit), recorded) == said
    line = record.table([result("case", ratio, unit)], recorded).splitlines()[1]
    assert "10.000" in line
    assert [word for word in ("worse", "better") if word in line] == ([said] if said else [])


def test_a_case_without_a_record_is_new(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert record.load(path) == {}
    assert record.verdict(result("case", 3), record.load(path)) == "new"


def test_a_record_is_renewed_beside_what_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record.renew([result("a", 3), result("b", 4, "/s")], path)
    record.renew([result("b", 5, "/s")], path)
    found = record.load(path)
    assert {case: (entry["ratio"], entry["unit"]) for case, entry in found.items()} == {"a": (3, "us"), "b": (5, "/s")}
    assert all(len(entry["commit"]) == 12 for entry in found.values())


def test_a_damaged_record_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("{")
    with pytest.raises(BenchFailed, match=r"record\.json cannot be read"):
        record.load(path)


def test_a_bench_that_fails_keeps_no_other_from_being_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Sequence[Result]:
        raise BenchFailed("it has no sense")

    found = short.measure({"first": fails, "second": lambda: [result("case", 3)]})
    assert [one.case for one in found] == ["second: case"]
    assert "bench short, first: it has no sense" in capsys.readouterr().err
    with pytest.raises(BenchFailed, match="no bench could be measured"):
        short.measure({"first": fails})


def test_every_part_can_be_measured_shortly_and_has_a_record() -> None:
    recorded = record.load()
    for name, module in short.PARTS.items():
        assert callable(importlib.import_module(module).short)
        assert any(case.startswith(f"{name}: ") for case in recorded), name


def test_parts_are_chosen_by_name() -> None:
    assert list(short.chosen("link,births")) == ["births", "link"]
    assert short.chosen("") == short.PARTS
    with pytest.raises(BenchFailed, match="has no 'speed'; there are births, link"):
        short.chosen("speed")
    assert bench("short", "--only", "speed").returncode == 1
    assert bench("start", "--only", "link").returncode == 64


@pytest.mark.timeout(180)
def test_one_part_prints_the_object_that_all_benches_print() -> None:
    done = bench("short", "--only", "start", "--json")
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["results"]
    assert measured["case"] == "start: mosrun true"
    assert measured["ratio"] == pytest.approx(measured["ours"] / measured["baseline"])
