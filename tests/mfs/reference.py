"""mfs-server once more, in Python: the readable reference that tests compare the one in C with.

It shows the whole tree of this node, read and write, to one mount at a time, one request after the other; nothing may be remembered, and
nothing outlives it. Locks are tried, not waited for. The server in C must give the same answers.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import socket
import ssl
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.cluster.keys.pki import KeyStore

_HELLO = struct.Struct("<5I16s")
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_OPENED = struct.Struct("<QIi")
_SETATTR = struct.Struct("<2I6Q3II4I")
_READ = struct.Struct("<QQIIQII")
_DIRENT = struct.Struct("<QQII")
_LOCK = struct.Struct("<QQQQIIII")
ROOT = 1
PIECE = 64 << 10
"""Bytes that programs are advised to read and write at once."""
PING, BYE, PONG = 0x4D460001, 0x4D460003, 0x4D460002
OPEN_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_TRUNC | os.O_SYNC | os.O_DSYNC
DIRECT_IO, NOFLUSH = 1, 32
_OFD_SETLK = 37
_libc = ctypes.CDLL(None, use_errno=True)
_SETFSUID, _SETFSGID, _SETGROUPS = 122, 123, 116


@dataclass(frozen=True)
class Request:
    """One request of a peer's kernel."""

    opcode: int
    unique: int
    node: int
    uid: int
    gid: int
    body: bytes

    def names(self, skip: int = 0) -> list[bytes]:
        """Returns the strings after `skip` bytes, which end with NUL. Errors: OSError if the first is no single step."""
        found = self.body[skip:].split(b"\0")[:-1]
        if not found or found[0] in {b"", b".", b".."} or b"/" in found[0]:
            raise _error(errno.EINVAL)
        return found

    def word(self, skip: int = 0) -> bytes:
        """Returns one such string, with any content. Errors: OSError."""
        if not (found := self.body[skip:].split(b"\0")[:-1]) or not found[0]:
            raise _error(errno.EINVAL)
        return found[0]


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _path(descriptor: int) -> str:
    """For calls that know paths alone."""
    return f"/proc/self/fd/{descriptor}"


def attributes(about: os.stat_result) -> bytes:
    """struct fuse_attr. (Inode numbers of other file systems than the root's are not mixed here.)"""
    times = (about.st_atime_ns, about.st_mtime_ns, about.st_ctime_ns)
    device = os.minor(about.st_rdev) & 0xFF | os.major(about.st_rdev) << 8 | (os.minor(about.st_rdev) & ~0xFF) << 12
    piece = max(about.st_blksize, PIECE) if stat.S_ISREG(about.st_mode) else about.st_blksize
    return _ATTRIBUTES.pack(
        about.st_ino, about.st_size, about.st_blocks, *(time // 10**9 for time in times), *(time % 10**9 for time in times),
        about.st_mode, about.st_nlink, about.st_uid, about.st_gid, device, piece, 0,
    )  # fmt: skip


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """This thread's file-system user, group and groups are those of the asking user; no capability is left for others than root."""
    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:
        groups = []
    _libc.syscall(_SETGROUPS, len(groups), (ctypes.c_uint * len(groups))(*groups))
    _libc.syscall(_SETFSGID, gid)
    _libc.syscall(_SETFSUID, uid)
    try:
        yield
    finally:
        _libc.syscall(_SETFSUID, 0)
        _libc.syscall(_SETFSGID, 0)
        _libc.syscall(_SETGROUPS, 0, None)
        os.umask(0)


class Reference:
    """The files of this node as one peer's kernel knows them: by numbers that were given to it."""

    def __init__(self) -> None:
        self._nodes: dict[int, int] = {ROOT: os.open("/", os.O_PATH)}
        self._files: dict[int, int] = {}  # open descriptors, each with its owner
        self._numbers: dict[tuple[int, int], int] = {}
        self._next = ROOT + 1
        self._handlers: dict[int, Callable[[Request], bytes]] = {
            1: self.lookup, 3: self.getattr, 4: self.setattr, 5: self.readlink, 6: self.symlink, 8: self.mknod, 9: self.mkdir,
            10: self.unlink, 11: self.rmdir, 12: self.rename, 13: self.link, 14: self.open, 15: self.read, 16: self.write,
            17: self.statfs, 18: self.release, 20: self.fsync, 21: self.setxattr, 22: self.getxattr, 23: self.listxattr,
            24: self.removexattr, 25: self.flush, 27: self.opendir, 28: self.readdir, 29: self.release, 32: self.setlk,
            33: self.setlk, 35: self.create, 43: self.fallocate, 45: self.rename2, 46: self.lseek,
        }  # fmt: skip

    def answer(self, request: Request) -> tuple[int, bytes]:
        """(0 or -errno, the reply)."""
        handler = self._handlers.get(request.opcode)
        if handler is None:
            return -errno.ENOSYS, b""
        try:
            with acting_as(request.uid, request.gid):
                return 0, handler(request)
        except OSError as error:
            return -(error.errno or errno.EIO), b""
        except struct.error:
            return -errno.EINVAL, b""

    # -- nodes -----------------------------------------------------------------------------------------------------------------

    def _node(self, number: int) -> int:
        try:
            return self._nodes[number]
        except KeyError:
            raise _error(errno.ESTALE) from None

    def _enter(self, descriptor: int) -> bytes:
        """The entry of what is behind an O_PATH descriptor, which is kept."""
        about = os.fstat(descriptor)
        key = (about.st_dev, about.st_ino)
        number = self._numbers.get(key)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[key], self._nodes[number] = number, descriptor
        else:
            os.close(descriptor)
        return _ENTRY.pack(number, 0, 0, 0, 0, 0) + attributes(about)

    def _entry(self, parent: int, name: bytes) -> bytes:
        return self._enter(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent))

    # -- names -----------------------------------------------------------------------------------------------------------------

    def lookup(self, request: Request) -> bytes:
        """Replies with the entry of that name."""
        return self._entry(self._node(request.node), request.names()[0])

    def symlink(self, request: Request) -> bytes:
        """A new link to anywhere."""
        name, target = request.names()
        os.symlink(target, name, dir_fd=self._node(request.node))
        return self._entry(self._node(request.node), name)

    def mknod(self, request: Request) -> bytes:
        """A new file or fifo; devices are each node's own."""
        mode, _, umask, _ = struct.unpack_from("<4I", request.body)
        (name,) = request.names(16)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise _error(errno.EPERM)
        os.umask(umask)
        os.mknod(name, mode, dir_fd=self._node(request.node))
        return self._entry(self._node(request.node), name)

    def mkdir(self, request: Request) -> bytes:
        """A new directory."""
        mode, umask = struct.unpack_from("<2I", request.body)
        (name,) = request.names(8)
        os.umask(umask)
        os.mkdir(name, mode, dir_fd=self._node(request.node))
        return self._entry(self._node(request.node), name)

    def unlink(self, request: Request) -> bytes:
        """The name goes."""
        os.unlink(request.names()[0], dir_fd=self._node(request.node))
        return b""

    def rmdir(self, request: Request) -> bytes:
        """An empty directory goes."""
        os.rmdir(request.names()[0], dir_fd=self._node(request.node))
        return b""

    def rename(self, request: Request) -> bytes:
        """Renames as rename(2)."""
        (into,) = struct.unpack_from("<Q", request.body)
        old, new = request.names(8)
        os.rename(old, new, src_dir_fd=self._node(request.node), dst_dir_fd=self._node(into))
        return b""

    def rename2(self, request: Request) -> bytes:
        """Renames as renameat2(2)."""
        into, flags, _ = struct.unpack_from("<QII", request.body)
        old, new = request.names(16)
        if _libc.renameat2(self._node(request.node), old, self._node(into), new, flags):
            raise _error(ctypes.get_errno())
        return b""

    def link(self, request: Request) -> bytes:
        """Makes one more name of a file."""
        (node,) = struct.unpack_from("<Q", request.body)
        (name,) = request.names(8)
        os.link(_path(self._node(node)), name, dst_dir_fd=self._node(request.node), follow_symlinks=True)
        return self._entry(self._node(request.node), name)

    def readlink(self, request: Request) -> bytes:
        """Returns the target of a link."""
        return os.readlink(b"", dir_fd=self._node(request.node))

    # -- attributes ------------------------------------------------------------------------------------------------------------

    def getattr(self, request: Request) -> bytes:
        """Replies with the attributes of a file."""
        return bytes(16) + attributes(os.fstat(self._node(request.node)))

    def setattr(self, request: Request) -> bytes:
        """Size, mode, owner, times: those that `valid` names."""
        valid, _, handle, size, _, access, change, _, access_ns, change_ns, _, mode, _, uid, gid, _ = _SETATTR.unpack_from(request.body)
        node = self._node(request.node)
        if valid & 8:
            if valid & 64:
                os.ftruncate(handle, size)
            else:
                os.truncate(_path(node), size)
        if valid & 1:
            os.chmod(_path(node), mode & 0o7777)
        if valid & 6:
            os.chown(_path(node), uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 48:
            now = os.fstat(node)
            accessed = access * 10**9 + access_ns if valid & 16 else now.st_atime_ns
            os.utime(_path(node), ns=(accessed, change * 10**9 + change_ns if valid & 32 else now.st_mtime_ns))
        return self.getattr(request)

    def statfs(self, request: Request) -> bytes:
        """Replies with the figures of the node's file system."""
        about = os.statvfs(_path(self._node(request.node)))
        return struct.pack(
            "<5Q4I24x", about.f_blocks, about.f_bfree, about.f_bavail, about.f_files, about.f_ffree, about.f_bsize, about.f_namemax,
            about.f_frsize, 0,
        )  # fmt: skip

    def setxattr(self, request: Request) -> bytes:
        """An extended attribute."""
        size, flags = struct.unpack_from("<2I", request.body)
        name, _, value = request.body[8:].partition(b"\0")
        if len(value) != size:
            raise _error(errno.EINVAL)
        os.setxattr(_path(self._node(request.node)), name, value, flags)
        return b""

    @staticmethod
    def _sized(value: bytes, room: int) -> bytes:
        if not room:
            return struct.pack("<2I", len(value), 0)
        if len(value) > room:
            raise _error(errno.ERANGE)
        return value

    def getxattr(self, request: Request) -> bytes:
        """Returns its value, or the length of it."""
        (room, _), name = struct.unpack_from("<2I", request.body), request.word(8)
        return self._sized(os.getxattr(_path(self._node(request.node)), name), room)

    def listxattr(self, request: Request) -> bytes:
        """The names of all."""
        room, _ = struct.unpack_from("<2I", request.body)
        names = os.listxattr(_path(self._node(request.node)))
        return self._sized(b"".join(os.fsencode(name) + b"\0" for name in names), room)

    def removexattr(self, request: Request) -> bytes:
        """It goes."""
        os.removexattr(_path(self._node(request.node)), request.word())
        return b""

    # -- open files: their numbers are descriptors of ours -----------------------------------------------------------------------

    def _opened(self, node: int, descriptor: int, flags: int) -> bytes:
        how, is_first = flags & os.O_ACCMODE, node not in self._files.values()
        self._files[descriptor] = node
        past_pages = flags & os.O_APPEND or (how == os.O_WRONLY and is_first)
        return _OPENED.pack(descriptor, NOFLUSH if how == os.O_RDONLY else DIRECT_IO if past_pages else 0, 0)

    def open(self, request: Request) -> bytes:
        """Opens a file; fifos, sockets and devices are each node's own. An unlinked file can be opened again only by its openers."""
        (flags,) = struct.unpack_from("<I", request.body)
        node = self._node(request.node)
        about = os.fstat(node)
        if stat.S_ISREG(about.st_mode) and not about.st_nlink and request.node not in self._files.values():
            raise _error(errno.ESTALE)
        return self._opened(request.node, self._open(node, flags), flags)

    @staticmethod
    def _open(node: int, flags: int) -> int:
        if not stat.S_ISREG(mode := os.fstat(node).st_mode):
            raise _error(errno.EISDIR if stat.S_ISDIR(mode) else errno.EACCES)
        return os.open(_path(node), flags & OPEN_FLAGS)

    def create(self, request: Request) -> bytes:
        """Makes and opens a file, or opens the one that is there if it may be."""
        flags, mode, umask, _ = struct.unpack_from("<4I", request.body)
        (name,), parent = request.names(16), self._node(request.node)
        os.umask(umask)
        try:
            descriptor = os.open(name, flags & OPEN_FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode & 0o7777, dir_fd=parent)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            there = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
            descriptor = self._open(there, flags)
            entry = self._enter(there)
        else:
            entry = self._entry(parent, name)
        return entry + self._opened(int.from_bytes(entry[:8], "little"), descriptor, flags)

    def read(self, request: Request) -> bytes:
        """Up to so many bytes from there."""
        handle, offset, size, *_ = _READ.unpack_from(request.body)
        return os.pread(handle, size, offset)

    def write(self, request: Request) -> bytes:
        """Bytes to there, or to the end of what was opened for appending."""
        handle, offset, size, *_ = _READ.unpack_from(request.body)
        data = request.body[_READ.size :]
        if len(data) < size:
            raise _error(errno.EINVAL)
        return struct.pack("<2I", os.pwrite(handle, data[:size], offset), 0)

    def flush(self, request: Request) -> bytes:
        """A descriptor of it was closed."""
        return b""

    def release(self, request: Request) -> bytes:
        """The last one was."""
        (handle,) = struct.unpack_from("<Q", request.body)
        self._files.pop(handle, None)
        os.close(handle)
        return b""

    def fsync(self, request: Request) -> bytes:
        """It is on the disk."""
        handle, flags, _ = struct.unpack_from("<QII", request.body)
        (os.fdatasync if flags & 1 else os.fsync)(handle)
        return b""

    def fallocate(self, request: Request) -> bytes:
        """Allocates as fallocate(2)."""
        handle, offset, length, mode, _ = struct.unpack_from("<3Q2I", request.body)
        if _libc.fallocate(handle, mode, ctypes.c_long(offset), ctypes.c_long(length)):
            raise _error(ctypes.get_errno())
        return b""

    def lseek(self, request: Request) -> bytes:
        """Finds the next data, or hole."""
        handle, offset, whence, _ = struct.unpack_from("<2Q2I", request.body)
        return struct.pack("<Q", os.lseek(handle, offset, whence))

    def setlk(self, request: Request) -> bytes:
        """A lock of the whole node's processes: tried, never waited for."""
        handle, _, start, end, kind, _, _, _ = _LOCK.unpack_from(request.body)
        length = 0 if end >= 2**63 - 1 else end - start + 1
        fcntl.fcntl(handle, _OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
        return b""

    # -- directories -------------------------------------------------------------------------------------------------------------

    def opendir(self, request: Request) -> bytes:
        """Opens one."""
        return _OPENED.pack(os.open(_path(self._node(request.node)), os.O_RDONLY | os.O_DIRECTORY), 0, 0)

    def readdir(self, request: Request) -> bytes:
        """Entries from that place on, as many as there is room for."""
        handle, offset, size, *_ = _READ.unpack_from(request.body)
        with os.scandir(handle) as listing:
            found = [(".", 0), ("..", 0), *sorted((entry.name, entry.inode()) for entry in listing)]
        reply = b""
        for place, (name, inode) in list(enumerate(found, 1))[offset:]:
            data = os.fsencode(name)
            entry = _DIRENT.pack(inode, place, len(data), 0) + data  # 0: the kind is not given
            entry += bytes(-len(entry) % 8)
            if len(reply) + len(entry) > size:
                break
            reply += entry
        return reply


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _meet(listener: socket.socket, context: ssl.SSLContext) -> socket.socket:
    """One of the two connections of a mount, always encrypted."""
    stream = context.wrap_socket(listener.accept()[0], server_side=True)
    hello = list(_HELLO.unpack(_exactly(stream, _HELLO.size)))
    hello[3:5] = [0, 0]
    stream.sendall(_HELLO.pack(*hello))
    return stream


def serve(keys: KeyStore, address: str, port: int) -> None:
    """Serves one mount to its end. Errors: OSError."""
    context = keys.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server((address, port)) as listener:
        print("ready", flush=True)
        requests, replies = _meet(listener, context), _meet(listener, context)
    reference = Reference()
    while True:
        try:
            size, opcode, unique, node, uid, gid, _, _, _ = _IN.unpack(_exactly(requests, _IN.size))
            body = _exactly(requests, size - _IN.size)
        except (EOFError, OSError):
            return
        if opcode == BYE:
            return
        if opcode == PING:
            replies.sendall(_OUT.pack(_OUT.size, PONG, 0))
        elif opcode not in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET: nothing is answered
            error, reply = reference.answer(Request(opcode, unique, node, uid, gid, body))
            replies.sendall(_OUT.pack(_OUT.size + len(reply), error, unique) + reply)


if __name__ == "__main__":
    os.umask(0)
    serve(KeyStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
