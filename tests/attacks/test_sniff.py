"""A listener on the network between nodes learns nothing of memory, calls or files, unless both nodes have given encryption up."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.running import Running
from tests.moves.cluster import HOME, Cluster, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")]

MEMORY, FILE, CALL = "kept-in-memory-4d1f", "kept-in-a-file-77ab", "said-in-a-call-c0de"
#: Its memory is random, so that it is not compressed, and has the word on each page; it writes to it and to two files all the time.
PROGRAM = """
import os, random, time
while not os.path.exists("kept"):
    time.sleep(0.01)
memory = bytearray(os.urandom(24 << 20))
word = "-".join(("kept", "in", "memory", "4d1f")).encode()
for at in range(0, len(memory), 4096):
    memory[at + 100 : at + 100 + len(word)] = word
kept = os.open("kept", os.O_RDONLY)
lines = os.open("lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
said = "-".join(("said", "in", "a", "call", "c0de")).encode()
number = 0
while not os.path.exists("end"):
    assert os.pread(kept, 4096, 0).startswith(b"kept-in-a-")
    for at in range(0, len(memory), 65536):
        memory[at] = number & 255
    assert memory[4196 : 4196 + len(word)] == word
    os.write(lines, said + b" %d\\n" % number)
    number += 1
"""


@contextmanager
def sniffed(cluster: Cluster, name: str) -> Iterator[dict[str, Any]]:
    """Collects what goes over that node's cable meanwhile; filled at the end."""
    script = Path(__file__).with_name("sniffer.py").read_text()
    result: dict[str, Any] = {}
    with cluster.lab.node(name).popen(
        ["/usr/bin/python3", "-c", script, MEMORY, FILE, CALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sniffer:
        assert sniffer.stdin is not None and sniffer.stdout is not None
        assert sniffer.stdout.readline() == "ready\n"
        try:
            yield result
        finally:
            sniffer.stdin.close()
            result |= json.loads(sniffer.stdout.read())


def travel(cluster: Cluster) -> dict[str, Any]:
    """A process goes out, on, home, and out again with its memory after it; its files are read by `/mfs`, too. Returns what was heard on
    n2's cable, where each of these passes."""
    running = Running(cluster, "appender", "", command=f"/usr/bin/python3 -c '{PROGRAM}'")
    (running.directory / "kept.new").write_text(f"{FILE} " * 1000)
    (running.directory / "kept.new").rename(running.directory / "kept")
    with running:
        running.works(30)
        with sniffed(cluster, "n2") as heard:
            for target, memory in (("n2", ""), ("n3", ""), ("n2", ""), (HOME, ""), ("n2", "postcopy"), (HOME, "")):
                running.moved(target, memory)
                running.works(30)
            seen = until("n1's files at n2", lambda: cluster.lab.node("n2").run(
                ["cat", f"/mfs/n1/tmp/{running.name}/kept"], text=True, timeout=30).stdout)  # fmt: skip
            assert seen.count(FILE) == 1000
        (running.directory / "end").touch()
        said = running.end(30)
    assert said.endswith("status 0\n"), said
    lines = running.lines()
    assert lines == [f"{CALL} {number}" for number in range(len(lines))], "a line was written twice, or none"
    assert sum(heard["ports"].values()) > 5000, "the packets were not heard"
    return heard


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(3, configuration="[balance]\nenabled = false\n[mfs]\nexports = ['/tmp']\n")
    yield made
    made.down()


@contextmanager
def said(cluster: Cluster, *plain: str) -> Iterator[None]:
    """These nodes say that it need not be secret."""
    before = {name: (cluster.place(name).root / "etc/farhome/node.toml").read_text() for name in plain}

    def say(text: str) -> None:
        for name, configuration in before.items():
            (cluster.place(name).root / "etc/farhome/node.toml").write_text(text + configuration)
            cluster.lab.node(name).ask_mosd("reload")

    say("encryption = false\n")
    try:
        yield
    finally:
        say("")


@pytest.mark.parametrize("plain", [(), pytest.param(("n1", "n3"), marks=pytest.mark.soak)], ids=["as shipped", "only one side says no"])
def test_nothing_can_be_read_on_the_way(cluster: Cluster, plain: tuple[str, ...]) -> None:
    with said(cluster, *plain):
        assert travel(cluster)["found"] == {MEMORY: 0, FILE: 0, CALL: 0}


def test_everything_can_be_read_where_both_say_that_it_may(cluster: Cluster) -> None:
    """Shows that the sniffer would see unencrypted data."""
    with said(cluster, "n1", "n2", "n3"):
        found = travel(cluster)["found"]
        assert all(count > 0 for count in found.values()), found
