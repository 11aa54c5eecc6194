"""Forwarded calls against a TCP ping-pong of the same bytes between the same two network namespaces, in the same run, each side
on processors of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.link_pair import Pair
from bench.result import BenchFailed, Result

ROOT = Path(__file__).resolve().parent.parent
HOME, AWAY = "10.255.77.1", "10.255.77.2"
HEADER = 96
"""bytes of a CALL or REPLY without data, about"""
CASES = {
    "getppid": ("g", HEADER, HEADER),
    "write 4 KiB": ("w", HEADER + 4096, HEADER),
    "read 4 KiB": ("r", HEADER, HEADER + 4096),
}
COUNT, ROUNDS, TURNS = 2000, 5, 5


def run() -> list[Result]:
    """Measures in two fresh network namespaces. Errors: BenchFailed."""
    done = subprocess.run(["unshare", "--net", sys.executable, "-m", "bench.link"], cwd=ROOT, capture_output=True,
                          text=True, timeout=300, check=False)
    if done.returncode:
        raise BenchFailed(f"bench link: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    times: dict[str, dict[str, list[int]]] = json.loads(done.stdout)
    return [Result.of(case, [t / 1000 for t in values["ours"]], [t / 1000 for t in values["baseline"]], unit="us",
                      baseline_name="TCP ping-pong") for case, values in times.items()]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=10)


def _network(other: int) -> None:
    """A veth pair between our network namespace and that of process `other`."""
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "home", "type", "veth", "peer", "name", "away", "netns", str(other))
    _ip("addr", "add", f"{HOME}/30", "dev", "home")
    _ip("link", "set", "home", "up")
    inside = ["nsenter", "-t", str(other), "-n", "ip"]
    for words in (["link", "set", "lo", "up"], ["addr", "add", f"{AWAY}/30", "dev", "away"], ["link", "set", "away", "up"]):
        subprocess.run([*inside, *words], check=True, timeout=10)


def _ping_pong(program: Path, prefix: list[str], request: int, reply: int) -> list[int]:
    server = subprocess.Popen([program, "server", HOME, str(request), str(reply)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = subprocess.run([*prefix, program, "client", HOME, port, str(request), str(reply), str(COUNT), str(ROUNDS)],
                                check=True, capture_output=True, text=True, timeout=60)
        return [int(line) for line in client.stdout.split()]
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def measure() -> dict[str, dict[str, list[int]]]:
    """Nanoseconds of every round, by case; to be run in a network namespace of its own."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    result: dict[str, dict[str, list[int]]] = {}
    try:
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
            if holder.poll() is not None:
                raise BenchFailed("no second network namespace")
        _network(holder.pid)
        prefix = ["nsenter", "-t", str(holder.pid), "-n"]
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) > 1:
            # Two nodes never share a processor; left alone, the scheduler puts a ping-pong on one, and sometimes not.
            os.sched_setaffinity(0, processors[:1])
            prefix += ["taskset", "-c", ",".join(map(str, processors[1:]))]
        with tempfile.TemporaryDirectory() as directory:
            ping_pong, guest = Path(directory, "pingpong"), Path(directory, "guest")
            for source, program in ((ROOT / "bench/pingpong.c", ping_pong), (ROOT / "tests/link/guest.c", guest)):
                subprocess.run(["gcc", "-O2", "-w", "-pthread", "-o", program, source], check=True, timeout=60)
            for case, (kind, request, reply) in CASES.items():
                times: dict[str, list[int]] = {"ours": [], "baseline": []}
                # By turns, and each time in fresh processes.
                for _ in range(TURNS):
                    times["baseline"] += _ping_pong(ping_pong, prefix, request, reply)
                    with Pair([str(guest), "bench", kind, str(COUNT)], away_prefix=prefix, host=HOME, directory=directory) as pair:
                        times["ours"] += [int(line) for line in pair.run(120)[1].split()]
                result[case] = times
    finally:
        holder.kill()
        holder.wait()
    return result


if __name__ == "__main__":
    print(json.dumps(measure()))
