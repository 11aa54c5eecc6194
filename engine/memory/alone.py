"""Memory that a process has mapped shared, and that nobody else has: anonymous shared memory, memfds, files of a tmpfs without a name.

Each such object goes along with the process, as an object: whole, also what of it is not mapped, and mapped wherever it was. In a context
each has a name of its own, by which mappings know it, and an address at which there is room for all of it for the time being:

    engine/leaving/refusal.py           why_not(): nobody else has it, now; once more when the process stands still
    engine/context/capture.py           named(): the context's objects, its mappings bearing their names
    engine/pour/precopy.py           send(): what they hold, before all other pages
    a vessel                    make(): the objects, new, each mapped at its address; then take(), and refill.py makes the mappings
    a stub that comes home      join(): the very objects that it has kept, emptied; then the same
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import resource
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence, Set
from collections.abc import Mapping as Dictionary
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from engine.files.files import FileMapping, by_mapping, file_system
from engine.files.handover import give_descriptor
from engine.mappings.address_space import Maps, exceptional, renamed
from engine.mappings.mappings import MAP_PRIVATE, MAP_SHARED, PAGE, PROT_READ, PROT_WRITE, Mapping, free_address, read_places
from kernel_helpers.common import library
from kernel_helpers.inspection.sharing import MAPPED, OPEN, who_has
from kernel_helpers.pages.pages import PageRange, PageTotals, receive_own_pages
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, U64
from kernel_helpers.stream.stream import Connection, lent

MOST = 4096
"""Objects of one process."""
IN_IMAGES = "it has memory mapped shared, which images of CRIU do not hold"
_LOST = " (deleted)"
_ANONYMOUS = "/dev/zero"
_MEMFD = "/memfd:"
_TMPFS = 0x01021994
_LOWEST = 0x1000_0000_0000
"""Where room for them is looked for: above heaps of programs without position, below all that stubs and libraries use."""
_SEAL_WRITE = 0x8 | 0x10  # F_SEAL_WRITE, F_SEAL_FUTURE_WRITE
_F_GET_SEALS = 1034
_LABEL = 200
_MFD_CLOEXEC, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE, _MADV_REMOVE = 1, 0x20, 0x4000, 0x100000, 9


@dataclass(frozen=True)
class SharedObject:
    """One of them. name: what mappings of it call it; label: what it is called as a memfd, empty for anonymous memory; size: bytes; at:
    where there is room for all of it."""

    name: str
    label: str
    size: int
    at: int

    @property
    def length(self) -> int:
        """Bytes that are mapped of it, all in all."""
        return max(1, -(-self.size // PAGE)) * PAGE

    @property
    def span(self) -> tuple[int, int]:
        return self.at, self.at + self.length


class _Object(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("size", ctypes.c_uint64), ("descriptor", ctypes.c_int32), ("padding", ctypes.c_int32)]


class _Totals(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("runs", "bytes", "zero_bytes", "checksum")]


@functools.cache
def _native() -> ctypes.CDLL:
    pointer, i = ctypes.c_void_p, ctypes.c_int
    return library.functions(("farhome_objects_send", i, [pointer, ctypes.c_size_t, pointer, i, pointer]))


def may_be(path: str) -> bool:
    """Return whether what is mapped shared may be such an object, by its path."""
    return path.endswith(_LOST) and not path.startswith(("/SYSV", "/anon_hugepage", "/[aio]", "/secretmem"))


def why_not(pid: int, maps: Sequence[FileMapping]) -> Iterator[str]:
    """What keeps a process at home of what it has mapped shared, may_be() such memory, and can write or is without a name: that others
    have it, too, or could. `maps`: all of its mappings. Errors: OSError."""
    shared: dict[tuple[str, int], FileMapping] = {}
    for m in maps:
        if m.inode and m.permissions[3] == "s" and may_be(m.path):
            shared.setdefault((m.device, m.inode), m)
    if not shared:
        return
    if len(shared) > MOST:
        yield f"it has more than {MOST} pieces of shared memory"
        return
    both = {(m.device, m.inode) for m in maps if m.permissions[3] == "p"} & shared.keys()
    written = {(m.device, m.inode) for m in maps if m.permissions[1] == "w"}
    alone: list[tuple[FileMapping, tuple[int, int]]] = []
    for key, m in shared.items():
        what = f"it has {m.path.removesuffix(_LOST)} mapped shared{' and writable' if key in written else ', which is deleted'}"
        with suppress(FileNotFoundError):  # it has been unmapped
            inode = _look(pid, m)
            if inode is None:
                yield what
            elif key in both:
                yield f"{what}, and privately as well"
            else:
                alone.append((m, inode))
    if not alone:
        return
    holder = who_has(pid, [inode for _, inode in alone], all(m.path == _ANONYMOUS + _LOST for m, _ in alone))
    if holder is None:
        return
    path = alone[holder.object][0].path.removesuffix(_LOST)
    if holder.how == MAPPED and path == _ANONYMOUS:
        yield f"it shares anonymous memory with process {holder.pid}"
    elif holder.how == MAPPED:
        yield f"it has {path} mapped shared, and so has process {holder.pid}"
    elif holder.how == OPEN:
        yield f"it has {path} mapped shared, and {'it' if holder.pid == pid else f'process {holder.pid}'} has that open"
    else:
        yield f"it has {path} mapped shared, and a descriptor of that may be on its way to process {holder.pid}"


def _look(pid: int, mapping: FileMapping) -> tuple[int, int] | None:
    """The object's device and inode; None: it has a name, can be shared otherwise, or is of a kind that does not move. Errors: OSError."""
    descriptor = os.open(by_mapping(pid, mapping.start, mapping.end), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink or file_system(descriptor) != _TMPFS:
            return None
        try:
            if fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEAL_WRITE:
                return None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        return status.st_dev, status.st_ino
    finally:
        os.close(descriptor)


def name_at_home(path: str, inode: int) -> str:
    """Return what a context calls an object of the home's."""
    return f"{path.removesuffix(_LOST)}.{inode}{_LOST}"


def named(pid: int, maps: Sequence[Mapping], known: Dictionary[str, str] | None = None) -> tuple[Maps, tuple[SharedObject, ...]]:
    """Return the objects of a process that stands still, and its mappings, bearing their names. known: of a guest, the names of those that
    came with it, by identity (see Mapping). Errors: OSError."""
    sizes: dict[str, tuple[str, str, int]] = {}
    for m in exceptional(maps):
        if not m.is_file or m.private or m.identity in sizes or not may_be(m.path):
            continue
        if known is not None and not m.path.startswith((_ANONYMOUS + _LOST, _MEMFD)):
            continue  # a file of the node, shown to it
        name = name_at_home(m.path, int(m.identity.split()[1])) if known is None else known.get(m.identity) or _new_name()
        bare = m.path.removesuffix(_LOST)
        label = "" if bare == _ANONYMOUS else bare.removeprefix(_MEMFD) if bare.startswith(_MEMFD) else bare.rpartition("/")[2]
        sizes[m.identity] = name, label[:_LABEL], os.stat(by_mapping(pid, m.start, m.end)).st_size
    if not sizes:
        return Maps.of(maps), ()
    taken = Maps.of(maps).spans
    objects = []
    for name, label, size in sizes.values():
        at = free_address(taken, size + PAGE, _LOWEST)
        made = SharedObject(name, label, size, at)
        objects.append(made)
        taken.append(made.span)
    whole = Maps.of(maps)
    others = [replace(m, path=sizes[m.identity][0]) if m.identity in sizes and not m.private else m for m in whole.others]
    return whole.with_others(others), tuple(sorted(objects, key=lambda one: one.at))


def _new_name() -> str:
    """Of memory that a guest has made."""
    return f"{_ANONYMOUS}.{secrets.token_hex(8)}{_LOST}"


def send(pid: int, maps: Iterable[Mapping], objects: Sequence[SharedObject], stream: int | Connection, timeout: float) -> PageTotals:
    """Return what they hold, out of a process that stands still; maps: a context's. Errors: OSError."""
    totals, places = _Totals(), {m.path: m for m in exceptional(maps) if m.is_file and not m.private}
    with ExitStack() as opened:
        wanted = (_Object * len(objects))()
        for one, item in zip(objects, wanted, strict=True):
            place = places[one.name]
            descriptor = os.open(by_mapping(pid, place.start, place.end), os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            item.start, item.size, item.descriptor = one.at, one.size, descriptor
        with lent(stream) as connection:
            result = _native().farhome_objects_send(wanted, len(objects), connection, int(timeout * 1000), ctypes.byref(totals))
    if result < 0:
        raise OSError(-result, f"{os.strerror(-result)}: sending shared memory of process {pid}")
    return PageTotals(totals.runs, totals.bytes, totals.zero_bytes, totals.checksum)


def take(pid: int, objects: Sequence[SharedObject], stream: int | Connection, timeout: float) -> PageTotals:
    """Receive what send() sends, into the objects that a process has mapped at their addresses. Errors: as receive_own_pages()."""
    return receive_own_pages(pid, [PageRange(*one.span) for one in objects if one.size], stream, timeout)


def unreserved(maps: Iterable[Mapping]) -> frozenset[str]:
    """Names of those objects of a context that are not accounted for where they are mapped (MAP_NORESERVE)."""
    return frozenset(m.path for m in exceptional(maps) if m.is_file and not m.private and "nr" in m.vmflags)


def _flags(one: SharedObject, spared: Set[str]) -> int:
    """Of the mapping at its address, from which all others are made, so that it is as they are."""
    return MAP_SHARED | _MAP_FIXED_NOREPLACE | (_MAP_NORESERVE if one.name in spared else 0)


def make(frozen: Frozen, objects: Sequence[SharedObject], scratch: int, spared: Set[str]) -> dict[str, str]:
    """New ones in a process that stands still, each mapped at its address; returns their names by identity. scratch: memory in it; spared:
    see unreserved(). Errors: OSError."""
    for one in objects:
        flags, descriptor = _flags(one, spared), U64
        is_file = bool(one.label) or not one.size
        if is_file:
            frozen.write(scratch, os.fsencode(one.label) + b"\0")
            descriptor = frozen.call(SYS.memfd_create, scratch, _MFD_CLOEXEC)
            frozen.call(SYS.ftruncate, descriptor, one.size)
        else:
            flags |= _MAP_ANONYMOUS
        try:
            frozen.call(SYS.mmap, one.at, one.length, PROT_READ | PROT_WRITE, flags, descriptor, 0)
        finally:
            if is_file:
                frozen.call(SYS.close, descriptor)
    return _identities(frozen.pid, objects)


def _identities(pid: int, objects: Sequence[SharedObject]) -> dict[str, str]:
    wanted = {one.at: one.name for one in objects}
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        found = {}
        for line in maps:
            span, _, _, device, inode, *_ = line.split(None, 5)
            name = wanted.get(int(span.partition("-")[0], 16))
            if name is not None:
                found[f"{device} {inode}"] = name
    return found


def join(frozen: Frozen, objects: Sequence[SharedObject], maps: Iterable[Mapping], scratch: int, spared: Set[str]) -> dict[str, str]:
    """Return the objects that a stub has kept, by its mappings, which bear their names; emptied, and mapped at their addresses; those that
    came to be away are made. Returns names by identity of the latter. Errors: OSError."""
    places = {m.path: m for m in maps if m.is_file and not m.private}
    for one in objects:
        if (place := places.get(one.name)) is None:
            continue
        descriptor = os.open(by_mapping(frozen.pid, place.start, place.end), os.O_RDWR | os.O_CLOEXEC)
        try:
            theirs = give_descriptor(frozen, descriptor, scratch)
        finally:
            os.close(descriptor)
        try:
            frozen.call(SYS.mmap, one.at, one.length, PROT_READ | PROT_WRITE, _flags(one, spared), theirs, 0)
        finally:
            frozen.call(SYS.close, theirs)
        frozen.call(SYS.madvise, one.at, one.length, _MADV_REMOVE)
    return make(frozen, [one for one in objects if one.name not in places], scratch, spared)


@contextmanager
def beside(
    stub: Frozen, objects: Sequence[SharedObject], spared: Set[str], names: Dictionary[str, str], stream: int | Connection,
    timeout: float = 30.0,
) -> Iterator[dict[str, str]]:  # fmt: skip
    """Meanwhile a stub that comes home has its objects at their addresses, with what they hold (from `stream`); spared: see unreserved();
    names: what the context calls its files, by identity. Gives such names of those objects that came to be away. Errors: OSError; then,
    and after any other error, they are not there."""
    if not objects:
        yield {}
        return
    with unlimited(stub.pid, objects):
        try:
            maps = renamed(read_places(stub.pid), names)
            at = free_address([*((m.start, m.end) for m in maps), *(one.span for one in objects)], PAGE)
            flags = MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
            scratch = stub.call(SYS.mmap, at, PAGE, PROT_READ | PROT_WRITE, flags, U64, 0)
            try:
                made = join(stub, objects, maps, scratch, spared)
            finally:
                stub.call(SYS.munmap, scratch, PAGE)
            take(stub.pid, objects, stream, timeout)
            yield made
        except BaseException:
            leave(stub, objects)
            raise


def leave(frozen: Frozen, objects: Sequence[SharedObject]) -> None:
    """Takes away what make() or join() have mapped, whatever has become of it."""
    for one in objects:
        with suppress(OSError):
            frozen.call(SYS.munmap, one.at, one.length)


@contextmanager
def unlimited(pid: int, objects: Sequence[SharedObject]) -> Iterator[None]:
    """Meanwhile its limit on address space does not count: what is mapped twice for the time being is the program's once."""
    if not objects:
        yield
        return
    try:
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except PermissionError:  # another user's, and we lack CAP_SYS_RESOURCE: it counts then
        yield
        return
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)


__all__ = [
    "IN_IMAGES", "MOST", "SharedObject", "beside", "join", "leave", "make", "may_be", "name_at_home", "named", "send", "take",
    "unlimited", "unreserved", "why_not",
]  # fmt: skip
