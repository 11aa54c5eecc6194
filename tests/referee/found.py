"""Differences that random programs have found, shortened by hand: they are fixed, and must stay so.

Lines are those of a script (tests/programs/referee.h); a call is named, its arguments are hexadecimal."""

from __future__ import annotations

from kernel_helpers.calls.numbers import NAMES
from tests.referee.program import HANDLERS, Episode, Step

_NUMBERS = {name: number for number, name in NAMES.items()}
BEYOND = "fffffffffffff000"
"""An address that no program has."""

FOUND: dict[str, tuple[str, ...]] = {
    "no bytes at an address that no program has, for which the kernel says EFAULT all the same": (
        f"read 14 {BEYOND} 0", f"write 14 {BEYOND} 0", f"pread64 14 {BEYOND} 0 0", f"recvfrom 1b {BEYOND} 0 40", f"getrandom {BEYOND} 0",
        f"sendto 19 {BEYOND} 0 40", f"getdents64 16 {BEYOND} 0", f"readlink {BEYOND} {BEYOND} 0", f"mq_timedsend 63 {BEYOND} 0",
        "P 100000000000 00f0ffffffffffff000000000000000000020000001000000400000000000000", "readv 14 100000000000 2",
        "writev 14 100000000000 2",
        f"read 17 {BEYOND} 0", f"getxattr {BEYOND} {BEYOND} {BEYOND} 0", f"poll {BEYOND} 0 0", f"fgetxattr 14 {BEYOND} {BEYOND} 0",
        f"setsockopt 1e 1 2 {BEYOND} 0", f"getgroups 0 {BEYOND}", f"sched_getaffinity 0 0 {BEYOND}", f"msgsnd 0 {BEYOND} 0 800",
    ),
    "the id whose attributes lsm_get_self_attr returns is read even where there is no room for them": (
        "S 100000000000 200 7", "write 14 100000000000 200", "S 100000000000 200 0", "lsm_get_self_attr 64 100000000200 100000000280 1",
        "P 100000000280 08000000", "lsm_get_self_attr 64 100000000200 100000000280 1",
        "P 100000000200 65000000", "lsm_get_self_attr 64 100000000200 100000000280 1",
    ),
    "lengths without a sign: 0xa5a5a5a5 is much, and no negative one that the kernel would refuse": (
        "S 100000000000 200 a5", "lsm_list_modules 100000000100 100000000180 0", "S 100000000000 200 a5",
        "lsm_get_self_attr 64 100000000100 100000000180 0", "statmount 100000000000 100000000100 40 0",
        "listmount 100000000000 100000000100 8 0",
    ),
    "an ordinary user's memory that is mapped shared by one process alone comes home, where no limit may be raised, too": (
        "mmap 100000110000 2000 3 31 ffffffffffffffff 0", "W 100000110000 5", "setresgid ffffffffffffffff 4 1", "W 100000111000 6", "L",
    ),
    "memory that may be written and not read: the program reads it all the same": (
        "mmap 100000110000 2000 2 32 ffffffffffffffff 0", "mq_timedsend 2b 100000000300 8 5 100000111000",
        "timer_create 7f 100000111000 100000000000", "write 14 100000111f00 80", "write 14 100000111f00 200",
    ),
}  # fmt: skip


def _step(line: str) -> Step:
    name, *rest = line.split()
    if name not in _NUMBERS:
        return Step([line], line)
    return Step([f"C {_NUMBERS[name]:x} {' '.join((rest + ['0'] * 6)[:6])} -"], line.replace(" ", "(", 1))


def found() -> list[Episode]:
    """An episode for each."""
    return [Episode(number, 0, HANDLERS, [_step(line) for line in lines]) for number, lines in enumerate(FOUND.values())]
