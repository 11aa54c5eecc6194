"""A few cases of other benches in a minute and a half, which show what a change costs elsewhere.

Each bench that takes part has a function short(): the same measurement with fewer cases or rounds, against the same baseline in the same
run. A bench that fails does not keep the others from being measured.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bench.common.result import BenchFailed, Result
from kernel_helpers.common.errors import FarhomeError

PARTS = {
    "births": "bench.processes.births", "link": "bench.calls.link", "freeze": "bench.moves.freeze", "reads": "bench.files.reads",
    "mfs": "bench.files.mfs", "start": "bench.processes.start", "many": "bench.processes.many",
}  # fmt: skip
"""The benches that take part, and their modules, in the order in which they run."""


def chosen(names: str) -> dict[str, str]:
    """Return the parts of these names, with commas between; all for "". Errors: BenchFailed that names an unknown one."""
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(PARTS)
    for name in wanted:
        if name not in PARTS:
            raise BenchFailed(f"bench short has no {name!r}; there are {', '.join(PARTS)}")
    return {name: PARTS[name] for name in PARTS if name in wanted}


def run(parts: Mapping[str, str] | None = None) -> list[Result]:
    """Measure the parts (default: all). Cases are named "BENCH: CASE". Errors: BenchFailed if no part could be measured."""
    return measure({name: importlib.import_module(module).short for name, module in (PARTS if parts is None else parts).items()})


def measure(benches: Mapping[str, Callable[[], Sequence[Result]]]) -> list[Result]:
    """Run functions that measure, by name; the sentence of each that fails goes to stderr. Errors: BenchFailed if all do."""
    results: list[Result] = []
    for name, short in benches.items():
        try:
            results += [replace(result, case=f"{name}: {result.case}") for result in short()]
        except FarhomeError as error:
            print(f"bench short, {name}: {error}", file=sys.stderr)
    if not results:
        raise BenchFailed("no bench could be measured")
    return results
