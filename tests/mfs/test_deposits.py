"""Files that a deputy deposits with mfs-server: one peer may read such a file, and nothing else."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
from pathlib import Path

import pytest

from tests.mfs import caller
from tests.mfs.caller import ROOT, Caller
from tests.mfs.served import Served


def deposited(served: Served, path: Path, peer: str = "n2") -> str:
    """The name under which that peer has the file."""
    token = secrets.token_hex(16)
    file = os.open(path, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        message = token.encode() + peer.encode().ljust(64, b"\0")
        sender.connect(str(served.base / "run" / "direct"))
        socket.send_fds(sender, [message], [file])
    os.close(file)
    return f".farhome-direct-{token}"


@pytest.fixture
def peer(served: Served) -> Caller:
    return served.caller()


def test_a_deposited_file_is_read_even_when_it_is_not_shown_and_has_no_name(served: Served, area: Path, peer: Caller) -> None:
    name = deposited(served, area / "secret" / "file")
    (area / "secret" / "file").unlink()
    found = peer.lookup(ROOT, name)
    assert peer.read(found.node, peer.open(found.node)) == b"secret\n"
    assert peer.attributes(found.node).size == len("secret\n")


def test_a_deposit_is_for_one_peer_and_under_its_token_alone(served: Served, area: Path, peer: Caller) -> None:
    name = deposited(served, area / "secret" / "file", "n3")
    for other in (name, f"{name[:-1]}x", name[:-1], ".farhome-direct-"):
        with pytest.raises(FileNotFoundError):
            peer.lookup(ROOT, other)
    mine = deposited(served, area / "secret" / "file")
    with pytest.raises(OSError):
        peer.lookup(peer.walk(area / "shown").node, mine)


def test_nothing_but_reading_is_to_be_had(served: Served, area: Path, peer: Caller) -> None:
    node = peer.lookup(ROOT, deposited(served, area / "secret" / "file")).node
    top = peer.walk(area / "shown").node
    attempts = [
        (caller.OPEN, node, struct.pack("<2I", os.O_RDWR, 0)),
        (caller.OPEN, node, struct.pack("<2I", os.O_WRONLY | os.O_TRUNC, 0)),
        (caller.SETATTR, node, struct.pack("<2I", 1, 0) + bytes(60) + struct.pack("<I", 0o777) + bytes(16)),
        (caller.SETXATTR, node, struct.pack("<2I", 1, 0) + b"user.a\0" + b"x"),
        (caller.GETXATTR, node, struct.pack("<2I", 100, 0) + b"user.a\0"),
        (caller.LINK, top, struct.pack("<Q", node) + b"linked\0"),
    ]
    for opcode, where, body in attempts:
        with pytest.raises(OSError) as caught:
            peer.ask(opcode, where, body)
        assert caught.value.errno in (errno.EPERM, errno.EROFS), opcode
    assert (area / "secret" / "file").read_bytes() == b"secret\n"
    assert not (area / "shown" / "linked").exists()


def test_directories_and_fifos_are_not_given(served: Served, area: Path, peer: Caller) -> None:
    os.mkfifo(area / "fifo")
    for path in (area / "secret", area / "fifo"):
        with pytest.raises(PermissionError):
            peer.lookup(ROOT, deposited(served, path))


def test_a_deposit_can_be_read_after_a_restart_of_the_server(served: Served, area: Path, peer: Caller) -> None:
    with open(area / "secret" / "file", "rb"):  # as the process has it, at home
        node = peer.lookup(ROOT, deposited(served, area / "secret" / "file")).node
        handle = peer.open(node)
        (area / "secret" / "file").unlink()
        served.kill()
        served.start()
        again = served.caller(peer.session)
        assert again.resumed
        assert again.read(node, handle) == b"secret\n"


def test_an_invalid_deposit_does_no_harm(served: Served, area: Path, peer: Caller) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(served.base / "run" / "direct"))
        for message in (b"", b"x", bytes(96), bytes(1000)):
            sender.send(message)
        with open(area / "secret" / "file", "rb") as file:
            socket.send_fds(sender, [b"too short"], [file.fileno()])
    found = peer.lookup(ROOT, deposited(served, area / "secret" / "file"))
    assert peer.read(found.node, peer.open(found.node)) == b"secret\n"


def test_one_peers_deposits_leave_room_for_those_of_others(served: Served, area: Path, peer: Caller) -> None:
    for _ in range(1200):
        deposited(served, area / "secret" / "file", "n7")
    late = deposited(served, area / "secret" / "file", "n7")
    mine = deposited(served, area / "secret" / "file")
    other = Caller(served.keys("n7"), served.port)
    with pytest.raises(FileNotFoundError):
        other.lookup(ROOT, late)
    assert peer.lookup(ROOT, mine).node
