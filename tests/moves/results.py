"""Calls for tests/programs/results.c: one line for each row and variant of calls.table that the stub makes with memory of the guest."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kernel_helpers.calls.table import Argument, Class, Row, Shape, SizeKind, Variant, rows

MADE_AT_HOME = (Class.FORWARD, Class.SUM)
OF_THE_MACHINE = {
    "reboot", "settimeofday", "clock_settime", "sethostname", "setdomainname", "mount", "umount2", "swapon", "swapoff",
    "init_module", "finit_module", "delete_module", "acct", "syslog", "quotactl", "quotactl_fd", "bpf", "add_key",
    "request_key", "keyctl", "kexec_file_load", "chroot", "chdir", "statmount", "listmount", "fsopen", "fsconfig",
    "fspick", "open_tree", "open_tree_attr", "move_mount", "mount_setattr", "prlimit64", "setrlimit",
    "sched_setaffinity", "landlock_create_ruleset", "seccomp", "set_mempolicy", "migrate_pages", "adjtimex",
    "clock_adjtime", "sched_setattr",
}  # fmt: skip
"""Calls that change the machine, or this process for good: tests/link tries those in namespaces of their own."""
KINDS = {
    "read": ("file", "pipe", "stream", "datagram", "event"), "readv": ("file", "pipe", "stream", "datagram"), "write": ("writing", "file"),
    "writev": ("writing", "file"), "recvfrom": ("stream", "datagram"), "recvmsg": ("stream", "datagram"), "recvmmsg": ("datagram",),
    "sendto": ("datagram",), "sendmsg": ("stream",), "sendmmsg": ("datagram",), "accept": ("listener",), "accept4": ("listener",),
    "getsockname": ("listener", "internet"), "getpeername": ("stream",), "getsockopt": ("internet", "stream"), "setsockopt": ("internet",),
    "getdents": ("directory",), "getdents64": ("directory",), "epoll_wait": ("epoll",), "epoll_pwait": ("epoll",),
    "epoll_pwait2": ("epoll",), "epoll_ctl": ("epoll",), "timerfd_settime": ("timer",), "timerfd_gettime": ("timer",),
    "connect": ("internet",), "bind": ("internet",), "ioctl": ("terminal", "internet", "file"),
}  # fmt: skip
FIRST = {
    "wait4": {0: -1, 2: 1}, "waitid": {0: 0, 1: 0, 3: 5}, "socketpair": {0: 1, 1: 1, 2: 0}, "poll": {2: 0}, "epoll_wait": {3: 0},
    "epoll_pwait": {3: 0}, "msgrcv": {3: 0, 4: 0x800}, "recvmmsg": {3: 0x40}, "statx": {4: 0x7FF}, "clock_nanosleep": {0: 1},
    "timer_create": {0: 1}, "getsockopt": {1: 1, 2: 3}, "setsockopt": {1: 1, 2: 2},
}  # fmt: skip
"""Numbers that make a call do something."""
_READABLE = struct.pack("<ihh", 0, 1, 0)
CONTENTS = {("poll", 0): _READABLE, ("ppoll", 0): _READABLE, ("timer_create", 1): struct.pack("<QiI", 0, 0, 1)}
"""Contents of memory that make a call do something: descriptor 0 can be read, and no signal comes."""


def lines() -> Iterator[tuple[str, str]]:
    """Names that are unique, and lines of a script."""
    for row in rows():
        if row.name in OF_THE_MACHINE:
            continue
        for number, entry in enumerate((row, *row.variants)):
            if entry.class_ in MADE_AT_HOME and any(a.shape not in (Shape.NUMBER, Shape.TERMINAL) for a in entry.arguments):
                for kind in KINDS.get(row.name, ("file",)):
                    yield row.name, _line(row, entry, number, kind)


def _line(row: Row, entry: Row | Variant, number: int, kind: str) -> str:
    values = dict(FIRST.get(row.name, {}))
    contents: dict[int, bytes] = {i: data for (name, i), data in CONTENTS.items() if name == row.name}
    if isinstance(entry, Variant):
        values[entry.argument] = entry.value
        if entry.also[1]:
            values[entry.also[0]] = entry.also[2]
    for argument in entry.arguments:
        if argument.size_kind is SizeKind.BEHIND:
            contents[argument.size_argument] = struct.pack("<I", 64)
        elif argument.size_kind is SizeKind.ARGUMENT:
            count = 2 if argument.shape.name.startswith(("MMSG", "IOV")) else 1 if argument.size_scale == 8 else 64
            values.setdefault(argument.size_argument, 4 if argument.size_scale > 8 else count)
        elif argument.size_kind is SizeKind.BITS:
            values.setdefault(argument.size_argument, 64)
    words = [_word(i, argument, values, contents, kind) for i, argument in enumerate(entry.arguments)]
    return f"{row.name}.{number}.{kind} {row.number} {' '.join(words)}"


def _word(i: int, argument: Argument, values: dict[int, int], contents: dict[int, bytes], kind: str) -> str:
    match argument.shape:
        case Shape.NUMBER | Shape.TERMINAL if argument.word in ("fd", "terminal") and i not in values:
            return f"f:{kind}"
        case Shape.NUMBER if argument.word == "id" and kind == "queue":
            return "f:queue"
        case Shape.NUMBER | Shape.TERMINAL:
            return f"n:{values.get(i, 0)}"
        case Shape.STRING | Shape.TEXT:
            return "s:nowhere/there"
        case Shape.IOV_IN | Shape.IOV_OUT:
            return f"v:{values[argument.size_argument]}:8"
        case Shape.MSG_IN | Shape.MSG_OUT | Shape.MSG_PART:
            return "m:8"
        case Shape.MMSG_IN | Shape.MMSG_OUT | Shape.MMSG_PART:
            return f"M:{values[argument.size_argument]}:8"
        case Shape.ZERO:
            return "n:0"
        case Shape.STRINGS:
            return "n:0"
    size = _size(argument, values)
    given = contents.get(i, b"") if argument.shape in (Shape.OUT, Shape.PART) else contents.get(i, b"").ljust(size, b"\0")[:size]
    return f"b:{size}" + (f":{given.hex()}" if given else "")


def _size(argument: Argument, values: dict[int, int]) -> int:
    if argument.shape in (Shape.MASK, Shape.MASK6, Shape.EVENT, Shape.TIMEX, Shape.SIGNALS):
        return {Shape.MASK: 8, Shape.MASK6: 16, Shape.EVENT: 64, Shape.TIMEX: 208, Shape.SIGNALS: 8}[argument.shape]
    if argument.size_kind is SizeKind.BITS:
        return 8
    x = {SizeKind.BEHIND: 64, SizeKind.ARGUMENT: values.get(argument.size_argument, 0)}.get(argument.size_kind, 0)
    return max(1, x * argument.size_scale + argument.size_add)
