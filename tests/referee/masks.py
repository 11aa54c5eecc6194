"""Parts of a call's memory and results that are not compared, each with its reason."""

from __future__ import annotations

Mask = tuple[int, int, int, str]
"""argument, offset, size (0: as much as there is), kind (tests/programs/referee.h)"""
_STAT = ((0, 144, "s"), (0, 16, "x"), (40, 8, "x"), (72, 16, "t"), (88, 16, "t"), (104, 16, "x"))
"""times of sockets, device and inode, number of a terminal, times"""
_STATX = ((0, 256, "S"), (32, 8, "x"), (64, 16, "t"), (80, 16, "x"), (96, 16, "x"), (112, 16, "t"), (128, 24, "x"))
_OBJECT = ((24, 2, "x"), (48, 8, "t"), (56, 8, "t"), (64, 8, "t"), (72, 8, "t"))
MASKS: dict[str, tuple[str, tuple[Mask, ...]]] = {
    **{name: ("inode numbers, terminals' numbers and times of now", tuple((1, *rest) for rest in _STAT)) for name in ("stat", "lstat",
    "fstat")},
    "newfstatat": ("the same", tuple((2, *rest) for rest in _STAT)), "statx": ("the same, and when it was made", tuple((4,
    *rest) for rest in _STATX)),
    "statfs": ("what is free, and the file system's number", ((1, 24, 24, "x"), (1, 48, 16, "x"))), "fstatfs": ("the same", ((1, 24, 24,
    "x"), (1, 48, 16, "x"))),
    "getdents": ("inode numbers, and places in a directory", ((1, 0, 0, "D"),)), "getdents64": ("the same", ((1, 0, 0, "d"),)),
    "sysinfo": ("load and memory of the machine", ((0, 0, 112, "x"),)), "times": ("times", ((0, 0, 32, "x"),)),
    "getrusage": ("times and pages", ((1, 0, 144, "x"),)),
    "clock_gettime": ("a time", ((1, 0, 16, "X"),)), "gettimeofday": ("a time", ((0, 0, 16, "X"),)), "time": ("a time", ((0, 0, 8, "x"),)),
    "getitimer": ("what is left", ((1, 16, 16, "z"),)), "setitimer": ("what is left", ((2, 16, 16, "z"),)),
    "timer_gettime": ("what is left", ((1, 16, 16, "z"),)),
    "timer_settime": ("what is left", ((3, 16, 16, "z"),)), "timerfd_gettime": ("what is left", ((1, 16, 16, "z"),)),
    "timerfd_settime": ("what is left", ((3, 16, 16, "z"),)),
    "select": ("what is left", ((4, 0, 16, "z"),)), "pselect6": ("what is left", ((4, 0, 16, "z"),)), "ppoll": ("what is left", ((2, 0, 16,
    "z"),)),
    "recvmmsg": ("what is left", ((4, 0, 16, "z"),)), "getcpu": ("which processor it is on", ((0, 0, 4, "X"), (1, 0, 4, "X"))),
    "getrandom": ("chance", ((0, 0, 0, "x"),)),
    "getsockname": ("ports that the kernel chooses", ((1, 2, 2, "x"),)), "getpeername": ("the same", ((1, 2, 2, "x"),)),
    "accept": ("the same", ((1, 2, 2, "x"),)),
    "accept4": ("the same", ((1, 2, 2, "x"),)), "recvfrom": ("the same", ((4, 2, 2, "x"),)), "get_robust_list": ("an address", ((1, 0, 8,
    "x"),)),
    "name_to_handle_at": ("inode number and mount", ((2, 8, 120, "x"), (3, 0, 8, "x"))), "arch_prctl": ("an address", ((1, 0, 8, "x"),)),
    "wait4": ("times", ((3, 0, 144, "x"),)), "waitid": ("times", ((4, 0, 144, "x"),)), "get_mempolicy": ("nodes of the machine",
    ((1, 0, 128, "x"),)),
    "io_setup": ("an address", ((1, 0, 8, "x"),)), "rseq": ("which processor it is on", ((0, 0, 32, "X"),)),
    "cachestat": ("which pages the machine has in its memory", ((2, 0, 40, "x"),)),
    "mincore": ("which pages are in memory: those of zeros alone are not carried when a process moves", ((2, 0, 64, "X"),)),
    "msgctl": ("times, and how often ids were used", tuple((2, *rest) for rest in _OBJECT)),
    "shmctl": ("the same", tuple((2, *rest) for rest in _OBJECT)), "semctl": ("the same", tuple((3, *rest) for rest in _OBJECT)),
    "sched_rr_get_interval": ("the scheduler's own, by load", ((1, 0, 16, "x"),)),
    "sched_getattr": ("the scheduler's own slice", ((1, 24, 8, "x"),)),
}  # fmt: skip
"""Why, and what of a call's memory is not compared."""
RESULT_MASKS = {
    "time": "a time", "times": "a time", "brk": "an address", "msgget": "ids that the kernel chooses", "semget": "the same",
    "shmget": "the same", "kcmp": "an order of addresses", "shmat": "an address", "alarm": "what is left",
}  # fmt: skip
"""Why the value of a result is not recorded, only that there is one."""
IOCTL_MASKS = {0x80045430: 4, 0x80045432: 4, 0x80087601: 8, 0x5460: 8}
"""Numbers of terminals, a file's generation."""
