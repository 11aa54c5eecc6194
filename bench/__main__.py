"""``python -m bench NAME [--json]``: run one bench and print its medians; with --json exactly one JSON object."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.common.result import Result
from bench.short import record, short
from kernel_helpers.common.errors import FarhomeError

FOLDERS = {
    "link": "calls", "freeze": "moves", "start": "processes", "cpu": "processes", "births": "processes", "many": "processes",
    "mon": "monitor", "owner": "lending", "hostile": "lending", "gossip": "sharing", "balance": "sharing", "mfs": "files",
    "reads": "files", "away": "away", "make": "make", "short": "short",
}  # fmt: skip
"""The folder of each bench; a file there has its name."""
EXIT_FAILED = 1
EXIT_USAGE = 64
EXIT_UNAVAILABLE = 69


def machine() -> dict[str, object]:
    """Return what the figures depend on: cpu, cores, kernel, memory in bytes, Python."""
    model = "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
    }


@contextlib.contextmanager
def _output_elsewhere() -> Iterator[None]:
    """Send what a bench and its children write on descriptor 1 to descriptor 2: the result alone is our output."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _table(results: Sequence[Result]) -> str:
    width = max([4, *(len(result.case) for result in results)])
    lines = [f"{'CASE':{width}} {'OURS':>12} {'BASELINE':>12} {'UNIT':<6} {'RATIO':>8} {'N':>6}  AGAINST"]
    for r in results:
        lines.append(f"{r.case:{width}} {r.ours:12.4g} {r.baseline:12.4g} {r.unit:<6} {r.ratio:8.3f} {r.n:6d}  {r.baseline_name}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure farhome on this machine.")
    parser.add_argument("name", choices=FOLDERS, help="what to measure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--real", action="store_true", help="in a lab of real daemons, where the bench is a simulation otherwise")
    parser.add_argument("--only", default="", metavar="NAMES", help="of short: these benches alone, with commas between")
    parser.add_argument("--record", action="store_true", help="of short: write the ratios into bench/record.json")
    try:
        arguments = parser.parse_args(argv)
        if arguments.name != "short" and (arguments.only or arguments.record):
            parser.error("--only and --record are options of short")
    except SystemExit as end:
        return EXIT_USAGE if end.code else 0
    name = f"bench.{FOLDERS[arguments.name]}.{arguments.name}{'_real' if arguments.real else ''}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        print(f"bench: there is no bench {arguments.name}{' --real' if arguments.real else ''} yet", file=sys.stderr)
        return EXIT_UNAVAILABLE
    # Asked to end, a bench takes its nodes with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with _output_elsewhere():
            results: list[Result] = module.run(short.chosen(arguments.only)) if arguments.name == "short" else module.run()
        recorded = record.load()
        if arguments.record:
            record.renew(results)
    except FarhomeError as error:
        print(f"bench {arguments.name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    if arguments.json:
        rows = [result.to_json() for result in results]
        print(json.dumps({"bench": arguments.name, "machine": machine(), "results": rows}))
    else:
        print(record.table(results, recorded) if arguments.name == "short" else _table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
