"""The server in C and the one in Python answer the same to the same, and do the same."""

from __future__ import annotations

import errno
import os
import pwd
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mfs import caller, trees
from tests.mfs.caller import Caller
from tests.mfs.served import Served, free_port

ROOT = Path(__file__).resolve().parents[2]
STEPS = 1500
NAMES = [f"name{number}" for number in range(6)]
USERS = [(0, 0), (0, 0), *((entry.pw_uid, entry.pw_gid) for entry in map(pwd.getpwnam, ("farhome-a", "farhome-b")))]


class Twin:
    """One of the two sides: a tree, a caller of its server, and the numbers that the server has given out, in their order."""

    def __init__(self, peer: Caller, top: Path) -> None:
        self.peer, self.top = peer, top
        self.nodes = [peer.walk(top).node]
        self.handles: list[tuple[int, int]] = []

    def ask(self, opcode: int, node: int, body: bytes) -> bytes | str:
        """The reply, or the name of the error."""
        try:
            return self.peer.ask(opcode, self.nodes[node % len(self.nodes)], body)
        except OSError as error:
            return caller.refused(error)

    def entered(self, reply: bytes) -> object:
        """Returns the fields of an entry that are the same in both trees; keeps its number."""
        (node,) = struct.unpack_from("<Q", reply)
        if not node:
            return "ENOENT"  # an absence that may be remembered
        if node not in self.nodes:
            self.nodes.append(node)
        return (self.nodes.index(node), *self.lasting(reply[40:]))

    @staticmethod
    def lasting(attributes: bytes) -> tuple[int, ...]:
        """Attributes without times, blocks and inode number."""
        fields = struct.unpack_from("<6Q10I", attributes)
        is_directory = fields[9] & 0o170000 == 0o040000
        return (0 if is_directory else fields[1], *fields[9:14])


@pytest.fixture
def twins(area: Path) -> Iterator[list[Twin]]:
    (area / "keys").mkdir()
    served = Served(area / "keys", ["/"])
    port = free_port()
    reference = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.mfs.reference", served.own.directory, "127.0.0.1", str(port)], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert reference.stdout is not None
        assert reference.stdout.readline() == b"ready\n"
        tops = [area / "c", area / "python"]
        for top in tops:
            top.mkdir()
            top.chmod(0o777)
        yield [Twin(served.caller(), tops[0]), Twin(Caller(served.others, port), tops[1])]
    finally:
        reference.kill()
        reference.communicate(timeout=10)
        served.kill()


def step(twin: Twin, seed: int) -> object:
    """Makes one request, the same for the same seed and history; returns the answer without what must differ."""
    chance = random.Random(seed)
    node, other = chance.randrange(1 << 30), chance.randrange(1 << 30)
    name, second = (chance.choice(NAMES).encode() + b"\0" for _ in range(2))
    twin.peer.uid, twin.peer.gid = chance.choice(USERS)
    mode, flags = chance.choice([0o644, 0o600, 0o777]), chance.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND])
    of_other = struct.pack("<Q", twin.nodes[other % len(twin.nodes)])
    handle_node, handle = twin.handles[other % len(twin.handles)] if twin.handles else (0, 0)
    data = chance.randbytes(chance.randrange(3000))
    reads = struct.pack("<QQIIQII", handle, chance.randrange(4000), len(data), 0, 0, 0, 0)
    kind = chance.randrange(19)
    makes_entry = {
        0: (caller.LOOKUP, name), 1: (caller.LOOKUP, name), 2: (caller.MKDIR, struct.pack("<2I", mode | 0o111, 0o22) + name),
        3: (caller.SYMLINK, name + second), 4: (caller.LINK, of_other + name),
        5: (caller.MKNOD, struct.pack("<4I", 0o010000 | mode, 0, 0o27, 0) + name),
    }  # fmt: skip
    plain = {
        8: (caller.UNLINK, name), 9: (caller.RMDIR, name), 10: (caller.RENAME, of_other + name + second),
        11: (caller.READLINK, b""), 12: (caller.SETXATTR, struct.pack("<2I", 3, 0) + b"user.a\0abc"),
        13: (caller.GETXATTR, struct.pack("<2I", 100, 0) + b"user.a\0"),
    }  # fmt: skip
    if kind in makes_entry:
        reply = twin.ask(makes_entry[kind][0], node, makes_entry[kind][1])
        return twin.entered(reply) if isinstance(reply, bytes) else reply
    if kind in plain:
        return twin.ask(plain[kind][0], node, plain[kind][1])
    if kind in (6, 7):
        excl = os.O_EXCL if chance.random() < 0.3 else 0
        reply = twin.ask(caller.CREATE, node, struct.pack("<4I", flags | os.O_CREAT | excl, 0o100000 | mode, 0o22, 0) + name)
        if isinstance(reply, str):
            return reply
        entry = twin.entered(reply)
        twin.handles.append((twin.nodes.index(struct.unpack_from("<Q", reply)[0]), struct.unpack_from("<Q", reply, 128)[0]))
        return entry
    if kind == 14:
        reply = twin.ask(caller.OPEN, node, struct.pack("<2I", flags, 0))
        if isinstance(reply, bytes):
            twin.handles.append((node % len(twin.nodes), struct.unpack_from("<Q", reply)[0]))
            return struct.unpack_from("<I", reply, 8)[0] & ~2
        return reply
    if kind == 15:
        return twin.ask(caller.READ, handle_node, reads) if twin.handles else None
    if kind == 16:
        return twin.ask(caller.WRITE, handle_node, reads + data) if twin.handles else None
    if kind == 17:
        valid = chance.choice([1, 8, 1 | 8, 2, 4])
        body = struct.pack("<2I6Q3I", valid, 0, 0, len(data), 0, 0, 0, 0, 0, 0, 0) + struct.pack("<2I2I4x", mode, 0, *chance.choice(USERS))
        reply = twin.ask(caller.SETATTR, node, body)
        return twin.lasting(reply[16:]) if isinstance(reply, bytes) else reply
    reply = twin.ask(caller.GETATTR, node, bytes(16))
    return twin.lasting(reply[16:]) if isinstance(reply, bytes) else reply


def test_both_servers_apply_the_same_rights_to_unlinked_files(twins: list[Twin]) -> None:
    for twin in twins:
        peer, top = twin.peer, twin.nodes[0]
        entry, handle = peer.create(top, "gone")
        peer.ask(caller.UNLINK, top, b"gone\0")
        peer.release(entry.node, peer.open(entry.node))
        peer.release(entry.node, handle)
        with pytest.raises(OSError) as caught:
            peer.open(entry.node)
        assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("seed", [1])
def test_both_servers_answer_the_same(twins: list[Twin], seed: int) -> None:
    for number in range(STEPS):
        c, python = (step(twin, seed * 1000003 + number) for twin in twins)
        assert c == python, f"step {number}"
    assert len(twins[0].nodes) > 30
    program = trees.LIST.replace("about.st_mtime_ns, ", "")
    listings = [
        subprocess.run([sys.executable, "-c", program, twin.top], capture_output=True, check=True, timeout=60).stdout for twin in twins
    ]
    assert listings[0] == listings[1]
    for twin in twins:
        twin.peer.uid, twin.peer.gid = 0, 0
    names = [twin.peer.names(twin.nodes[0]) for twin in twins]
    assert names[0] == names[1] == set(os.listdir(twins[0].top))
