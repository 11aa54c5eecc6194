"""Run two commands by turns and print how long each took, in µs: a program for the inside of a node."""

from __future__ import annotations

import json
import os
import sys
import time


def spawn(command: list[str]) -> float:
    """Return the µs from spawn to the end of a command. Errors: RuntimeError if it does not end with 0."""
    start = time.perf_counter_ns()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter_ns() - start) / 1e3
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    return took


def main(count: int, ours: list[str], baseline: list[str]) -> None:
    """Print {"ours": [...], "baseline": [...]}."""
    for command in (ours, baseline):  # once for the page cache
        spawn(command)
    pairs = [(spawn(ours), spawn(baseline)) for _ in range(count)]
    print(json.dumps({"ours": [pair[0] for pair in pairs], "baseline": [pair[1] for pair in pairs]}))


if __name__ == "__main__":
    divider = sys.argv.index("::")
    main(int(sys.argv[1]), sys.argv[2:divider], sys.argv[divider + 1 :])
