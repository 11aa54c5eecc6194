"""Python face of vmas.c: the flags of a process's mappings in a moment, whatever their size.

The kernel's bits are not promised to anybody. So they are tried first, on mappings of our own of which /proc/self/smaps shows the flags:
where one differs, or BPF cannot be used, there is nothing to be had here.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
import os
import re
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from kernel_helpers.common import library
from kernel_helpers.pages.pages import Span, unwatch, watch, watch_begin
from kernel_helpers.pages.tables.plain import BIT, WATCHED, Table

BITS = {
    "gd": 8, "uw": 12, "lo": 13, "sr": 15, "rr": 16, "dc": 17, "lf": 19, "ac": 20, "nr": 21, "wf": 25, "dd": 26, "hg": 29, "nh": 30,
    "mg": 31, "dp": 40,
}  # fmt: skip
"""Names in smaps -> bits of vm_flags (include/linux/mm.h)."""
_MAY_BE_SEALED = 1 << 42 | 1 << 63
"""VM_SEALED since Linux 6.17, and before; what else they may mean, smaps shows."""
_KERNELS_OWN = ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]")
ROOM, MOST = 1 << 17, 1 << 20
"""mappings: for so many there is room at first, and in the end"""
_WORDS = 4
"""of struct vma"""
_PLACES = {name: bit.bit_length() - 1 for name, bit in {**BIT, "uw": WATCHED}.items()}
_PAGE = 4096
_PRIVATE_ANONYMOUS, _NORESERVE, _FIXED, _DROPPABLE_ANONYMOUS = 0x22, 0x4000, 0x10, 0x28
_ADVICE = {"sr": 2, "rr": 1, "dc": 10, "wf": 18, "dd": 16, "hg": 14, "nh": 15, "mg": 12}
_USERFAULTFD, _MLOCK2 = 323, 325
_HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) *(.*)\n((?:[A-Z].*\n)*)", re.MULTILINE)
_FLAGS = re.compile(r"^VmFlags:(.*)", re.MULTILINE)

log = logging.getLogger("kernel_helpers.pages.tables.vmas")


class _Layout(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "iterator", "meta", "vma", "sequence", "start", "end", "flags", "file", "operations", "name", "mm", "start_brk", "brk",
            "start_stack",
        )
    ]  # fmt: skip


_program: tuple[int, int] | None = None
"""our process id, and the descriptor that it has"""
_opening = threading.Lock()


@functools.cache
def _native() -> ctypes.CDLL:
    i, pointer, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    return library.functions(
        ("farhome_vmas_layout", i, [pointer]),
        ("farhome_vmas_open", i, [pointer]),
        ("farhome_vmas_read", ctypes.c_int64, [i, i, pointer, size]),
        ("farhome_vmas_flags", ctypes.c_uint64, [pointer, size]),
        ("farhome_pages_any", i, [i, pointer, size, pointer]),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


@functools.cache
def layout() -> _Layout | None:
    """Return where this kernel has what; None, said in the log: it cannot be asked. Takes 20 ms, once; what is forked has it already."""
    found = _Layout()
    try:
        _check(_native().farhome_vmas_layout(ctypes.byref(found)), "the kernel's description of itself")
        program = _check(_native().farhome_vmas_open(ctypes.byref(found)), "a program over mappings")
        try:
            difference = _difference(program)
        finally:
            os.close(program)
    except OSError as error:
        log.info("mappings are read from smaps: %s", error)
        return None
    if difference:
        log.warning("mappings are read from smaps: %s", difference)
        return None
    return found


def flags(pid: int, room: int = ROOM) -> dict[Span, frozenset[str]] | None:
    """Of each mapping, the names in BITS that it has. None: it cannot be found this way. Errors: OSError."""
    return _read(_own_program(), pid, room) if layout() is not None else None


def table(pid: int, room: int = ROOM) -> tuple[Table, list[tuple[int, int, int]], bool] | None:
    """Return its plain mappings, whose pages are not counted, of each other its start, its end and the kernel's flags, of which names()
    shows some, and whether any mapping may be sealed. None, and errors: as flags()."""
    if layout() is None:
        return None
    reported, count = _numbers(_own_program(), pid, room)
    may_be_sealed = _may_be_sealed(reported, count)
    plain = Table.taken(reported, count, [(bit, _PLACES[name]) for name, bit in BITS.items()])
    left = reported[: _WORDS * (count - len(plain))]
    return plain, list(zip(left[::_WORDS], left[1::_WORDS], left[2::_WORDS], strict=True)), may_be_sealed


def _own_program() -> int:
    """Where there is a layout. Errors: OSError."""
    global _program
    where = layout()
    assert where is not None
    with _opening:
        if _program is None or _program[0] != os.getpid():
            _program = os.getpid(), _check(_native().farhome_vmas_open(ctypes.byref(where)), "a program over mappings")
        return _program[1]


def _read(program: int, pid: int, room: int) -> dict[Span, frozenset[str]]:
    return {span: names(bits) for span, (bits, _) in _reported(program, pid, room).items()}


def _reported(program: int, pid: int, room: int) -> dict[Span, tuple[int, bool]]:
    """Of each mapping its flags, and whether it may have a file or a name."""
    reported, count = _numbers(program, pid, room)
    each = [reported[at : at + _WORDS] for at in range(0, _WORDS * count, _WORDS)]
    return {(start, end): (bits, bool(other)) for start, end, bits, other in each}


def _numbers(program: int, pid: int, room: int) -> tuple[ctypes.Array[ctypes.c_uint64], int]:
    """Of each mapping its start, end and flags, and whether it may have a file or a name; and how many they are."""
    memory = mmap.mmap(-1, _WORDS * 8 * room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # of which what is not written costs nothing
    found = (ctypes.c_uint64 * (_WORDS * room)).from_buffer(memory)
    count = _native().farhome_vmas_read(program, pid, found, room)
    if count == -7 and room < MOST:  # E2BIG
        return _numbers(program, pid, room * 4)
    return found, _check(count, f"mappings of process {pid}")


@functools.cache
def names(bits: int) -> frozenset[str]:
    """Those of BITS that are set."""
    return frozenset(name for name, bit in BITS.items() if bits >> bit & 1)


def _may_be_sealed(reported: ctypes.Array[ctypes.c_uint64], count: int) -> bool:
    return bool(_native().farhome_vmas_flags(reported, count) & _MAY_BE_SEALED)


def is_sealed(pid: int) -> bool:
    """Return whether any mapping of it, but the kernel's own, is sealed (mseal, Linux 6.10). Errors: OSError."""
    if layout() is not None:
        if not _may_be_sealed(*_numbers(_own_program(), pid, ROOM)):
            return False
    elif tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2]) < (6, 10):
        return False
    header = ""
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as smaps:
        for line in smaps:
            first = line.split(" ", 1)[0]
            if not first.endswith(":"):
                header = line
            elif first == "VmFlags:" and "sl" in line.split() and not header.rstrip().endswith(_KERNELS_OWN):
                return True
    return False


def has_pages(pid: int, spans: Sequence[Span]) -> list[bool]:
    """Of each of these, whether the process has pages of its own in it. Errors: OSError."""
    ranges = (ctypes.c_uint64 * (3 * len(spans)))(*[number for start, end in spans for number in (start, end, 0)])
    answers = (ctypes.c_uint8 * len(spans))()
    _check(_native().farhome_pages_any(pid, ranges, len(spans), answers), f"pages of process {pid}")
    return [bool(answer) for answer in answers]


# -- whether the bits mean what we think ----------------------------------------------------------------------------------


def _difference(program: int) -> str:
    """What the bits say otherwise than smaps does, of all mappings of ours; nothing, as a rule. Errors: OSError."""
    with _samples():
        for _ in range(3):  # an allocation between the two looks is no difference
            reported = _reported(program, os.getpid(), ROOM)
            with open("/proc/self/smaps", encoding="utf-8", errors="replace") as smaps:
                text = smaps.read()
            said = {}
            for start, end, inode, name, body in _HEADER.findall(text):
                words = _FLAGS.search(body)
                has_words = BITS.keys() & (words.group(1).split() if words else ())
                said[(int(start, 16), int(end, 16))] = has_words, inode != "0" or bool(name)
            common = reported.keys() & said.keys()
            wrong = next((span for span in common if not _agree(reported[span], said[span])), None)
            if wrong is None and len(common) * 2 > len(said):
                return ""
    if wrong is None:
        return "the mappings do not stand still"
    return f"{sorted(names(reported[wrong][0]))} for {sorted(said[wrong][0])}, file or name: {reported[wrong][1]} for {said[wrong][1]}"


def _agree(reported: tuple[int, bool], said: tuple[Set[str], bool]) -> bool:
    """What is said about a mapping with what smaps says. One without a name may be asked about, not the other way."""
    return names(reported[0]) == said[0] and reported[1] >= said[1]


@contextmanager
def _samples() -> Iterator[None]:
    """Mappings of ours with every flag that can be had."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    kinds = [*_ADVICE, "nr", "dp", "lo", "lf", "uw", ""]
    size = 2 * len(kinds) * _PAGE
    base = libc.mmap(None, size, 0, _PRIVATE_ANONYMOUS | _NORESERVE, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    watcher = -1
    try:
        for index, kind in enumerate(kinds):
            at = base + 2 * index * _PAGE
            how = _DROPPABLE_ANONYMOUS if kind == "dp" else _PRIVATE_ANONYMOUS | (_NORESERVE if kind == "nr" else 0)
            libc.mmap(at, _PAGE, 3, how | _FIXED, -1, 0)
            if kind in _ADVICE:
                libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_PAGE), _ADVICE[kind])
            elif kind in ("lo", "lf"):
                libc.syscall(_MLOCK2, ctypes.c_void_p(at), ctypes.c_size_t(_PAGE), int(kind == "lf"))
            elif kind == "uw":
                watcher = libc.syscall(_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK | 1)
                if watcher < 0:
                    raise OSError(ctypes.get_errno(), "userfaultfd")
                watch_begin(watcher)
                watch(watcher, (at, at + _PAGE))
        yield
    finally:
        if watcher >= 0:
            unwatch(watcher, (base, base + size))
            os.close(watcher)
        libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(size))
