"""Images of CRIU that come from another node are code: what they say is done, with the rights of who restores. So they are read against a
list of what one process of ours may have, and written anew; whatever else is in them is refused.

One process with its threads, its memory, the files that it has mapped, its working directory and root, which are the sandbox's. No
descriptor, no timer, no waiting signal, no other process, no namespace.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.context import registers
from engine.criu import images
from engine.criu.images import Entry
from engine.mappings.mappings import HIGHEST_ADDRESS, MAP_SHARED, PAGE, PROT_WRITE
from kernel_helpers.common.errors import FarhomeError

Check = Callable[[object], bool]
Rules = Mapping[str, "Check | Rules"]
"""By the name of a field. A field that is not named is refused."""

MOST_BYTES = 1 << 20
"""Of an image that describes: those of memory and of files are another matter."""
_FORBIDDEN = ("proc", "sys", "dev", ".farhome")


def _number(low: int, high: int) -> Check:
    return lambda value: isinstance(value, int) and low <= value <= high


def _among(*values: object) -> Check:
    return lambda value: value in values


def _text(most: int) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= most


_ANY = _number(-(1 << 63), (1 << 64) - 1)
_ID = _number(0, (1 << 32) - 2)
_ZERO = _among(0, False)
_TIME = {"isec": _ZERO, "iusec": _ZERO, "vsec": _ZERO, "vusec": _ZERO}
_CREDENTIALS = dict.fromkeys(("uid", "gid", "euid", "egid", "suid", "sgid", "fsuid", "fsgid", "groups"), _ID)
_CAPABILITIES = {f"cap_{name}": _ANY for name in ("inh", "prm", "eff", "bnd", "amb")}
_DESCRIPTOR = (
    "entry_number", "base_addr", "limit", "seg_32bit", "contents_h", "contents_l", "read_exec_only", "limit_in_pages", "seg_not_present",
    "usable",
)  # fmt: skip
_REGISTERS = (
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax", "ip", "cs", "flags", "sp",
    "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip
_XSAVE: Rules = {
    **{name: _ANY for name, _, _ in registers.COMPONENTS},
    "xstate_bv": lambda value: isinstance(value, int) and not value & ~registers.HELD,
    "cet": {"cet": _ZERO, "ssp": _ZERO},  # in images of each processor that has it; no process of ours uses a shadow stack
}
_MANY = {
    "st_space": (32,), "xmm_space": (64,), "padding": (24,), "ymmh_space": (64,), "bndreg_state": (8,), "bndcsr_state": (2,),
    "opmask_reg": (8,), "zmm_upper": (64,), "hi16_zmm": (128,), "pkru": (1, 2), "tls": (3,), "groups": range(1 << 16),
    "rlimits": range(17), "sigactions": range(65), "mm_saved_auxv": range(129), "vmas": range(1 << 17), "threads": range(1, 1 << 16),
}  # fmt: skip
"""How many there may be of what there is more than one of; two of the rest (capabilities)."""

_CORE: Rules = {
    "mtype": _among(1),
    "thread_info": {
        "clear_tid_addr": _ANY,
        "gpregs": dict.fromkeys(_REGISTERS, _ANY) | {"mode": _among(1)},
        "fpregs": dict.fromkeys(("cwd", "swd", "twd", "fop", "rip", "rdp", "mxcsr", "mxcsr_mask", "st_space", "xmm_space", "padding"), _ANY)
        | {"xsave": _XSAVE},
        "tls": dict.fromkeys(_DESCRIPTOR, _ANY),
    },
    "tc": {
        "task_state": _among(3), "exit_code": _ZERO, "personality": _ANY, "flags": _ANY, "blk_sigset": _ANY, "comm": _text(16),
        "timers": {"real": _TIME, "virt": _TIME, "prof": _TIME},
        "rlimits": {"rlimits": {"cur": _ANY, "max": _ANY}},
        "child_subreaper": _ZERO, "membarrier_registration_mask": _ANY, "stop_signo": _number(0, 64), "signals_s": {},
        "sigactions": dict.fromkeys(("sigaction", "flags", "restorer", "mask"), _ANY) | {"compat_sigaction": _ZERO},
    },
    "thread_core": {
        "futex_rla": _ANY, "futex_rla_len": _ANY, "sched_nice": _number(-20, 19), "sched_policy": _among(0, 3, 5), "sched_prio": _ZERO,
        "blk_sigset": _ANY, "sas": dict.fromkeys(("ss_sp", "ss_size", "ss_flags"), _ANY), "comm": _text(16), "cg_set": _ANY,
        "creds": {**_CREDENTIALS, **_CAPABILITIES, "secbits": _ZERO, "no_new_privs": _ZERO},
        "signals_p": {},
        "rseq_entry": dict.fromkeys(("rseq_abi_pointer", "rseq_abi_size", "signature"), _ANY),
    },
}  # fmt: skip
_STATUS = 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 512 | 4096 | 16384
"""VMA_AREA_: REGULAR, STACK, VSYSCALL, VDSO, HEAP, FILE_PRIVATE, FILE_SHARED, ANON_PRIVATE, VVAR, MEMFD; none that is shared without a
file."""
_FLAGS = 0x1 | 0x2 | 0x20 | 0x100 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x40000 | 0x3F << 26
_MM: Rules = {
    **{
        f"mm_{name}": _ANY
        for name in ("start_code", "end_code", "start_data", "end_data", "start_stack", "start_brk", "brk", "arg_start", "arg_end",
                     "env_start", "env_end", "saved_auxv")
    },
    "exe_file_id": _ANY, "dumpable": _number(0, 1), "thp_disabled": _among(False, True),
    "vmas": {
        "start": _number(0, 1 << 64), "end": _number(0, 1 << 64), "pgoff": _ANY, "shmid": _ANY, "prot": _number(0, 7),
        "flags": lambda value: isinstance(value, int) and not value & ~_FLAGS,
        "status": lambda value: isinstance(value, int) and not value & ~_STATUS,
        "fd": _among(-1), "madv": _ANY, "fdflags": _number(0, 2),
    },
}  # fmt: skip
_OWNER = {"uid": _ID, "euid": _ID, "pid": _ZERO, "pid_type": _ZERO, "signum": _ZERO}
_OPEN = os.O_ACCMODE | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NOATIME | 0x8000


def _flags(value: object) -> bool:
    return isinstance(value, int) and not value & ~_OPEN


def _path(value: object) -> bool:
    """Where a sandbox may have a file of the program's, or its root."""
    if not isinstance(value, str) or not value.startswith("/") or len(value) >= 4096 or "\0" in value:
        return False
    parts = value.split("/")[1:]
    return value == "/" or (
        all(part not in ("", ".", "..") for part in parts) and (parts[0] not in _FORBIDDEN or parts[:2] == ["dev", "shm"])
    )


_FILES: Rules = {
    "type": _among(1, 18), "id": _ANY,
    "reg": {"id": _ANY, "flags": _flags, "pos": _number(0, 1 << 63), "fown": _OWNER, "name": _path, "mnt_id": _ANY, "size": _ANY},
    "memfd": {"id": _ANY, "flags": _flags, "pos": _number(0, 1 << 63), "fown": _OWNER, "inode_id": _ANY},
}  # fmt: skip
_NAMESPACES = {f"{name}_ns_id": _ANY for name in ("pid", "net", "ipc", "uts", "mnt", "user", "cgroup", "time")}
_IDS: Rules = {**{f"{name}_id": _ANY for name in ("vm", "files", "fs", "sighand")}, **_NAMESPACES}
_ONE = {"INVENTORY", "PSTREE", "CORE", "MM", "IDS", "FS", "SECCOMP", "GHOST_FILE"}
RULES: dict[str, Rules] = {
    "INVENTORY": {
        "img_version": _number(1, 2), "fdinfo_per_id": _among(True), "ns_per_id": _among(True), "root_ids": _IDS, "root_cg_set": _ANY,
        "lsmtype": _number(0, 2), "dump_uptime": _ANY, "network_lock_method": _ANY, "dump_criu_run_id": _text(64), "plugins_entry": {},
    },
    "PSTREE": {**{name: _number(1, 1 << 22) for name in ("pid", "pgid", "sid", "threads")}, "ppid": _ZERO},
    "CORE": _CORE,
    "MM": _MM,
    "IDS": _IDS,
    "FS": {"cwd_id": _ANY, "root_id": _ANY, "umask": _number(0, 0o777)},
    "FILES": _FILES,
    "SECCOMP": {},
    "PAGEMAP": {"pages_id": _ANY, "vaddr": _number(0, 1 << 64), "nr_pages": _number(1, 1 << 40), "flags": _among(4, 6)},
    "MEMFD_INODE": {
        "name": _text(256), "uid": _ID, "gid": _ID, "size": _number(0, 1 << 40), "shmid": _ANY, "seals": _number(0, 31), "inode_id": _ANY,
        "mode": _number(0, 0xFFFF),
    },
    "REMAP_FPATH": {"orig_id": _ANY, "remap_id": _ANY, "remap_type": _among(1)},
    "GHOST_FILE": {
        "uid": _ID, "gid": _ID, "mode": lambda value: isinstance(value, int) and stat.S_ISREG(value), "dev": _ANY, "ino": _ANY,
        "atim": {"tv_sec": _ANY, "tv_usec": _ANY}, "mtim": {"tv_sec": _ANY, "tv_usec": _ANY}, "chunks": _among(False, True), "size": _ANY,
    },
}  # fmt: skip


def inspect(directory: Path, pid: int) -> list[int]:
    """Writes the images of process `pid` anew; returns its threads. Errors: FarhomeError, one sentence: they are refused; OSError."""
    there = {path.name for path in directory.iterdir()}
    if not all(stat.S_ISREG((directory / name).lstat().st_mode) for name in there):
        raise FarhomeError("the images hold what is no file")
    tree = _read(directory, "pstree.img", "PSTREE")[0]
    threads = list(tree.threads)
    if tree.pid != pid:
        raise FarhomeError(f"the images hold process {tree.pid}, not {pid}")
    if pid not in threads or len(set(threads)) != len(threads) or {tree.pgid, tree.sid} != {pid}:
        raise FarhomeError(f"the images of process {pid} hold threads that cannot be its own")
    kinds = {"pstree.img": "PSTREE", "inventory.img": "INVENTORY", "files.img": "FILES", "seccomp.img": "SECCOMP"}
    kinds |= {f"core-{tid}.img": "CORE" for tid in threads}
    kinds |= {f"{kind.lower()}-{pid}.img": kind for kind in ("MM", "PAGEMAP", "IDS", "FS")}
    for name in there - set(kinds):
        word, _, number = name.removesuffix(".img").rpartition("-")
        kind = {"ghost-file": "GHOST_FILE", "pagemap-shmem": "PAGEMAP"}.get(word) if number.isdigit() else None
        kind = kind or {"memfd.img": "MEMFD_INODE", "remap-fpath.img": "REMAP_FPATH"}.get(name)
        if kind is not None:
            kinds[name] = kind
        elif word != "pages" or not number.isdigit() or not name.endswith(".img"):
            raise FarhomeError(f"the images of process {pid} hold {name}, which a process that moves does not have")
    missing = set(kinds) - there - {"seccomp.img"}
    if missing:
        raise FarhomeError(f"the images of process {pid} lack {min(missing)}")
    read = {name: _read(directory, name, kind) for name, kind in sorted(kinds.items()) if name in there}
    read["seccomp.img"] = _read_empty()
    used = {_pages(directory, name, entries) for name, entries in read.items() if kinds[name] == "PAGEMAP"}
    left = {name for name in there if name.startswith("pages-")} - used
    if left:
        raise FarhomeError(f"the images of process {pid} hold {min(left)}, which is no part of its memory")
    _look(read, kinds, pid)
    for name, entries in read.items():
        if kinds[name] != "GHOST_FILE":
            images.store(directory / name, kinds[name], entries)
    return threads


def _read(directory: Path, name: str, kind: str) -> list[Entry]:
    """The entries that are allowed, made anew. Errors: FarhomeError."""
    path = directory / name
    if not path.exists():
        raise FarhomeError(f"{name} is no image of a process: it is missing")
    if kind not in ("MM", "PAGEMAP", "FILES", "GHOST_FILE") and path.stat().st_size > MOST_BYTES:
        raise FarhomeError(f"{name} is no image of a process: it is too long")
    entries = images.first(path, kind) if kind == "GHOST_FILE" else images.load(path, kind)
    if kind in _ONE and len(entries) != 1:
        raise FarhomeError(f"{name} holds {len(entries)} entries, and one process has one")
    return [_made_anew(entry, RULES[kind], name) for entry in entries]


def _read_empty() -> list[Entry]:
    return [images.KINDS["SECCOMP"]()]


def _made_anew(entry: Entry, rules: Rules, where: str) -> Entry:
    size = entry.ByteSize()
    entry.DiscardUnknownFields()
    if entry.ByteSize() != size:
        raise FarhomeError(f"{where} says what we do not know")
    made = type(entry)()
    for field, value in entry.ListFields():
        rule, place = rules.get(field.name), f"{where}, {field.name}"
        if rule is None:
            raise FarhomeError(f"{place}: a process that moves does not have that")
        several = list(value) if hasattr(value, "extend") else None
        if several is not None and len(several) not in _MANY.get(field.name, (1, 2)):
            raise FarhomeError(f"{place}: {len(several)} are not as many as there can be")
        for item in [value] if several is None else several:
            if isinstance(rule, Mapping):
                part = _made_anew(item, rule, place)
                getattr(made, field.name).CopyFrom(part) if several is None else getattr(made, field.name).append(part)
            elif not rule(item):
                raise FarhomeError(f"{place}: {item!r:.60} is not what a process that moves has")
            elif several is None:
                setattr(made, field.name, item)
            else:
                getattr(made, field.name).append(item)
            if isinstance(rule, Mapping) and several is None:
                getattr(made, field.name).SetInParent()
    return made


def _pages(directory: Path, name: str, entries: list[Entry]) -> str:
    """The file of its pages, which is as long as it is to be."""
    file = f"pages-{entries[0].pages_id}.img" if entries else ""
    wanted = sum(entry.nr_pages for entry in entries[1:]) * PAGE
    try:
        size = (directory / file).stat().st_size
    except OSError:
        raise FarhomeError(f"{name}: its pages are missing") from None
    if wanted != size:
        raise FarhomeError(f"{name} names {wanted} bytes of pages, and there are {size}")
    return file


def _look(read: Mapping[str, list[Entry]], kinds: Mapping[str, str], pid: int) -> None:
    """What fields have to do with one another; what we know better is set."""
    root = read["inventory.img"][0].root_ids
    read["inventory.img"][0].lsmtype = 0
    images.same_namespaces(read[f"ids-{pid}.img"][0], root)
    end = 0
    for vma in read[f"mm-{pid}.img"][0].vmas:
        if not end <= vma.start < vma.end or (vma.start | vma.end) % PAGE or (vma.end > HIGHEST_ADDRESS and not vma.status & 4):
            raise FarhomeError(f"mm-{pid}.img: memory without sound bounds")
        if vma.flags & MAP_SHARED and vma.prot & PROT_WRITE:
            raise FarhomeError(f"mm-{pid}.img: memory that others could share")
        end = vma.end
    for name, entries in read.items():
        if kinds[name] == "CORE":
            if entries[0].HasField("tc") != (name == f"core-{pid}.img"):
                raise FarhomeError(f"{name} is not that of a thread")
            entries[0].thread_core.sched_nice = max(0, entries[0].thread_core.sched_nice)
            entries[0].thread_core.cg_set = read["inventory.img"][0].root_cg_set
            images.strip_core(entries[0])
    files = {entry.id: entry for entry in read["files.img"]}
    for number in (read[f"fs-{pid}.img"][0].cwd_id, read[f"fs-{pid}.img"][0].root_id):
        if number not in files or files[number].reg.name != "/":
            raise FarhomeError(f"fs-{pid}.img: its root is not that of the sandbox")
