"""A node of the cluster that sends what no kernel would send: `forger.py ADDRESS PORT KEYS`, run inside a node, with its keys.

For each line on standard input, the name of an attempt and, after a tab, what its mount is to be called, it makes the attempt and writes a
line of JSON: what was answered to each message, and whether the server still serves us after it. What is there to be attacked is described
in grounds.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = range(1, 7)
MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE = range(8, 19)
FSYNC, SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = range(20, 30)
CREATE, BATCH_FORGET, FALLOCATE, READDIRPLUS, RENAME2, COPY_RANGE, TMPFILE = 35, 42, 43, 44, 45, 47, 51
UNKNOWN = (0, 19, 37, 39, 40, 41, 46, 48, 49, 52, 999, 4096, 0x4D460000, 0xFFFFFFFF)
HEADER, REPLY, HELLO = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ"), struct.Struct("<IIIII16s")
MAGIC, VERSION, REQUESTS, REPLIES = 0x314D4846, 4, 1, 2
BYE = 0x4D460003
ROOT_NODE, USER = 1, 65534
SIZE, MODE, OWNER = 1 << 3, 1 << 0, 1 << 1
BOUND = 5.0
"""Seconds in which an answer comes."""
RACE = 0.5
"""Seconds."""
ESTALE, FOR_EXECUTION = 116, 0x20


class Closed(Exception):
    """The server has ended the connection."""


@dataclass(frozen=True)
class Answer:
    """error: negative, 0 if it was done."""

    error: int
    data: bytes = b""

    @property
    def node(self) -> int:
        """The number that it begins with, of a file or of an open file; none is 0."""
        return int.from_bytes(self.data[:8], "little")


class Peer:
    """A peer that the server takes for a mount."""

    def __init__(self, address: str, port: int, keys: str, session: bytes = b"") -> None:
        """Errors: Closed if the server does not want us."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(f"{keys}/authority.pem")
        context.load_cert_chain(f"{keys}/node.pem", f"{keys}/node.key")
        self.unique, self.resumed = 0, False
        session = session or os.urandom(16)
        self.requests, self.replies = (self._join(context, (address, port), role, session) for role in (REQUESTS, REPLIES))

    def _join(self, context: ssl.SSLContext, where: tuple[str, int], role: int, session: bytes) -> ssl.SSLSocket:
        try:
            stream = context.wrap_socket(socket.create_connection(where, BOUND))
            stream.sendall(HELLO.pack(MAGIC, VERSION, role, 0, 0, session))
        except (ssl.SSLError, ConnectionError) as error:
            raise Closed(str(error)) from None
        known = HELLO.unpack(self._take(stream, HELLO.size))[3] != 0
        self.resumed = known if role == REQUESTS else self.resumed
        return stream

    @staticmethod
    def _take(stream: ssl.SSLSocket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = stream.recv(size - len(data))
            except (ssl.SSLError, ConnectionError) as error:
                raise Closed(str(error)) from None
            if not piece:
                raise Closed("end of stream")
            data += piece
        return data

    def send(self, operation: int, node: int, body: bytes, uid: int = 0, length: int | None = None) -> int:
        """Sends a message and returns its number; `length` is what it says of itself."""
        self.unique += 2
        size = HEADER.size + len(body) if length is None else length
        try:
            self.requests.sendall(HEADER.pack(size, operation, self.unique, node, uid, uid, 1, 0, 0) + body)
        except (ssl.SSLError, ConnectionError) as error:
            raise Closed(str(error)) from None
        return self.unique

    def ask(self, operation: int, node: int, body: bytes = b"", uid: int = 0, length: int | None = None) -> Answer:
        """Returns the server's answer. Errors: Closed, TimeoutError."""
        number = self.send(operation, node, body, uid, length)
        while True:
            size, error, unique = REPLY.unpack(self._take(self.replies, REPLY.size))
            data = self._take(self.replies, size - REPLY.size)
            if unique == number:  # others are the server's own words
                return Answer(error, data)

    def close(self) -> None:
        with contextlib.suppress(Closed):
            self.send(BYE, 0, b"")
        self.requests.close()
        self.replies.close()

    def find(self, *names: str, uid: int = 0) -> int:
        """The number of a node by its path from the root. Errors: AssertionError."""
        node = ROOT_NODE
        for name in names:
            answer = self.ask(LOOKUP, node, name.encode() + b"\0", uid)
            assert answer.error == 0, (names, name, answer)
            node = answer.node
        return node

    def open(self, node: int, flags: int, operation: int = OPEN) -> int:
        """The number of an open file. Errors: AssertionError."""
        answer = self.ask(operation, node, struct.pack("<II", flags, 0))
        assert answer.error == 0, answer
        return answer.node


def c(name: bytes | str) -> bytes:
    return (name.encode() if isinstance(name, str) else name) + b"\0"


def setattr_body(valid: int, size: int = 0, mode: int = 0, uid: int = 0, fh: int = 0) -> bytes:
    return struct.pack("<IIQQQQQQIIIIIIII", valid, 0, fh, size, 0, 0, 0, 0, 0, 0, 0, mode, 0, uid, 0, 0)


def read_body(fh: int, offset: int, size: int) -> bytes:
    return struct.pack("<QQIIQII", fh, offset, size, 0, 0, 0, 0)


def write_body(fh: int, offset: int, size: int, data: bytes) -> bytes:
    return struct.pack("<QQIIQII", fh, offset, size, 0, 0, 0, 0) + data


class Ground:
    """The numbers of what the forger starts from."""

    def __init__(self, peer: Peer) -> None:
        self.root = ROOT_NODE
        self.open = peer.find("tmp", "open")
        self.tried = peer.find("tmp", "open", "try")
        self.guard = peer.find("tmp", "open", "guard")
        self.frozen = peer.find("tmp", "frozen")
        self.file = peer.find("tmp", "frozen", "file")
        self.mine = peer.find("tmp", "open", "try", "mine")


Attack = Callable[[Peer, Ground], Iterator[Answer]]
ATTACKS: dict[str, Attack] = {}
"""Every answer of these must be an error."""
ODDITIES: dict[str, Attack] = {}
"""Answers of these may be anything that is no secret and changes nothing; the server goes on."""


RACES: dict[str, Attack] = {}
"""Like oddities, while a program at home runs racer.py."""


def attack(name: str) -> Callable[[Attack], Attack]:
    return lambda function: ATTACKS.setdefault(name, function)


def oddity(name: str) -> Callable[[Attack], Attack]:
    return lambda function: ODDITIES.setdefault(name, function)


def race(name: str) -> Callable[[Attack], Attack]:
    return lambda function: RACES.setdefault(name, function)


# names that are none

OUT = (
    b"..", b".", b"", b"/", b"../guard", b"../../outside", b"in/../..", b"mine/..", b"/tmp/outside", b"../../outside/secret",
    b"../guard/secret", b"./mine", b"in/x",
)  # fmt: skip


@attack("lookup of what is no name")
def _lookup(peer: Peer, at: Ground) -> Iterator[Answer]:
    for node in (at.root, at.open, at.tried, at.frozen):
        for name in OUT:
            yield peer.ask(LOOKUP, node, c(name))


@attack("creation of what is no name")
def _create(peer: Peer, at: Ground) -> Iterator[Answer]:
    for name in (*OUT, b"../guard/new", b"../../outside/new"):
        yield peer.ask(CREATE, at.tried, struct.pack("<IIII", os.O_RDWR | os.O_CREAT, 0o100666, 0, 0) + c(name))
        yield peer.ask(MKNOD, at.tried, struct.pack("<IIII", 0o100666, 0, 0, 0) + c(name))
        yield peer.ask(MKDIR, at.tried, struct.pack("<II", 0o777, 0) + c(name))
        yield peer.ask(SYMLINK, at.tried, c(name) + c("target"))
        yield peer.ask(LINK, at.tried, struct.pack("<Q", at.mine) + c(name))


@attack("removal of what is no name")
def _remove(peer: Peer, at: Ground) -> Iterator[Answer]:
    for name in OUT:
        yield peer.ask(UNLINK, at.tried, c(name))
        yield peer.ask(RMDIR, at.tried, c(name))


@attack("renaming from and to what is no name")
def _rename(peer: Peer, at: Ground) -> Iterator[Answer]:
    for name in (*OUT, b"../../outside/new"):
        for old, new in ((name, b"taken"), (b"mine", name)):
            yield peer.ask(RENAME, at.tried, struct.pack("<Q", at.tried) + c(old) + c(new))
            yield peer.ask(RENAME2, at.tried, struct.pack("<QII", at.tried, 2, 0) + c(old) + c(new))


@attack("names that do not end")
def _endless(peer: Peer, at: Ground) -> Iterator[Answer]:
    yield peer.ask(LOOKUP, at.tried, b"")
    yield peer.ask(LOOKUP, at.tried, b"min")
    yield peer.ask(RENAME, at.tried, struct.pack("<Q", at.tried) + b"mine\0other")
    yield peer.ask(RENAME, at.tried, struct.pack("<Q", at.tried) + b"mine")
    yield peer.ask(SYMLINK, at.tried, b"x\0target")
    yield peer.ask(SETXATTR, at.mine, struct.pack("<II", 10, 0) + b"user.x")


@attack("names that are too long")
def _long(peer: Peer, at: Ground) -> Iterator[Answer]:
    for size in (256, 4096, 60_000, 1_000_000):
        yield peer.ask(LOOKUP, at.tried, c(b"x" * size))
        yield peer.ask(MKDIR, at.tried, struct.pack("<II", 0o777, 0) + c(b"x" * size))
        yield peer.ask(GETXATTR, at.mine, struct.pack("<II", 100, 0) + c(b"user." + b"x" * size))


@attack("names with more behind them")
def _more(peer: Peer, at: Ground) -> Iterator[Answer]:
    yield peer.ask(LOOKUP, at.tried, b"nothing\0/../../outside\0")
    yield peer.ask(UNLINK, at.tried, b"nothing\0" + c("mine"))


# numbers that were never given


@attack("numbers of files that were never given")
def _numbers(peer: Peer, at: Ground) -> Iterator[Answer]:
    for node in (0, 2**63, 2**64 - 1, 2**32, 1 << 21, at.mine + (1 << 32), at.mine ^ (1 << 40), *range(100, 4000, 97)):
        yield peer.ask(GETATTR, node, struct.pack("<IIQ", 0, 0, 0))
        yield peer.ask(LOOKUP, node, c("secret"))
        yield peer.ask(OPEN, node, struct.pack("<II", os.O_RDONLY, 0))


@attack("numbers of open files that were never given")
def _handles(peer: Peer, at: Ground) -> Iterator[Answer]:
    for handle in (0, 2**63, 2**64 - 1, 2**32, 7 << 32 | 1, *range(20, 400, 13)):
        yield peer.ask(READ, at.mine, read_body(handle, 0, 4096))
        yield peer.ask(WRITE, at.mine, write_body(handle, 0, 1, b"x"))
        yield peer.ask(READDIR, at.tried, read_body(handle, 0, 4096))
        yield peer.ask(FALLOCATE, at.mine, struct.pack("<QQQII", handle, 0, 100, 0, 0))


@attack("the mount of another node")
def _mount(peer: Peer, at: Ground) -> Iterator[Answer]:
    yield Answer(0 if peer.resumed else -ESTALE)
    for node in range(at.mine + 10, at.mine + 200):
        yield peer.ask(GETATTR, node, struct.pack("<IIQ", 0, 0, 0))


@attack("an open file that has been closed")
def _closed(peer: Peer, at: Ground) -> Iterator[Answer]:
    handle = peer.open(at.mine, os.O_RDWR)
    peer.ask(RELEASE, at.mine, struct.pack("<QIIQ", handle, 0, 0, 0))
    yield peer.ask(READ, at.mine, read_body(handle, 0, 4096))
    yield peer.ask(WRITE, at.mine, write_body(handle, 0, 1, b"x"))


@attack("what is found below a file, and opened as what it is not")
def _kinds(peer: Peer, at: Ground) -> Iterator[Answer]:
    yield peer.ask(LOOKUP, at.mine, c("secret"))
    yield peer.ask(OPENDIR, at.mine, struct.pack("<II", os.O_RDONLY, 0))
    yield peer.ask(MKDIR, at.mine, struct.pack("<II", 0o777, 0) + c("x"))
    handle = peer.open(at.mine, os.O_RDWR)
    yield peer.ask(READDIR, at.mine, read_body(handle, 0, 4096))
    yield peer.ask(READDIRPLUS, at.tried, read_body(handle, 0, 4096))


@attack("a symbolic link as if it were what it names")
def _symlink(peer: Peer, at: Ground) -> Iterator[Answer]:
    for name in ("to-secret", "to-outside"):
        way = peer.find("tmp", "open", "try", name)
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDONLY | os.O_DIRECTORY):
            yield peer.ask(OPEN, way, struct.pack("<II", flags, 0))
            yield peer.ask(OPENDIR, way, struct.pack("<II", flags, 0))
        yield peer.ask(LOOKUP, way, c("secret"))
        yield peer.ask(SETATTR, way, setattr_body(SIZE, size=0))
        yield peer.ask(SETATTR, way, setattr_body(MODE, mode=0o777))
        yield peer.ask(SETXATTR, way, struct.pack("<II", 1, 0) + c("user.x") + b"y")
        yield peer.ask(CREATE, at.tried, struct.pack("<IIII", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o100666, 0, 0) + c(name))


@oddity("a link to a symbolic link, an owner for it")
def _linked(peer: Peer, at: Ground) -> Iterator[Answer]:
    way = peer.find("tmp", "open", "try", "to-secret")
    yield peer.ask(LINK, at.tried, struct.pack("<Q", way) + c("taken"))
    yield peer.ask(SETATTR, way, setattr_body(OWNER, uid=1))
    taken = peer.ask(LOOKUP, at.tried, c("taken"))
    yield peer.ask(OPEN, taken.node, struct.pack("<II", os.O_RDONLY, 0))


# a read-only export


@attack("a read-only export is written")
def _frozen(peer: Peer, at: Ground) -> Iterator[Answer]:
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        yield peer.ask(OPEN, at.file, struct.pack("<II", flags, 0))
        yield peer.ask(CREATE, at.frozen, struct.pack("<IIII", flags | os.O_CREAT, 0o100666, 0, 0) + c("new"))
        yield peer.ask(CREATE, at.frozen, struct.pack("<IIII", flags | os.O_CREAT, 0o100666, 0, 0) + c("file"))
    yield peer.ask(MKNOD, at.frozen, struct.pack("<IIII", 0o100666, 0, 0, 0) + c("new"))
    yield peer.ask(MKDIR, at.frozen, struct.pack("<II", 0o777, 0) + c("new"))
    yield peer.ask(SYMLINK, at.frozen, c("new") + c("target"))
    yield peer.ask(UNLINK, at.frozen, c("file"))
    yield peer.ask(RMDIR, at.frozen, c("directory"))
    yield peer.ask(SETATTR, at.file, setattr_body(SIZE))
    yield peer.ask(SETATTR, at.file, setattr_body(MODE, mode=0o777))
    yield peer.ask(SETATTR, at.frozen, setattr_body(OWNER, uid=1))
    yield peer.ask(SETXATTR, at.file, struct.pack("<II", 1, 0) + c("user.x") + b"y")
    yield peer.ask(REMOVEXATTR, at.file, c("user.x"))
    yield peer.ask(TMPFILE, at.frozen, struct.pack("<IIII", os.O_RDWR, 0o100666, 0, 0) + c("new"))


@attack("a read-only export is written by an open file, linked and renamed")
def _frozen_file(peer: Peer, at: Ground) -> Iterator[Answer]:
    handle, mine = peer.open(at.file, os.O_RDONLY), peer.open(at.mine, os.O_RDWR)
    yield peer.ask(WRITE, at.file, write_body(handle, 0, 1, b"x"))
    yield peer.ask(WRITE, at.mine, write_body(handle, 0, 1, b"x"))
    yield peer.ask(FALLOCATE, at.file, struct.pack("<QQQII", handle, 0, 100, 0, 0))
    yield peer.ask(SETATTR, at.file, setattr_body(SIZE | 1 << 6, size=0, fh=handle))
    yield peer.ask(SETATTR, at.mine, setattr_body(SIZE | 1 << 6, size=0, fh=handle))
    yield peer.ask(COPY_RANGE, at.mine, struct.pack("<QQQQQQQ", mine, 0, at.file, handle, 0, 4, 0))
    yield peer.ask(LINK, at.tried, struct.pack("<Q", at.file) + c("taken"))
    yield peer.ask(LINK, at.frozen, struct.pack("<Q", at.mine) + c("taken"))
    for flags in (0, 1, 2, 4):
        yield peer.ask(RENAME2, at.frozen, struct.pack("<QII", at.tried, flags, 0) + c("file") + c("mine"))
        yield peer.ask(RENAME2, at.tried, struct.pack("<QII", at.frozen, flags, 0) + c("mine") + c("file"))


@attack("the directory that leads to the exports is changed")
def _skeleton(peer: Peer, at: Ground) -> Iterator[Answer]:
    tmp = peer.find("tmp")
    for node in (at.root, tmp):
        yield peer.ask(MKDIR, node, struct.pack("<II", 0o777, 0) + c("new"))
        yield peer.ask(RMDIR, node, c("tmp" if node == at.root else "open"))
        yield peer.ask(RENAME, node, struct.pack("<Q", at.tried) + c("tmp" if node == at.root else "open") + c("x"))
        yield peer.ask(RENAME, at.tried, struct.pack("<Q", node) + c("mine") + c("mine"))
        yield peer.ask(LINK, node, struct.pack("<Q", at.mine) + c("mine"))
        yield peer.ask(SETATTR, node, setattr_body(MODE, mode=0o777))
    yield peer.ask(LOOKUP, tmp, c("outside"))
    yield peer.ask(LOOKUP, tmp, c("open-too"))


# rights


@attack("devices")
def _devices(peer: Peer, at: Ground) -> Iterator[Answer]:
    for kind in (0o020000, 0o060000):
        yield peer.ask(MKNOD, at.tried, struct.pack("<IIII", kind | 0o666, 0x105, 0, 0) + c("device"))
        yield peer.ask(CREATE, at.tried, struct.pack("<IIII", os.O_RDWR | os.O_CREAT, kind | 0o666, 0, 0) + c("../device"))
    device = peer.find("tmp", "open", "try", "in", "zero")
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY):
        yield peer.ask(OPEN, device, struct.pack("<II", flags, 0))


@attack("pipes and sockets are opened at home")
def _pipes(peer: Peer, at: Ground) -> Iterator[Answer]:
    for name in ("pipe", "socket"):
        node = peer.find("tmp", "open", "try", name)
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK):
            yield peer.ask(OPEN, node, struct.pack("<II", flags, 0))


@attack("an ordinary user, and one that is none")
def _user(peer: Peer, at: Ground) -> Iterator[Answer]:
    secret = peer.find("tmp", "open", "guard", "secret")
    for uid in (USER, 0xFFFFFFFF):
        yield peer.ask(LOOKUP, at.guard, c("secret"), uid)
        yield peer.ask(OPENDIR, at.guard, struct.pack("<II", 0, 0), uid)
        yield peer.ask(OPEN, secret, struct.pack("<II", os.O_RDONLY, 0), uid)
        yield peer.ask(OPEN, secret, struct.pack("<II", os.O_WRONLY | os.O_TRUNC, 0), uid)
        yield peer.ask(SETATTR, secret, setattr_body(MODE, mode=0o666), uid)
        yield peer.ask(SETATTR, secret, setattr_body(OWNER, uid=uid), uid)
        yield peer.ask(SETATTR, secret, setattr_body(SIZE), uid)
        yield peer.ask(UNLINK, at.guard, c("secret"), uid)
        yield peer.ask(LINK, at.tried, struct.pack("<Q", secret) + c("taken"), uid)
        yield peer.ask(MKDIR, at.guard, struct.pack("<II", 0o777, 0) + c("x"), uid)
        yield peer.ask(SETXATTR, secret, struct.pack("<II", 20, 0) + c("security.capability") + b"\1\0\0\2" + bytes(16), uid)
        yield peer.ask(SETXATTR, secret, struct.pack("<II", 1, 0) + c("trusted.x") + b"y", uid)


@attack("a program is executed in order to be written")
def _program(peer: Peer, at: Ground) -> Iterator[Answer]:
    program = peer.find("tmp", "open", "try", "program")
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        yield peer.ask(OPEN, program, struct.pack("<II", flags | FOR_EXECUTION, 0), USER)


# messages that are none


@oddity("operations that are none")
def _unknown(peer: Peer, at: Ground) -> Iterator[Answer]:
    for operation in UNKNOWN:
        yield peer.ask(operation, at.mine, bytes(64))


@oddity("messages that are too short")
def _short(peer: Peer, at: Ground) -> Iterator[Answer]:
    for operation in (*range(3, 7), *range(8, 19), *range(20, 26), *range(27, 36), *range(43, 48), 51):
        for size in (0, 1, 4, 7, 12):
            yield peer.ask(operation, at.tried, bytes(size))


@oddity("a first message once more")
def _again(peer: Peer, at: Ground) -> Iterator[Answer]:
    yield peer.ask(INIT, 0, struct.pack("<IIII", 7, 38, 0, 0))
    yield peer.ask(INIT, 0, struct.pack("<IIII", 99, 0, 0, 0))


@oddity("numbers and sizes beyond all bounds")
def _bounds(peer: Peer, at: Ground) -> Iterator[Answer]:
    handle, listing = peer.open(at.mine, os.O_RDWR), peer.open(at.tried, os.O_RDONLY, OPENDIR)
    for offset, size in ((0, 0xFFFFFFFF), (2**63 - 1, 4096), (2**64 - 1, 1), (2**63, 2**31)):
        yield peer.ask(READ, at.mine, read_body(handle, offset, size))
        yield peer.ask(READDIR, at.tried, read_body(listing, offset, size))
        yield peer.ask(READDIRPLUS, at.tried, read_body(listing, offset, size))
        yield peer.ask(WRITE, at.mine, write_body(handle, offset, 4, b"data"))
    for size in (5, 4096, 2**31, 0xFFFFFFFF):
        yield peer.ask(WRITE, at.mine, write_body(handle, 0, size, b"data"))
        yield peer.ask(SETXATTR, at.mine, struct.pack("<II", size, 0) + c("user.x") + b"data")
        yield peer.ask(GETXATTR, at.mine, struct.pack("<II", size, 0) + c("user.x"))
        yield peer.ask(LISTXATTR, at.mine, struct.pack("<II", size, 0))


@oddity("files forgotten more often than found")
def _forget(peer: Peer, at: Ground) -> Iterator[Answer]:
    peer.send(FORGET, at.root, struct.pack("<Q", 2**64 - 1))
    peer.send(FORGET, at.mine, struct.pack("<Q", 2**64 - 1))
    peer.send(FORGET, 2**64 - 1, struct.pack("<Q", 1))
    peer.send(BATCH_FORGET, 0, struct.pack("<II", 2**31, 0) + struct.pack("<QQ", at.tried, 2**63))
    yield peer.ask(LOOKUP, at.root, c("tmp"))
    yield peer.ask(GETATTR, at.mine, struct.pack("<IIQ", 0, 0, 0))


@race("a directory that becomes a link and back")
def _becomes(peer: Peer, at: Ground) -> Iterator[Answer]:
    end = time.monotonic() + RACE
    while time.monotonic() < end:
        way = peer.ask(LOOKUP, at.tried, c("way"))
        yield peer.ask(OPENDIR, way.node, struct.pack("<II", 0, 0))
        secret = peer.ask(LOOKUP, way.node, c("secret"))
        opened = peer.ask(OPEN, secret.node, struct.pack("<II", os.O_RDONLY, 0))
        yield peer.ask(READ, secret.node, read_body(opened.node, 0, 100))
        yield peer.ask(MKDIR, way.node, struct.pack("<II", 0o777, 0) + c("made"))
        yield peer.ask(RMDIR, way.node, c("made"))


@race("a directory that is moved out and back")
def _moved(peer: Peer, at: Ground) -> Iterator[Answer]:
    end = time.monotonic() + RACE
    inner = Answer(-1)
    while inner.error:
        deep = peer.ask(LOOKUP, at.tried, c("deep"))
        inner = peer.ask(LOOKUP, deep.node, c("in"))
    while time.monotonic() < end:
        for name in ("..", "../..", "../../secret", "secret"):
            yield peer.ask(LOOKUP, inner.node, c(name))


@oddity("a message that is shorter than its beginning")
def _length(peer: Peer, at: Ground) -> Iterator[Answer]:
    yield peer.ask(GETATTR, at.mine, bytes(16), length=8)


@oddity("a message that is said to be endless")
def _length_most(peer: Peer, at: Ground) -> Iterator[Answer]:
    yield peer.ask(GETATTR, at.mine, bytes(16), length=0xFFFFFFFF)


def serves(address: str, port: int, keys: str) -> bool:
    """Whether the server answers another mount."""
    try:
        peer = Peer(address, port, keys)
        answer = peer.ask(GETATTR, ROOT_NODE, struct.pack("<IIQ", 0, 0, 0))
        peer.close()
    except (Closed, OSError):
        return False
    return answer.error == 0


def main(address: str, port: int, keys: str) -> None:
    for line in sys.stdin:
        name, _, session = line.strip().partition("\t")
        said: list[object] = []
        try:
            peer = Peer(address, port, keys, bytes.fromhex(session))
            for answer in (ATTACKS | ODDITIES | RACES)[name](peer, Ground(peer)):
                said.append([answer.error, answer.data.decode("latin-1")])
            peer.close()
        except (Closed, TimeoutError) as error:
            said.append(f"{type(error).__name__}: {error}")
        print(json.dumps({"said": said, "serves": serves(address, port, keys)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
