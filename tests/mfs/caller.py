"""A peer's kernel, for tests of mfs-server: speaks FUSE over the wire, one request at a time, and may ask for what no kernel would."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

from node.cluster.keys.pki import KeyStore

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE = (
    1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
)  # fmt: skip
SETXATTR, GETXATTR, OPENDIR, READDIR, SETLK, SETLKW, CREATE, INTERRUPT = 21, 22, 27, 28, 32, 33, 35, 36
FALLOCATE, READDIRPLUS, RENAME2 = 43, 44, 45
PING, BYE, ACK = 0x4D460001, 0x4D460003, 0x4D460005
PONG, FENCE, REVALIDATE, REVALIDATE_SOON = 0x4D460002, 0x4D460004, 0x4D460006, 0x4D460007
INVAL_INODE, INC_EPOCH = 2, 8
ROOT = 1
AGAIN = 1 << 63
TERM = 1.0
"""Seconds for which a peer may remember something."""
PLAIN = "ECDHE-ECDSA-NULL-SHA:@SECLEVEL=0"
MAGIC, VERSION = 0x314D4846, 4

_HELLO = struct.Struct("<5I16s")
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ENTRY = struct.Struct("<4Q2I")
_ATTRIBUTES = struct.Struct("<6Q10I")


@dataclass(frozen=True)
class Attributes:
    """The fields of struct fuse_attr that tests check."""

    inode: int
    size: int
    mode: int
    links: int
    uid: int
    gid: int


@dataclass(frozen=True)
class Entry:
    """A name's node."""

    node: int
    attributes: Attributes
    name_valid: int = 0
    attributes_valid: int = 0
    """seconds for which they may be remembered"""


def _attributes(data: bytes) -> Attributes:
    inode, size, _, _, _, _, _, _, _, mode, links, uid, gid, *_ = _ATTRIBUTES.unpack_from(data)
    return Attributes(inode, size, mode, links, uid, gid)


def _entry(data: bytes) -> Entry:
    node, _, name_valid, attributes_valid, _, _ = _ENTRY.unpack_from(data)
    return Entry(node, _attributes(data[_ENTRY.size :]), name_valid, attributes_valid)


class Caller:
    """One mount of a server's files. Errors of all requests: OSError, as the server says; ConnectionError when it is gone."""

    def __init__(self, keys: KeyStore, port: int, *, session: bytes | None = None, encrypted: bool = True) -> None:
        self._keys = keys
        self._port = port
        self._unique = 0
        self.session = session or os.urandom(16)
        self.uid, self.gid = os.getuid(), os.getgid()
        self._wish = encrypted
        self.obeys = True
        """whether fences are answered"""
        self.notified: list[tuple[int, int]] = []
        """notifications: (code, node)"""
        self.resumed = self.encrypted = False
        self.connect()

    def connect(self) -> None:
        """(Again.)"""
        self.to, self.back = self._meet(1), self._meet(2)

    def _meet(self, role: int) -> socket.socket:
        context = self._keys.client_context()
        if not self._wish:
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(PLAIN)
        stream = context.wrap_socket(socket.create_connection(("127.0.0.1", self._port), timeout=10))
        stream.sendall(_HELLO.pack(MAGIC, VERSION, role, 0, 1, self.session))
        answer = self._exactly(stream, _HELLO.size)
        self.resumed = bool(_HELLO.unpack(answer)[3])
        cipher = stream.cipher()
        assert cipher is not None
        self.encrypted = cipher[2] > 0
        return stream

    @staticmethod
    def _exactly(stream: socket.socket, size: int) -> bytes:
        data, done = bytearray(size), 0
        with memoryview(data) as room:
            while done < size:
                try:
                    count = stream.recv_into(room[done:])
                except ssl.SSLError as error:
                    raise ConnectionError(str(error)) from None
                if not count:
                    raise ConnectionError("the server has hung up")
                done += count
        return bytes(data)

    def send(self, opcode: int, node: int, body: bytes = b"", unique: int = 0) -> int:
        """Sends a request; its number."""
        self._unique += 2
        unique = unique or self._unique
        self.to.sendall(_IN.pack(_IN.size + len(body), opcode, unique, node, self.uid, self.gid, os.getpid(), 0, 0) + body)
        return unique

    def receive(self) -> tuple[int, int, bytes]:
        """(number, error, body) of the next reply; notifications that come before it are obeyed."""
        while True:
            unique, error, body = self.receive_frame()
            if unique:
                return unique, error, body

    def receive_frame(self) -> tuple[int, int, bytes]:
        """The next reply, or (0, code, body) of a notification that has been obeyed."""
        size, error, unique = _OUT.unpack(self._exactly(self.back, _OUT.size))
        body = self._exactly(self.back, size - _OUT.size)
        if not unique and error in (INVAL_INODE, INC_EPOCH, REVALIDATE, REVALIDATE_SOON):
            self.notified.append((error, int.from_bytes(body[:8], "little")))
        if not unique and error == FENCE and self.obeys:
            self.send(ACK, int.from_bytes(body[:8], "little"))
        return unique, error, body

    def ask(self, opcode: int, node: int, body: bytes = b"", unique: int = 0) -> bytes:
        """The body of the reply."""
        sent = self.send(opcode, node, body, unique)
        answered, error, reply = self.receive()
        assert answered == sent
        if error:
            raise OSError(-error, os.strerror(-error))
        return reply

    def close(self) -> None:
        """Hangs up."""
        self.to.close()
        self.back.close()

    # -- requests as the kernel makes them ------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes | str) -> Entry:
        """Returns the entry of a name in a directory."""
        entry = _entry(self.ask(LOOKUP, parent, (name.encode() if isinstance(name, str) else name) + b"\0"))
        if not entry.node:
            raise FileNotFoundError(errno.ENOENT, "which may be remembered")
        return entry

    def walk(self, path: str | Path) -> Entry:
        """Returns the entry of a path from the root, step by step."""
        entry = Entry(ROOT, Attributes(0, 0, 0, 0, 0, 0))
        for name in Path(path).parts:
            if name != "/":
                entry = self.lookup(entry.node, name)
        return entry

    def attributes(self, node: int) -> Attributes:
        """GETATTR."""
        return _attributes(self.ask(GETATTR, node, bytes(16))[16:])

    def open(self, node: int, flags: int = os.O_RDONLY) -> int:
        """The handle."""
        return int.from_bytes(self.ask(OPEN, node, struct.pack("<2I", flags, 0))[:8], "little")

    def create(self, parent: int, name: str, flags: int = os.O_RDWR, mode: int = 0o644, umask: int = 0o22) -> tuple[Entry, int]:
        """The new file's entry and handle."""
        body = struct.pack("<4I", flags | os.O_CREAT, mode | 0o100000, umask, 0) + name.encode() + b"\0"
        reply = self.ask(CREATE, parent, body)
        return _entry(reply), int.from_bytes(reply[128:136], "little")

    def read(self, node: int, handle: int, size: int = 4096, offset: int = 0) -> bytes:
        """READ."""
        return self.ask(READ, node, struct.pack("<QQIIQII", handle, offset, size, 0, 0, 0, 0))

    def write(self, node: int, handle: int, data: bytes, offset: int = 0, unique: int = 0) -> int:
        """WRITE; bytes that were taken."""
        body = struct.pack("<QQIIQII", handle, offset, len(data), 0, 0, 0, 0) + data
        return int.from_bytes(self.ask(WRITE, node, body, unique)[:4], "little")

    def release(self, node: int, handle: int) -> None:
        """RELEASE."""
        self.ask(RELEASE, node, struct.pack("<QIIQ", handle, 0, 0, 0))

    def names(self, node: int) -> set[str]:
        """Returns the names in a directory."""
        handle = int.from_bytes(self.ask(OPENDIR, node, struct.pack("<2I", os.O_RDONLY, 0))[:8], "little")
        found, offset = set(), 0
        while data := self.ask(READDIR, node, struct.pack("<QQIIQII", handle, offset, 4096, 0, 0, 0, 0)):
            at = 0
            while at < len(data):
                _, offset, size, _ = struct.unpack_from("<QQII", data, at)
                found.add(data[at + 24 : at + 24 + size].decode())
                at += (24 + size + 7) // 8 * 8
        return found - {".", ".."}

    def lock(self, node: int, handle: int, kind: int, *, owner: int = 1, wait: bool = False) -> int:
        """Sends a request for an fcntl() lock of the whole file; its number."""
        body = struct.pack("<QQQQIIII", handle, owner, 0, (1 << 63) - 1, kind, os.getpid(), 0, 0)
        return self.send(SETLKW if wait else SETLK, node, body)


def refused(error: OSError) -> str:
    """The name of its number."""
    return errno.errorcode[error.errno or 0]
