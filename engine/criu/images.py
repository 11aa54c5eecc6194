"""CRIU images as data: what has to be changed in them so that a copy becomes the process itself on another node."""

from __future__ import annotations

import mmap
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.common.library import build_directory

try:
    from pycriu.images import magic
except ImportError:
    sys.path.append(str(build_directory() / "pycriu"))
    from pycriu.images import magic
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pycriu.images.core_pb2 import core_entry, task_kobj_ids_entry
from pycriu.images.fdinfo_pb2 import file_entry
from pycriu.images.fs_pb2 import fs_entry
from pycriu.images.ghost_file_pb2 import ghost_file_entry
from pycriu.images.inventory_pb2 import inventory_entry
from pycriu.images.memfd_pb2 import memfd_inode_entry
from pycriu.images.mm_pb2 import mm_entry
from pycriu.images.pagemap_pb2 import pagemap_entry, pagemap_head
from pycriu.images.pstree_pb2 import pstree_entry
from pycriu.images.remap_file_path_pb2 import remap_file_path_entry
from pycriu.images.seccomp_pb2 import seccomp_entry

CAP_SYS_ADMIN = 21
CAP_SYS_RESOURCE = 24
# Files of a process or thread, named after it. Others end in a number too, which counts something else.
_BY_ID = ("core", "mm", "pagemap", "ids", "fs", "creds", "rule", "timerfd")
_RLIMITS_OF_MEMORY = (resource.RLIMIT_STACK, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_MEMLOCK)

_COMMON = struct.pack("<I", magic.by_name["IMG_COMMON"])
_SIZE = struct.Struct("<I")
KINDS = {"CORE": core_entry, "FILES": file_entry, "MM": mm_entry, "PSTREE": pstree_entry, "SECCOMP": seccomp_entry}
KINDS |= {"PAGEMAP": pagemap_entry, "IDS": task_kobj_ids_entry, "INVENTORY": inventory_entry, "FS": fs_entry}
KINDS |= {"MEMFD_INODE": memfd_inode_entry, "REMAP_FPATH": remap_file_path_entry, "GHOST_FILE": ghost_file_entry}
_FIRST = {"PAGEMAP": pagemap_head}
"""Of kinds whose first entry is another one."""

Entry = Any
"""A protobuf message. Fields that our description does not know are kept as they are."""


def load(path: Path, kind: str) -> list[Entry]:
    """Return the entries of an image of a kind (of KINDS). Errors: FarhomeError when it is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FarhomeError(f"{path.name} is no image of a process: {error}") from error
    return parse(data, kind, path.name)


def first(path: Path, kind: str) -> list[Entry]:
    """Return the first entry of an image after which other bytes come (of a file's content). Errors: FarhomeError, OSError."""
    with path.open("rb") as file:
        data = file.read(1 << 16)
    begin = len(_header(kind)) + _SIZE.size
    size = _SIZE.unpack_from(data, begin - _SIZE.size)[0] if len(data) >= begin else 0
    return parse(data[: begin + size], kind, path.name)


def parse(data: bytes, kind: str, name: str) -> list[Entry]:
    """Return the entries of an image that is in memory; `name`: that of its file. Errors: FarhomeError."""
    try:
        at = len(_header(kind))
        if data[:at] != _header(kind):
            raise ValueError(f"its magic is {data[:at].hex()}")
        entries: list[Entry] = []
        while at < len(data):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            if at + size > len(data):
                raise ValueError("it is cut off")
            entry = _FIRST.get(kind, KINDS[kind]) if not entries else KINDS[kind]
            entries.append(entry.FromString(data[at : at + size]))
            at += size
        return entries
    except (ValueError, struct.error, DecodeError) as error:
        raise FarhomeError(f"{name} is no image of a process: {error}") from error


def store(path: Path, kind: str, entries: Iterable[Entry]) -> None:
    """Writes an image. Errors: OSError."""
    bodies = [entry.SerializeToString() for entry in entries]
    path.write_bytes(_header(kind) + b"".join(_SIZE.pack(len(body)) + body for body in bodies))


def _header(kind: str) -> bytes:
    own = struct.pack("<I", magic.by_name[kind])
    return own if kind == "INVENTORY" else _COMMON + own


def _clear(entry: Entry, *names: str) -> None:
    """Takes fields out; those that this version of CRIU does not know are not there."""
    for name in names:
        if name in entry.DESCRIPTOR.fields_by_name:
            entry.ClearField(name)


def thread_ids(directory: Path) -> list[int]:
    """Process and thread ids that a restore will ask for. Errors: FarhomeError."""
    return [tid for entry in load(directory / "pstree.img", "PSTREE") for tid in (entry.pid, *entry.threads)]


def renumber(directory: Path, pid: tuple[int, int], tids: dict[int, int]) -> None:
    """Gives the one process in the images and its threads other ids. `pid`: (as dumped, wanted); `tids` likewise, the
    main thread included. It leads a session of its own, so session and group are its own id."""
    dumped, wanted = pid
    tree = load(directory / "pstree.img", "PSTREE")
    if len(tree) != 1 or tree[0].pid != dumped:
        raise FarhomeError("the images hold another process than the one that was to move")
    entry = tree[0]
    entry.pid = entry.pgid = entry.sid = wanted
    entry.ppid = 0
    entry.threads[:] = [tids[tid] for tid in entry.threads]
    store(directory / "pstree.img", "PSTREE", tree)
    changed = []
    for path in directory.glob("*.img"):
        name, _, number = path.stem.rpartition("-")
        if name in _BY_ID and number.isdigit() and int(number) in tids:
            # An old and a new id may be the same number: first all away from their names, then to the new ones.
            moved = path.rename(directory / f"{name}-{tids[int(number)]}.renumbered")
            changed.append(moved)
    for path in changed:
        path.rename(path.with_suffix(".img"))


def strip(directory: Path) -> None:
    """Takes out what belongs to the node (or the home) that was left: seccomp filters, no_new_privs, security label,
    login id, out-of-memory score, parent-death signal, modes of files and of their opening.

    The process's capabilities are replaced by CAP_SYS_ADMIN alone, with which it can be given its seccomp filter without
    no_new_privs; the arrival takes that one away before the guest's first instruction.
    """
    for path in directory.glob("core-*.img"):
        image = load(path, "CORE")
        for entry in image:
            strip_core(entry)
        store(path, "CORE", image)
    # CRIU would give the process a time namespace in which its clocks go on where they stood at the dump. They must be those of
    # its home, where its absolute time-outs are kept.
    for path in directory.glob("timens-*.img"):
        path.unlink()
    # Nor one of users, nor control groups (a guest that hops has been in both): where it arrives it is in others already.
    for path in (*directory.glob("userns-*.img"), *directory.glob("cgroup.img")):
        path.unlink()
    namespaces = load(directory / "inventory.img", "INVENTORY")[0].root_ids
    for path in directory.glob("ids-*.img"):
        image = load(path, "IDS")
        for entry in image:
            same_namespaces(entry, namespaces)
        store(path, "IDS", image)
    seccomp = directory / "seccomp.img"
    if seccomp.exists():
        store(seccomp, "SECCOMP", [seccomp_entry()])
    for path in directory.glob("mm-*.img"):
        image = load(path, "MM")
        for entry in image:
            for mapping in entry.vmas:
                if mapping.flags & mmap.MAP_PRIVATE:
                    # How the program had opened the file; a file from the cache can only be read, and that is all it takes.
                    _clear(mapping, "fdflags")
        store(path, "MM", image)
    files = directory / "files.img"
    if files.exists():
        image = load(files, "FILES")
        for entry in image:
            # Content is what counts, and was compared; a file from the cache has another mode.
            if entry.HasField("reg"):
                _clear(entry.reg, "mode")
        store(files, "FILES", image)


def same_namespaces(entry: Entry, root: Entry) -> None:
    """No namespace is made: CRIU makes those that are not the root's."""
    for field in entry.DESCRIPTOR.fields:
        if field.name.endswith("_ns_id"):
            entry.ClearField(field.name)
            if root.HasField(field.name):
                setattr(entry, field.name, getattr(root, field.name))


def strip_core(entry: Entry) -> None:
    """What strip() does to a thread."""
    thread = entry.thread_core
    _clear(thread, "seccomp_mode", "seccomp_filter", "pdeath_sig")
    if thread.HasField("creds"):
        credentials = thread.creds
        credentials.no_new_privs = 0
        _clear(credentials, "lsm_profile", "lsm_sockcreate", "apparmor_data")
        none = [0] * len(credentials.cap_eff)
        only = list(none)
        only[CAP_SYS_ADMIN // 32] = 1 << CAP_SYS_ADMIN % 32
        credentials.cap_inh[:] = none
        if credentials.cap_amb:
            credentials.cap_amb[:] = none
        credentials.cap_eff[:] = only
        credentials.cap_prm[:] = only
    if entry.HasField("tc"):
        _clear(entry.tc, "seccomp_mode", "seccomp_filter", "old_seccomp_mode", "old_seccomp_filter", "loginuid", "oom_score_adj")


def fit_limits(directory: Path, pid: int) -> None:
    """Makes the resource limits such that this node can set them: those on memory as near to the home's as we may,
    the others as wide as ours (the home enforces them, on the calls that it makes)."""
    may_raise = has_capability(CAP_SYS_RESOURCE)
    path = directory / f"core-{pid}.img"
    image = load(path, "CORE")
    for entry in image:
        for number, limit in enumerate(entry.tc.rlimits.rlimits if entry.HasField("tc") else ()):
            ours = resource.getrlimit(number)[1] if number < resource.RLIMIT_RTPRIO + 2 else resource.RLIM_INFINITY
            ceiling = (1 << 64) - 1 if ours == resource.RLIM_INFINITY or may_raise else ours
            if number in _RLIMITS_OF_MEMORY:
                limit.max = min(limit.max, ceiling)
                limit.cur = min(limit.cur, ceiling)
            else:
                limit.max = limit.cur = ceiling if number != resource.RLIMIT_NOFILE else min(limit.max, ceiling)
    store(path, "CORE", image)


def has_capability(number: int) -> bool:
    """Return whether this process has it in effect."""
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False
