"""Connections between nodes: cut, healed, slowed down, and what another node observes when a node dies."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from lab import Lab, LabError, NodeProcess
from tests.lab.waiting import until

# A server that prints each line; a client that sends each line of its input, and prints the answers or how the connection ended.
SERVER = """
import socket, sys
server = socket.create_server(("0.0.0.0", 7000))
print("listening", flush=True)
connection, _ = server.accept()
for line in connection.makefile():
    print(line.strip(), flush=True)
    connection.sendall(b"heard " + line.encode())
print("end of file", flush=True)
"""
CLIENT = """
import socket, sys, threading
connection = socket.create_connection((sys.argv[1], 7000), timeout=5)
connection.settimeout(None)
print("connected", flush=True)
def read():
    try:
        for line in connection.makefile():
            print(line.strip(), flush=True)
        print("end of file", flush=True)
    except OSError as error:
        print("error", error, flush=True)
threading.Thread(target=read, daemon=True).start()
for line in sys.stdin:
    connection.sendall(line.encode())
"""


class Lines:
    """Lines that a process writes, with a bound on waiting for the next one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.rest = b""

    def next(self, seconds: float = 10.0) -> str | None:
        """The next line; None when none comes in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.stream], [], [], max(0.0, deadline - time.monotonic()))
            more = self.stream.read1(65536) if ready else b""  # type: ignore[attr-defined]
            if not more:
                return None
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()


class Conversation:
    """A connection from n1 to another node."""

    def __init__(self, lab: Lab, to: str) -> None:
        python = ["/usr/bin/python3", "-c"]
        self.server: NodeProcess = lab.node(to).popen([*python, SERVER], stdout=-1)
        self.heard = Lines(self.server.stdout)  # type: ignore[arg-type]
        assert self.heard.next() == "listening"
        self.client: NodeProcess = lab.node("n1").popen([*python, CLIENT, lab.node(to).address], stdin=-1, stdout=-1)
        self.answers = Lines(self.client.stdout)  # type: ignore[arg-type]
        assert self.answers.next() == "connected"

    def say(self, text: str) -> None:
        """Have the client send a line."""
        assert self.client.stdin is not None
        self.client.stdin.write(text.encode() + b"\n")
        self.client.stdin.flush()

    def close(self) -> None:
        """End both."""
        for process in (self.client, self.server):
            process.kill()
            process.communicate(timeout=10)


@pytest.fixture
def converse(bare_lab: Lab) -> Iterator[Callable[[str], Conversation]]:
    """Begin a conversation of n1 with a node."""
    begun: list[Conversation] = []

    def begin(to: str) -> Conversation:
        begun.append(Conversation(bare_lab, to))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def test_a_cut_stalls_a_connection_and_loses_nothing_of_it(bare_lab: Lab, converse: Callable[[str], Conversation]) -> None:
    cut, other = converse("n2"), converse("n3")
    cut.say("before")
    assert (cut.heard.next(), cut.answers.next()) == ("before", "heard before")
    bare_lab.cut("n1", "n2")
    cut.say("during")
    other.say("elsewhere")
    assert other.answers.next() == "heard elsewhere"
    assert cut.heard.next(0.7) is None
    assert cut.answers.next(0) is None
    assert bare_lab.heal() == 1
    assert (cut.heard.next(), cut.answers.next()) == ("during", "heard during")
    assert bare_lab.status()["cuts"] == []


def test_no_node_connects_across_a_cut_and_both_do_after(bare_lab: Lab) -> None:
    program = "import socket, sys; socket.create_connection((sys.argv[1], 7000), timeout=0.5)"
    connect = ["/usr/bin/python3", "-c", program, bare_lab.node("n1").address]
    bare_lab.cut("n2", "n1")
    assert b"timed out" in bare_lab.node("n2").run(connect).stderr
    assert b"refused" in bare_lab.node("n3").run(connect).stderr
    bare_lab.heal("n1")
    assert b"refused" in bare_lab.node("n2").run(connect).stderr


def test_a_cut_with_a_time_heals_by_itself(bare_lab: Lab, converse: Callable[[str], Conversation]) -> None:
    conversation = converse("n2")
    bare_lab.cut("n1", "n2", 0.5)
    started = time.monotonic()
    conversation.say("during")
    assert conversation.heard.next() == "during"
    assert time.monotonic() - started > 0.4
    until(lambda: bare_lab.status()["cuts"] == [])


def test_an_old_timer_does_not_heal_a_new_cut(bare_lab: Lab) -> None:
    bare_lab.cut("n1", "n2", 0.3)
    bare_lab.cut("n1", "n2")
    bare_lab.cut("n2", "n3", 0.4)
    until(lambda: ["n2", "n3"] not in bare_lab.status()["cuts"])
    assert bare_lab.status()["cuts"] == [["n1", "n2"]]


def test_a_node_that_dies_falls_silent(bare_lab: Lab, converse: Callable[[str], Conversation]) -> None:
    conversation = converse("n2")
    bare_lab.kill("n2")
    assert conversation.server.wait(10) == -9
    conversation.say("anybody there?")
    assert conversation.answers.next(0.5) is None
    assert not bare_lab.node("n2").is_alive()
    assert bare_lab.node("n3").is_alive()
    with pytest.raises(LabError, match="is dead"):
        bare_lab.node("n2").run("true")


def test_a_node_may_die_with_its_connections_closed(bare_lab: Lab, converse: Callable[[str], Conversation]) -> None:
    conversation = converse("n2")
    bare_lab.kill("n2", unplug=False)
    assert conversation.answers.next() == "end of file"


def test_all_of_a_node_dies_at_once(bare_lab: Lab) -> None:
    node = bare_lab.node("n3")
    node.run("for i in 1 2 3; do (setsid unshare --fork --pid sleep infinity </dev/null >/dev/null 2>&1 &); done", check=True)
    until(lambda: node.run("pgrep -c sleep", text=True).stdout == "3\n")
    inode = (node.root / "proc/1/ns/pid").stat().st_ino
    bare_lab.kill("n3")
    left = set()
    for link in Path("/proc").glob("[0-9]*/ns/pid_for_children"):
        with suppress(OSError):  # it has ended, or may not be inspected
            left.add(link.stat().st_ino)
    assert inode not in left


def test_bandwidth_bounds_the_throughput(lab_name: Callable[[], str]) -> None:
    receive = (
        "import socket, time\nserver = socket.create_server(('0.0.0.0', 7000)); print('listening', flush=True)\n"
        "connection, _ = server.accept(); connection.recv(1, socket.MSG_PEEK); begin = time.monotonic(); size = 0\n"
        "while data := connection.recv(65536): size += len(data)\nprint(size, time.monotonic() - begin)"
    )
    send = "import socket, sys; socket.create_connection((sys.argv[1], 7000)).sendall(bytes(2_000_000))"
    with Lab.up(2, name=lab_name(), bandwidth="16mbit", mosd=False) as lab:
        receiver = lab.node("n2").popen(["/usr/bin/python3", "-c", receive], stdout=-1)
        lines = Lines(receiver.stdout)  # type: ignore[arg-type]
        assert lines.next() == "listening"
        lab.node("n1").run(["/usr/bin/python3", "-c", send, lab.node("n2").address], check=True)
        size, seconds = (lines.next() or "").split()
        receiver.communicate(timeout=10)
    assert int(size) == 2_000_000
    assert 0.8 < float(seconds) < 3


ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
server.bind(("0.0.0.0", 7000))
print("listening", flush=True)
while True:
    data, address = server.recvfrom(2000)
    server.sendto(data, address)
"""
ASK = """
import socket, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(20)
client.connect((sys.argv[1], 7000))
client.send(b"first")  # finds the neighbour
client.recv(100)
begun = time.monotonic()
client.send(b"second")
client.recv(100)
print(time.monotonic() - begun)
for number in range(300):
    client.send(b"%d" % number)
print([int(client.recv(100)) for number in range(300)] == list(range(300)))
"""


def test_packets_take_the_delay_each_way_and_keep_their_order(lab_name: Callable[[], str]) -> None:
    with Lab.up(3, name=lab_name(), delay=0.02, jitter=0.005, mosd=False) as lab:
        server = lab.node("n2").popen(["/usr/bin/python3", "-c", ECHO], stdout=-1)
        assert Lines(server.stdout).next() == "listening"  # type: ignore[arg-type]
        measured = lab.node("n1").run(["/usr/bin/python3", "-c", ASK, lab.node("n2").address], timeout=30, check=True, text=True, stdout=-1)
        server.kill()
        server.communicate(timeout=10)
        seconds, in_order = measured.stdout.split()
        assert float(seconds) > 0.0295  # no less than twice the delay less the jitter, and what the program takes to wake up
        assert in_order == "True"
        assert (lab.status()["delay"], lab.status()["jitter"]) == (0.02, 0.005)


def test_delayed_links_carry_much_and_are_cut_and_healed(lab_name: Callable[[], str]) -> None:
    receive = (
        "import hashlib, socket\nserver = socket.create_server(('0.0.0.0', 7001)); print('listening', flush=True)\n"
        "connection, _ = server.accept(); known = hashlib.sha256()\n"
        "while data := connection.recv(65536): known.update(data)\nprint(known.hexdigest())"
    )
    send = (
        "import hashlib, random, socket, sys\ndata = random.Random(1).randbytes(20_000_000)\n"
        "socket.create_connection((sys.argv[1], 7001)).sendall(data); print(hashlib.sha256(data).hexdigest())"
    )
    with Lab.up(2, name=lab_name(), delay=0.001, mosd=False) as lab:
        receiver = lab.node("n2").popen(["/usr/bin/python3", "-c", receive], stdout=-1)
        lines = Lines(receiver.stdout)  # type: ignore[arg-type]
        assert lines.next() == "listening"
        command = ["/usr/bin/python3", "-c", send, lab.node("n2").address]
        sent = lab.node("n1").run(command, timeout=60, check=True, text=True, stdout=-1).stdout
        assert lines.next(30) == sent.strip()
        receiver.communicate(timeout=10)
        conversation = Conversation(lab, "n2")
        try:
            lab.cut("n1", "n2")
            conversation.say("during")
            assert conversation.heard.next(0.7) is None
            lab.heal()
            assert (conversation.heard.next(), conversation.answers.next()) == ("during", "heard during")
        finally:
            conversation.close()


def test_two_labs_cannot_reach_one_another(bare_lab: Lab, lab_name: Callable[[], str]) -> None:
    with Lab.up(1, name=lab_name(), mosd=False) as other:
        program = "import socket, sys; socket.create_connection((sys.argv[1], 7000), timeout=0.5)"
        result = other.node("n1").run(["/usr/bin/python3", "-c", program, bare_lab.node("n2").address])
        assert result.returncode != 0
        assert b"refused" not in result.stderr
