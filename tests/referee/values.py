"""Random arguments: numbers by the word that names them in calls.table, special ones by call; descriptors; names."""

from __future__ import annotations

from collections.abc import Sequence

DATA, DATA_SIZE, READ_ONLY, NOTHING, NOWHERE = 0x100000000000, 16384, 0x100000010000, 0x100000020000, 0x100000030000
GROUND, GROUND_PAGES, HANDLER, RESTORER = 0x100000100000, 64, 0x100000200000, 0x100000200040
"""As in tests/programs/referee.h."""
NOBODY = 0x3FFFFE
TICK = 64
NONBLOCK = 0x800
MANY = 1 << 64

FD = {
    "file": 20, "fixed": 21, "directory": 22, "reading": 23, "writing": 24, "stream": 25, "stream2": 26, "datagram": 27, "datagram2": 28,
    "listener": 29, "client": 30, "server": 31, "udp": 32, "event": 33, "timer": 34, "epoll": 35, "inotify": 36, "memory": 37,
    "master": 38, "slave": 39, "zero": 40, "path": 41, "subdirectory": 42, "queue": 43, "null": 0, "said": 1,
}  # fmt: skip
"""Descriptors of every episode (tests/programs/referee_world.h)."""
KIND_OF = {
    "getdents": ("directory", "subdirectory"), "getdents64": ("directory", "subdirectory"), "epoll_wait": ("epoll",),
    "epoll_pwait": ("epoll",),
    "epoll_pwait2": ("epoll",), "epoll_ctl": ("epoll",), "timerfd_settime": ("timer",), "timerfd_gettime": ("timer",),
    "accept": ("listener", "stream"), "accept4": ("listener",), "listen": ("listener", "udp"), "connect": ("udp", "client", "datagram"),
    "bind": ("udp", "listener", "datagram"), "getsockname": ("listener", "client", "udp", "stream"), "getpeername": ("client", "server",
    "datagram"),
    "recvfrom": ("stream", "datagram", "server", "udp"), "recvmsg": ("stream2", "datagram2", "server"), "recvmmsg": ("datagram",
    "datagram2"),
    "sendto": ("stream", "datagram", "client", "udp"), "sendmsg": ("stream", "datagram2", "client"), "sendmmsg": ("datagram", "stream"),
    "getsockopt": ("client", "stream", "udp", "listener"), "setsockopt": ("client", "stream", "udp", "listener"),
    "shutdown": ("stream2", "client", "datagram"), "inotify_add_watch": ("inotify",), "inotify_rm_watch": ("inotify",),
    "mq_timedsend": ("queue",), "mq_timedreceive": ("queue",), "mq_getsetattr": ("queue",), "mq_notify": ("queue",),
    "ioctl": ("master", "slave", "file", "stream", "client", "reading", "udp"), "fsync": ("file",), "ftruncate": ("file", "memory"),
    "fallocate": ("file", "memory"), "fchdir": ("directory", "subdirectory"), "splice": ("reading", "writing", "file", "stream"),
    "tee": ("reading", "writing"), "vmsplice": ("writing",), "sendfile": ("writing", "file", "stream", "memory"),
    "copy_file_range": ("file", "memory"), "openat": ("directory", "subdirectory"), "fstatfs": ("file", "directory"),
}  # fmt: skip

_ODD = (0, 1, 2, 3, 4, 7, 8, 16, 64, 100, 4095, 4096, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, MANY - 1, 1 << 40)
SIGNALS = (0, 1, 2, 3, 10, 12, 13, 14, 15, 16, 17, 18, 23, 28, 29, 34, 40, 63, 65, 1000, MANY - 1)
"""Without 7 and 11, which report the program's own stores; without signals that stop it, as nothing would continue it."""
WORDS: dict[str, Sequence[int]] = {
    "flags": (0, 0, 0, 1, 2, 4, 8, 0x10, 0x40, 0x100, 0x200, 0x400, 0x800, 0x1000, 0x80000, 0x80800, 0xFFFFFFFF),
    "mode": (0o644, 0o600, 0, 0o777, 0o4755, 7, 0xFFFFFFFF), "offset": (0, 0, 1, 10, 50, 4096, 100000, MANY - 1), "low": (0, 1, 20, 1000),
    "high": (0, 0, 0, MANY - 1), "count": (0, 1, 2, 3, 8, 16, 64), "size": (0, 1, 8, 16, 60, 64, 200), "timeout": (0, 0, 0, 1, 3),
    "signal": SIGNALS, "mysignal": SIGNALS, "how": (0, 1, 2, 2, 3), "sigsize": (8, 8, 8, 8, 8, 8, 0, 4, 16), "uid": (0, 0, 1000, MANY - 1),
    "gid": (0, 0, 1000, MANY - 1), "clock": (0, 1, 1, 4, 5, 6, 7, 9, 11, 99), "rights": (0, 1, 2, 3, 3, 3, 5, 7, 0x1000003),
    "key": (0, 1, 2, 16, MANY - 1),
    "mapflags": (0x32, 0x32, 0x32, 0x32, 0x100022, 0x12, 0x30, 0x4032, 0x8032), "mapfd": (MANY - 1, MANY - 1, MANY - 1, 21, 40, 22, 99),
    "mapoffset": (0, 0, 0, 4096, 1), "remapflags": (0, 0, 3, 3, 3, 7, 8),
    "advice": (0, 1, 2, 3, 4, 4, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 99),
    "lockflags": (0, 1, 4, 5, 8), "barrier": (0, 1, 2, 4, 8, 16, 32, 64, 1 << 20),
    "futexop": (1, 0x81, 0, 0x80, 3, 4, 9, 10, 6, 7, 8, 0x86, 0x87, 0x88, 99),
    "archcode": (0x1004, 0x1011, 0x3001, 99), "policy": (0, 1, 2, 3, 5, 6, 99), "segment": (0, 99), "shmflags": (0, 0o10000, 0o40000),
    "break": (0, 1), "whence": (0, 1, 2, 3, 4, 9), "operation": (0, 1, 2, 3, 4, 8, 9), "family": (1, 2, 10, 16, 99),
    "type": (1, 2, 3, 5, 99),
    "protocol": (0, 0, 0, 6, 17), "level": (1, 0, 6, 17, 41), "backlog": (0, 1, 5), "index": (0, 1, 2, 3, MANY - 1),
    "priority": (0, 1, 5, 32768),
    "id": (1, 2, 3, 99, MANY - 1), "seconds": (0, 1000), "which": (0, 1, 2, 3),
    "resource": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16),
    "option": (5, 6, 9, 11, 19, 9999), "persona": (0xFFFFFFFF, 0, 0x20000), "capability": (0, 5, 21, 40, 41, 99),
    "mask": (0, 2, 0o22, 0x7FF, 0xFFFFFFFF),
    "advices": (0, 1, 2, 3, 4, 5, 6, 9), "nice": (0, 1, 5, 19, 100), "address": (0, GROUND, GROUND + 4096, NOWHERE, 1), "watch": (1, 2, 99),
    "value": (0, 1, 2, 3, 8, 100, MANY - 1), "key_": (0,), "code": (0x1011, 99), "attribute": (0, 100, 101, 104, 105, 999),
    "capabilities": (0,),
}  # fmt: skip
NUMBERS: dict[tuple[str, int], Sequence[int]] = {
    ("open", 1): (0o4000, 0o4002, 0o4102, 0o4302, 0o6002, 0o2004000, 0o10004000, 0o5002, 0o204000),
    ("openat", 2): (0o4000, 0o4002, 0o4102, 0o4302, 0o204000),
    ("open", 2): (0o644, 0, 0o7777), ("fallocate", 1): (0, 0, 1, 3, 8, 16, 32, 99), ("fallocate", 3): (1, 100, 4096, 0, MANY - 1),
    ("sendfile", 3): (0, 1, 10, 100), ("splice", 4): (0, 1, 10, 100), ("tee", 2): (0, 1, 10), ("copy_file_range", 4): (0, 1, 10, 100),
    ("splice", 5): (0, 2, 3, 99), ("tee", 3): (2, 3), ("flock", 1): (4, 5, 6, 12, 0x24), ("lseek", 2): (0, 1, 2, 3, 4, 9),
    ("truncate", 1): (0, 10, 5000, MANY - 1),
    ("ftruncate", 1): (0, 10, 5000, 100000, MANY - 1), ("fadvise64", 3): (0, 1, 2, 3, 4, 5, 9),
    ("mknod", 1): (0o100644, 0o10600, 0o20600, 0o40700),
    ("mknodat", 2): (0o100644, 0o10600, 0o20600), ("mknod", 2): (0, 0x103), ("mknodat", 3): (0, 0x103),
    ("memfd_create", 1): (0, 1, 2, 3, 8, 0x10),
    ("epoll_ctl", 1): (1, 1, 2, 3, 9), ("socket", 1): (0x801, 0x802, 0x80801, 0x803, 0x899), ("socketpair", 0): (1, 1, 1, 2),
    ("socketpair", 1): (0x801, 0x802, 0x805),
    ("socketpair", 2): (0, 0, 1), ("setsockopt", 2): (1, 2, 5, 6, 7, 8, 9, 10, 12, 15, 16, 18, 19, 20, 21), ("shutdown", 1): (0, 1, 2, 9),
    ("getsockopt", 2): (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 17, 18, 20, 21, 28, 30, 38, 39), ("msgrcv", 3): (0, 1, 5, MANY - 5),
    ("recvmmsg", 3): (0x40, 0x40040), ("semget", 1): (1, 3, 0), ("shmget", 1): (4096, 0, 100),
    ("personality", 0): (0xFFFFFFFF, 0, 0x20000, 0x40000),
    ("setpriority", 0): (0, 0, 1, 9), ("ioprio_set", 0): (1, 1, 2, 9), ("ioprio_set", 2): (0, 2 << 13 | 4, 3 << 13, 2 << 13 | 7, 9 << 13),
    ("sched_setscheduler", 1): (0, 3, 5, 99, 1 << 30), ("sched_setaffinity", 1): (8, 8, 128, 3, 0),
    ("sched_getaffinity", 1): (8, 128, 3, 0),
    ("sched_setattr", 2): (0, 1), ("sched_getattr", 2): (48, 56, 100, 8), ("getrusage", 0): (0, MANY - 1, 1, 5),
    ("set_mempolicy", 0): (0, 1, 2, 3, 4, 9),
    ("set_mempolicy", 2): (0, 8, 64, 65), ("get_mempolicy", 2): (0, 64, 1024), ("get_mempolicy", 4): (0, 4, 1, 9),
    ("kcmp", 2): (0, 2, 3, 9, 7), ("kcmp", 3): (20, 23, 99),
    ("kcmp", 4): (20, 41, 99), ("waitid", 0): (0, 1, 2, 3, 9), ("waitid", 3): (5, 1, 0x1000005, 9, 0),
    ("wait4", 2): (1, 1, 3, 9, 0x40000001),
    ("timer_settime", 1): (0, 1), ("timer_create", 0): (0, 1, 7, 11, 99), ("timerfd_create", 0): (0, 1, 7, 99),
    ("timerfd_settime", 1): (0, 1, 9),
    ("alarm", 0): (0, 1000), ("getcwd", 1): (4096, 64, 200, 1, 0), ("fanotify_init", 0): (2, 0x202, 0x606),
    ("fanotify_mark", 1): (1, 2, 0x80), ("fanotify_mark", 2): (2, 8, 0x20),
    ("inotify_add_watch", 2): (0x100, 0x200, 0x302, 0x2, 0x20, 0x1000000, 0), ("landlock_create_ruleset", 2): (0, 1, 2),
    ("seccomp", 0): (2, 3, 9), ("close_range", 0): (50, 60, 41, 10),
    ("close_range", 1): (63, 60, 42, 9), ("close_range", 2): (0, 4, 9), ("utimensat", 3): (0, 0x100, 9),
    ("statx", 2): (0, 0x100, 0x1000, 0x4000), ("clock_nanosleep", 1): (0, 0, 1),
    ("prctl", 0): (5, 6, 9, 11, 19, 20, 33, 9999), ("process_madvise", 2): (1, 2), ("socket", 2): (0, 0, 6, 17),
    ("fcntl", 1): (0, 1, 2, 3, 4, 9, 11, 10, 1030, 1025, 1031, 1032, 1033, 1034, 99), ("ioctl", 1): (0x5460, 0x12345678, 0x541E),
    ("msgctl", 1): (99, 5), ("shmctl", 1): (99, 5), ("semctl", 2): (13, 17, 99), ("exit", 0): (0,), ("io_setup", 0): (1, 0, 10),
    ("epoll_create", 0): (1, 0, MANY - 1), ("eventfd", 0): (0, 5), ("eventfd2", 0): (0, 5, 0xFFFFFFFF), ("get_robust_list", 0): (0, NOBODY),
    ("mq_open", 1): (0, 1, 2, 0x80), ("mq_timedsend", 2): (0, 8, 64, 65), ("mq_timedreceive", 2): (64, 128, 8),
    ("syncfs", 0): (99, 99, 99, 20), ("rseq", 1): (32, 0, 8),
}  # fmt: skip
"""Special values of one call's argument."""
ALWAYS: dict[tuple[str, int], int] = {
    ("open", 1): NONBLOCK, ("openat", 2): NONBLOCK, ("pipe2", 1): NONBLOCK, ("socket", 1): NONBLOCK, ("socketpair", 1): NONBLOCK,
    ("accept4", 3): NONBLOCK,
    ("timerfd_create", 1): NONBLOCK, ("eventfd2", 1): NONBLOCK, ("inotify_init1", 0): NONBLOCK, ("fanotify_init", 0): 2,
    ("signalfd4", 3): NONBLOCK,
    ("mq_open", 1): NONBLOCK, ("pidfd_open", 1): NONBLOCK, ("msgsnd", 3): NONBLOCK, ("msgrcv", 4): NONBLOCK, ("flock", 1): 4,
    ("waitid", 3): 1, ("wait4", 2): 1, ("open_by_handle_at", 2): NONBLOCK, ("recvfrom", 3): 0x40, ("recvmsg", 2): 0x40,
    ("recvmmsg", 3): 0x40,
    ("sendto", 3): 0x40, ("sendmsg", 2): 0x40, ("sendmmsg", 3): 0x40, ("vmsplice", 3): 2, ("splice", 5): 2, ("tee", 3): 2,
}  # fmt: skip
"""Bits that keep a call, or what it opens, from waiting."""
NAMES = ("data", "data", "sub", "sub/one", "link", "dangling", "loop", "fifo", "nosuch", "new", "sub/new", "", ".", "..", "/nosuch",
         "data/under", "nosuch/under", "n" * 255, "n" * 256, "/" * 40 + "nosuch", "./sub/../data", "./" * 2047 + "d",
         "./" * 2048 + "d")  # fmt: skip
"""Below an episode's own directory, or nowhere."""
STRINGS: dict[str, Sequence[str]] = {
    "xattr": ("user.one", "user.two", "trusted.one", "user.", "nope", ""), "program": ("data", "nosuch", "sub", "", "data/under"),
    "fixed": ("nosuch",), "queue": ("/nosuch", "nosuch", "", "/" + "q" * 300),
}  # fmt: skip
STRING_KINDS = {
    **{(name, 1): "xattr" for name in ("setxattr", "getxattr", "removexattr", "lsetxattr", "lgetxattr", "lremovexattr", "fsetxattr",
    "fgetxattr", "fremovexattr")},
    ("execve", 0): "program", ("execveat", 1): "program", ("mq_open", 0): "queue", ("mq_unlink", 0): "queue", ("setxattrat", 3): "xattr",
    ("getxattrat", 3): "xattr", ("removexattrat", 3): "xattr", ("creat", 0): "creat",
}  # fmt: skip
STRINGS["creat"] = ("data", "new", "sub/new", "sub", "nosuch/x", "link", "")

PIDS = frozenset({"pid", "tid", "who", "pgid"})
"""Words for processes: its own, its helper's, or no process's."""

NOT_WAITING = {
    "inotify_init": "n",
    "eventfd": "n",
    "signalfd": "n",
    "accept": "n",
    "pipe": "N",
    "timer_settime": "s",
    "setitimer": "s",
    "alarm": "b",
}
FATAL_TO_HELPER = frozenset({1, 2, 3, 10, 12, 13, 14, 15, 16, 29, 34, 40, 63})
SPARING = (0, 17, 18, 23, 28, 65)
"""Signals that do nothing without a handler, or are none."""
