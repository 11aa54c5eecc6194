"""bench/record.json: the ratio of each case of `bench short`, with the commit at which it was measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from bench.common.result import BenchFailed, Result

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "bench" / "record.json"
WORSE, BETTER = 1.4, 0.7
"""Ratio to the record from which a case counts as worse, and below which as better; in between is what a machine does by itself."""


class Entry(TypedDict):
    """One case: its ratio to its baseline, its unit, and the commit that was measured."""

    ratio: float
    unit: str
    commit: str


def load(path: Path = RECORD) -> dict[str, Entry]:
    """Return the record by case; it is empty if there is none. Errors: BenchFailed."""
    try:
        found: dict[str, Entry] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BenchFailed(f"{path.name} cannot be read: {error}") from error
    return found


def change(result: Result, entry: Entry) -> float:
    """Return how many times as costly a case is as its record says: of a rate, whose unit ends in "/s", less is more costly."""
    return entry["ratio"] / result.ratio if result.unit.endswith("/s") else result.ratio / entry["ratio"]


def verdict(result: Result, record: dict[str, Entry]) -> str:
    """Return "worse", "better", "new", or "" for a case that is as recorded."""
    entry = record.get(result.case)
    if entry is None:
        return "new"
    times = change(result, entry)
    return "worse" if times > WORSE else "better" if times < BETTER else ""


def table(results: Sequence[Result], record: dict[str, Entry]) -> str:
    """Return the results as lines, each with its record and what has become of it."""
    width = max([4, *(len(result.case) for result in results)])
    lines = [f"{'CASE':{width}} {'OURS':>10} {'BASELINE':>10} {'UNIT':<7} {'RATIO':>8} {'RECORD':>8}  {'':6}  AGAINST"]
    for result in results:
        entry = record.get(result.case)
        recorded = f"{entry['ratio']:8.3f}" if entry else f"{'-':>8}"
        lines.append(
            f"{result.case:{width}} {result.ours:10.4g} {result.baseline:10.4g} {result.unit:<7} {result.ratio:8.3f} {recorded}"
            f"  {verdict(result, record):6}  {result.baseline_name}"
        )
    return "\n".join(lines)


def renew(results: Sequence[Result], path: Path = RECORD) -> None:
    """Write these results into the record, beside what it has of others. Errors: BenchFailed."""
    record = load(path) | {result.case: Entry(ratio=float(f"{result.ratio:.4g}"), unit=result.unit, commit=_commit()) for result in results}
    try:
        path.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise BenchFailed(f"{path.name} cannot be written: {error.strerror}") from error


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
