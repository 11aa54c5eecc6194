"""The number of calls that home has made for a program while it was away."""

from __future__ import annotations

import os
import subprocess

import pytest

from lab import Lab
from tests.lab.waiting import until

CALLS = 100
READER = f"""
import os, sys
file = os.open("/etc/passwd", os.O_RDONLY)
for line in sys.stdin:
    if line == "child\\n" and (child := os.fork()):
        os.waitpid(child, 0)
    else:
        for _ in range({CALLS}):
            os.pread(file, 1, 0)
        if line == "child\\n":
            os._exit(0)
    print("done", flush=True)
"""

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")]


def test_calls_of_a_process_that_is_away_and_of_its_children_that_have_ended_are_counted(lab3: Lab) -> None:
    n1 = lab3.node("n1")
    with n1.popen(["mosrun", "-L", "/usr/bin/python3", "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            pid = process.node_pid
            until(lambda: pid in {row["pid"] for row in n1.ask_mosd("ps")["processes"]})
            n1.run(["migrate", str(pid), "n2"], timeout=60, check=True)

            def trips(line: str) -> int:
                assert process.stdin is not None and process.stdout is not None
                before = n1.ask_mosd("why", pid=pid)["trips"]
                process.stdin.write(line + "\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                return int(n1.ask_mosd("why", pid=pid)["trips"]) - before

            assert CALLS <= trips("itself") <= CALLS + 5
            assert CALLS <= trips("child") <= CALLS + 50
            explanation = n1.run(["mosctl", "why", str(pid)], timeout=60, check=True, stdout=subprocess.PIPE, text=True).stdout
            assert f"home has made {n1.ask_mosd('why', pid=pid)['trips']} calls for it and its children while they were away" in explanation
            n1.run(["migrate", str(pid), "home"], timeout=60, check=True)
            assert "trips" not in n1.ask_mosd("why", pid=pid)
        finally:
            process.kill()
