"""The core of a process that was away is the one that it would have left at home."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)
NT_PRSTATUS, NT_SIGINFO = 1, 0x53494749
PT_NOTE = 4


@dataclass(frozen=True)
class Core:
    """Contents of a core file: threads, marks on heap and stacks, signal and si_code that ended the first thread; printed output."""

    threads: int
    on_heap: int
    on_stacks: int
    signal: tuple[int, int]
    said: str


def read(path: Path, said: str) -> Core:
    data = path.read_bytes()
    table, size, count = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
    threads, ended = 0, (0, 0)
    for header in (struct.unpack_from("<IIQQQQ", data, table + size * index) for index in range(count)):
        at, end = header[2], header[2] + header[5]
        while header[0] == PT_NOTE and at < end:
            name, length, kind = struct.unpack_from("<III", data, at)
            at += 12 + -(-name // 4) * 4
            threads += kind == NT_PRSTATUS
            if kind == NT_SIGINFO:
                number, _, code = struct.unpack_from("<iii", data, at)
                ended = number, code
            at += -(-length // 4) * 4
    return Core(threads, data.count(b"A-MARK-on-the-heap-"), data.count(b"A-MARK-on-a-stack-"), ended, said)


def end(cluster: Cluster, how: str, target: str, limit: str = "unlimited") -> tuple[Core | None, str]:
    """The core that it leaves when it ends on that node, and what its shell said."""
    with Running(cluster, "crashes", how, mosrun=f"ulimit -c {limit} && mosrun -L") as one:
        until("it is ready", lambda: "ready" in one.said)
        if target != HOME:
            one.moved(target)
        (one.directory / "go").touch()
        if how == "wait":
            until("it waits", one.waits)
            cluster.home.run("kill", "-QUIT", str(one.pid))
        said = one.end().replace(one.name, "NAME").replace(f" {one.pid} ", " PID ")
        cores = list(one.directory.glob("core*"))
        return (read(cores[0], said) if cores else None), said


def leaves_the_same(cluster: Cluster, how: str) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if pattern[:1] in "|@/":
        pytest.skip(f"cores go elsewhere on this machine: {pattern}")
    natively, _ = end(cluster, how, HOME)
    away, _ = end(cluster, how, "n2")
    assert natively is not None and "core dumped" in natively.said and natively.threads == 3 and natively.on_heap >= 4096, natively
    assert away == natively


@pytest.mark.parametrize("how", ["abort", "segv", "overflow", "wait"])
def test_the_core_has_memory_registers_and_threads(cluster: Cluster, how: str) -> None:
    leaves_the_same(cluster, how)


def test_without_one_wanted_it_ends_where_it_is(cluster: Cluster) -> None:
    natively, away = end(cluster, "segv", HOME, "0"), end(cluster, "segv", "n2", "0")
    assert away == natively
    assert natively[0] is None and "status 139" in natively[1]
