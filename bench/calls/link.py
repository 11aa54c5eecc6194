"""What a call costs away from home, in one run.

Forwarded calls against a TCP ping-pong of the same bytes between the same two network namespaces: each side on processors of
its own, as nodes are, and both on one processor. The link is encrypted, and so compared with one over bare TCP, which only this bench and
tests have, and with one whose records have a MAC alone, which is what `encryption = false` gives. Calls that the node makes by itself
against the same program that runs natively. And what a forwarded call adds to a native one against what other interposers add to it
(bench/calls/interposers.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.calls import interposers
from bench.calls.link_pair import Pair
from bench.common.result import BenchFailed, Result
from wire import channel

ROOT = Path(__file__).resolve().parents[2]
HOME, AWAY = "10.255.77.1", "10.255.77.2"
HEADER = 96
"""bytes of a CALL or REPLY without data, about"""
FORWARDED = {
    "getppid": ("g", HEADER, HEADER),
    "write 4 KiB": ("w", HEADER + 4096, HEADER),
    "read 4 KiB": ("r", HEADER, HEADER + 4096),
}
ON_THE_NODE = {"getpid, allowed": ("p", 200_000), "mmap and munmap, allowed": ("m", 20_000), "own cpu clock, answered": ("c", 2000)}
COMPARED = {"getppid": "g", "write 4 KiB": "w", "stat": "s"}
COUNT, ROUNDS, TURNS, SHORT_TURNS = 2000, 5, 5, 3

Times = list[int]
"""Nanoseconds per call, of rounds."""


@dataclass(frozen=True)
class Row:
    """One case as measured."""

    case: str
    ours: Times
    baseline: Times
    baseline_name: str


def run() -> list[Result]:
    """Measures in two fresh network namespaces. Errors: BenchFailed."""
    return _measured("rows")


def short() -> list[Result]:
    """Measures forwarded calls against the ping-pong, and an allowed one against the native one. Errors: BenchFailed."""
    return _measured("few_rows")


def _measured(method: str) -> list[Result]:
    """method: of Bench, which returns the rows."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "bench.calls.link", method], cwd=ROOT, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchFailed(f"bench link: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    rows = [Row(**row) for row in json.loads(done.stdout)]
    return [
        Result.of(row.case, [t / 1000 for t in row.ours], [t / 1000 for t in row.baseline], unit="us", baseline_name=row.baseline_name)
        for row in rows
    ]


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


class Bench:
    """Two network namespaces and the programs. `prefix` brings a command to the away side, on its own processors."""

    def __init__(self, other: int, directory: str) -> None:
        self.directory, self.turns = directory, TURNS
        self.ping_pong, self.guest = Path(directory, "pingpong"), Path(directory, "guest")
        for source, program in ((ROOT / "bench/calls/pingpong.c", self.ping_pong), (ROOT / "tests/link/guest.c", self.guest)):
            subprocess.run(["gcc", "-O2", "-w", "-pthread", "-o", program, source], check=True, timeout=60)
        self.together = ["nsenter", "-t", str(other), "-n"]
        self.apart = None
        processors = sorted(os.sched_getaffinity(0))
        # Two nodes never share a processor; left alone, the scheduler puts a ping-pong on one, and sometimes not.
        os.sched_setaffinity(0, processors[:1])
        if len(processors) > 1:
            self.apart = [*self.together, "taskset", "-c", ",".join(map(str, processors[1:]))]

    def rows(self) -> list[Row]:
        """Every case."""
        prefix = self.apart or self.together
        result = [self.against_ping_pong(case, prefix) for case in FORWARDED]
        if self.apart:
            result += [self.against_ping_pong(case, self.together, ", one processor") for case in FORWARDED]
        result += [self.against_native(case, prefix) for case in ON_THE_NODE]
        for case in FORWARDED:
            result += self.against_unencrypted(case, prefix)
        for case in COMPARED:
            result += self.against_interposers(case, prefix)
        return result

    def few_rows(self) -> list[Row]:
        """Those of bench short."""
        self.turns = SHORT_TURNS
        prefix = self.apart or self.together
        return [self.against_ping_pong(case, prefix) for case in FORWARDED] + [self.against_native(next(iter(ON_THE_NODE)), prefix)]

    def against_ping_pong(self, case: str, prefix: list[str], where: str = "") -> Row:
        kind, request, reply = FORWARDED[case]
        baseline, ours = self._by_turns(lambda: self._ping_pong(prefix, request, reply), lambda: self._away(kind, COUNT, prefix))
        return Row(case + where, ours, baseline, "TCP ping-pong")

    def against_unencrypted(self, case: str, prefix: list[str]) -> list[Row]:
        """As it is shipped, against the same over a bare connection, and over one that both sides say need not be secret."""
        kind, _, _ = FORWARDED[case]
        bare, mac, ours = self._by_turns(
            lambda: self._away(kind, COUNT, prefix, encrypted=False),
            lambda: self._away(kind, COUNT, prefix, willing=True),
            lambda: self._away(kind, COUNT, prefix),
        )
        return [Row(f"{case}, encrypted", ours, bare, "not encrypted"), Row(f"{case}, encrypted", ours, mac, "a MAC alone")]

    def against_native(self, case: str, prefix: list[str]) -> Row:
        kind, count = ON_THE_NODE[case]
        baseline, ours = self._by_turns(lambda: self._native(kind, count, prefix), lambda: self._away(kind, count, prefix))
        return Row(case, ours, baseline, "native")

    def against_interposers(self, case: str, prefix: list[str]) -> list[Row]:
        """What is added to the native call."""
        kind = COMPARED[case]
        native = int(median(self._native(kind, COUNT, [])))
        others = interposers.measure(self.guest, kind, COUNT, self.directory)
        ours = [time - native for time in self._away(kind, COUNT, prefix)] if others else []
        return [Row(f"{case}, added", ours, [time - native for time in times], name) for name, times in others.items()]

    def _by_turns(self, *measured: Callable[[], Times]) -> list[Times]:
        """Each time in fresh processes."""
        results: list[Times] = [[] for _ in measured]
        for _ in range(self.turns):
            for times, once in zip(results, measured, strict=True):
                times.extend(once())
        return results

    def _away(self, kind: str, count: int, prefix: list[str], encrypted: bool = True, willing: bool = False) -> Times:
        command = [str(self.guest), "bench", kind, str(count)]
        with Pair(command, away_prefix=prefix, host=HOME, directory=self.directory, encrypted=encrypted, willing=willing) as pair:
            return [int(line) for line in pair.run(120)[1].split()]

    def _native(self, kind: str, count: int, prefix: list[str]) -> Times:
        times = interposers.timed([str(self.guest), "bench", kind, str(count)], self.directory, prefix)
        if times is None:
            raise BenchFailed("the program does not run natively")
        return times

    def _ping_pong(self, prefix: list[str], request: int, reply: int) -> Times:
        server = subprocess.Popen([self.ping_pong, "server", HOME, str(request), str(reply)], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            command = [*prefix, str(self.ping_pong), "client", HOME, port, str(request), str(reply), str(COUNT), str(ROUNDS)]
            client = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
            return [int(line) for line in client.stdout.split()]
        finally:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()


def measure(rows: str = "rows") -> list[Row]:
    """What this method of Bench measures; to be run in a network namespace of its own."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
            if holder.poll() is not None:
                raise BenchFailed("no second network namespace")
        _network(holder.pid)
        with tempfile.TemporaryDirectory() as directory:
            channel.need_not_be_secret()  # the away side decides
            measured: list[Row] = getattr(Bench(holder.pid, directory), rows)()
            return measured
    finally:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    print(json.dumps([vars(row) for row in measure(sys.argv[1])]))
