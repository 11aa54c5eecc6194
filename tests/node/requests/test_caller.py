"""Only the process itself can register: its pid alone proves nothing, and its user must be the one that has connected."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import msgpack
import pytest

from engine.leaving.permission import Owner
from node.common.process import read_stat
from node.requests.caller import Caller
from tests.node.nodes import Cluster

REGISTER = {"op": "register", "command": "x", "locked": True}


@pytest.fixture
def pair(kept_pair: Cluster) -> Cluster:
    return kept_pair


def ask(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    body = msgpack.packb(message)
    connection.settimeout(20)
    connection.sendall(struct.pack("!I", len(body)) + body)
    size, data = struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))[0], b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return dict(msgpack.unpackb(data))


def connected_by_another(path: str, before: str = "") -> tuple[int, socket.socket]:
    """A connection that a process has made which has ended since, and the number that it had."""
    ours, theirs = socket.socketpair()
    source = (
        f"import os, socket\n{before}\ns = socket.socket(socket.AF_UNIX); s.connect({path!r})\n"
        f"socket.send_fds(socket.socket(fileno={theirs.fileno()}), [b'x'], [s.fileno()]); os._exit(0)"
    )
    child = subprocess.Popen(["/usr/bin/python3", "-c", source], pass_fds=[theirs.fileno()])
    _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    child.wait(20)
    ours.close()
    theirs.close()
    return child.pid, socket.socket(fileno=descriptor)


def with_number(pid: int) -> subprocess.Popen[bytes]:
    """Another process with that number."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(pid - 1))
        child = subprocess.Popen(["sleep", "60"])
        if child.pid == pid:
            return child
        child.kill()
        child.wait()
    raise TimeoutError(f"number {pid} is not to be had")


def test_a_later_process_with_the_same_pid_is_not_registered(pair: Cluster) -> None:
    pid, connection = connected_by_another(str(pair[1].run / "mosd.sock"))
    ask(connection, {"op": "ps"})  # accepted while it was still to be known, or not: either way it is not this one
    other = with_number(pid)
    try:
        answer = ask(connection, REGISTER)
        assert (answer["ok"], answer["error"]) == (False, f"process {pid}, which has connected, has ended")
        assert pair[1].processes() == []
    finally:
        connection.close()
        other.kill()
        other.wait()


def test_a_caller_that_ended_before_it_was_accepted_has_no_identity() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0farhome-test-{os.getpid()}")
        listener.listen()
        pid, connection = connected_by_another(f"\0farhome-test-{os.getpid()}")
        other = with_number(pid)
        try:
            accepted, _ = listener.accept()
            caller = Caller.of(accepted)
            assert caller.pid == pid
            assert caller.read_stat() is None
            caller.close()
            accepted.close()
        finally:
            other.kill()
            other.wait()
            connection.close()


def test_without_peer_pidfds_the_start_time_identifies_a_caller() -> None:
    child = subprocess.Popen(["sleep", "60"])
    stat = read_stat(child.pid)
    assert stat is not None
    caller = Caller(child.pid, Owner(0, 0), _started=stat.starttime)
    assert caller.read_stat() is not None
    child.kill()
    child.wait()
    time.sleep(0.02)  # a tick, of which two processes with one number are apart
    other = with_number(child.pid)
    try:
        assert read_stat(child.pid) is not None
        assert caller.read_stat() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("ids", ["0, 61001, 0", "61001, 61001, 0", "0, 61001, 61001"])
def test_a_process_with_other_ids_than_its_socket_is_not_registered(pair: Cluster, ids: str) -> None:
    source = f"""
import os, socket, sys
sys.path.insert(0, {os.getcwd()!r})
from tests.node.requests.test_caller import REGISTER, ask
here = os.open({str(pair[1].run)!r}, os.O_RDONLY)
os.setresuid({ids})
s = socket.socket(socket.AF_UNIX)
s.connect(f"/proc/self/fd/{{here}}/mosd.sock")
print(ask(s, REGISTER))
"""
    done = subprocess.run([sys.executable, "-c", source], check=False, capture_output=True, text=True, timeout=60)
    assert "has other user ids" in done.stdout, done
    assert pair[1].processes() == []


def test_an_ordinary_process_is_known_with_its_groups() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        caller = Caller.of(ours)
        assert (caller.pid, caller.owner.uid, caller.owner.gid) == (os.getpid(), os.getuid(), os.getgid())
        assert set(caller.owner.groups) == set(os.getgroups())
        assert caller.read_stat() is not None
        caller.close()
