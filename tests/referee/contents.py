"""Contents of memory that a random call reads: beginnings of structures that mean something."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tests.referee.values import GROUND, HANDLER, MANY, NOBODY, NONBLOCK, RESTORER

Chance = random.Random


def _timespec(chance: Chance) -> bytes:
    return struct.pack("<qq", *chance.choice(((0, 0), (0, 1000), (0, 3000000), (0, 1000000000), (-1, 0), (0, -1))))


def _interval(chance: Chance) -> bytes:
    return struct.pack(
        "<4q",
        *chance.choice(
            ((0, 0, 0, 0), (0, 0, 1000, 0), (1000, 0, 2000, 5), (0, 0, 0, 1), (0, 0, 0, 1000000000), (0, -1, 5, 0), (0, 0, -1, 0))
        ),
    )


def _signals(chance: Chance) -> bytes:
    chosen = chance.choice((0, 1 << 9, 1 << 16, (1 << 9) | (1 << 11) | (1 << 33), ~0))
    return struct.pack("<Q", chosen & ~(1 << 63) & ~(1 << 6) & ~(1 << 10) & (MANY - 1))


def _action(chance: Chance) -> bytes:
    handler = chance.choice((0, 1, HANDLER, HANDLER, HANDLER))
    flags = 0x4000004 | chance.choice((0, 0x10000000, 0x40000000, 0x80000000, 1, 2, 3))
    return struct.pack("<QQQ", handler, flags, RESTORER) + _signals(chance)


def _event(chance: Chance) -> bytes:
    notify = chance.choice((0, 0, 0, 1, 1, 4, 9))
    return struct.pack("<Qii", chance.randrange(1 << 31), chance.choice((10, 14, 34, 63, 65)), notify)


def address_of_socket(chance: Chance) -> bytes:
    return chance.choice((
        struct.pack("<HH4s8x", 2, 0, b"\x7f\0\0\1"), struct.pack("<HH4s8x", 2, 0x0100, b"\x7f\0\0\1"), struct.pack("<H", 1) + b"sub/sock\0",
        struct.pack("<H", 1) + b"\0abstract", struct.pack("<H", 0) + bytes(14), struct.pack("<H", 99) + bytes(14),
    ))  # fmt: skip


def _siginfo(chance: Chance) -> bytes:
    return struct.pack("<iiiiiIQ", 0, 0, chance.choice((-1, -1, -6, -60, 0, 1)), 0, 0, 77, 88)


def _capabilities(chance: Chance) -> bytes:
    return struct.pack("<II", chance.choice((0x20080522, 0x20080522, 0x20071026, 0x19980330, 5)), chance.choice((0, 0, NOBODY)))


CONTENTS: dict[tuple[str, int], Callable[[Chance], bytes]] = {
    **dict.fromkeys((("nanosleep", 0), ("clock_nanosleep", 2), ("ppoll", 2), ("pselect6", 4), ("select", 4), ("semtimedop", 3),
    ("mq_timedsend", 4), ("mq_timedreceive", 4), ("epoll_pwait2", 3), ("futex", 3), ("futex_wait", 4), ("futex_waitv", 3), ("recvmmsg", 4),
    ("rt_sigtimedwait", 2), ("io_getevents", 4), ("io_pgetevents", 4)), _timespec),
    **dict.fromkeys((("rt_sigprocmask", 1), ("rt_sigtimedwait", 0), ("signalfd", 1), ("signalfd4", 1), ("ppoll", 3), ("epoll_pwait", 4),
    ("epoll_pwait2", 4)), _signals),
    ("timerfd_settime", 2): _interval, ("timer_settime", 2): _interval, ("setitimer", 1): _interval,
    ("rt_sigaction", 1): _action, ("timer_create", 1): _event, ("mq_notify", 1): _event,
    ("connect", 1): address_of_socket, ("bind", 1): address_of_socket, ("sendto", 4): address_of_socket, ("rt_sigqueueinfo", 2): _siginfo,
    ("rt_tgsigqueueinfo", 3): _siginfo,
    ("pidfd_send_signal", 2): _siginfo, ("capget", 0): _capabilities, ("capset", 0): _capabilities,
    ("capset", 1): lambda chance: bytes(24) if chance.random() < 0.1 else b"\xff" * 24,
    ("sigaltstack", 0): lambda chance: struct.pack("<QiiQ", GROUND, chance.choice((0, 2, 9)), 0, chance.choice((8192, 100))),
    ("epoll_ctl", 3): lambda chance: struct.pack("<IQ", chance.choice((1, 4, 5, 0x40000001, 0x80000001)), chance.randrange(MANY)),
    ("semop", 1): lambda chance: b"".join(struct.pack("<Hhh", chance.randrange(4), chance.choice((0, 1, -1, 2)), 0x800) for _ in range(8)),
    ("semtimedop", 1): lambda chance: b"".join(struct.pack("<Hhh", chance.randrange(4), chance.choice((0, 1, -1, 2)),
    0x800) for _ in range(8)),
    ("sched_setscheduler", 2): lambda chance: struct.pack("<i", chance.choice((0, 0, 0, 1, 100))),
    ("sched_setparam", 1): lambda chance: struct.pack("<i", chance.choice((0, 0, 1))),
    ("sched_setattr", 1): lambda chance: struct.pack("<IIQiI", chance.choice((48, 48, 56, 0, 20, 4000)), chance.choice((0, 3, 5, 99)), 0,
    chance.choice((0, 5)), 0),
    ("sched_setaffinity", 2): lambda chance: struct.pack("<Q", chance.choice((1, 2, 3, 0))),
    ("set_mempolicy", 1): lambda chance: struct.pack("<Q", chance.choice((0, 1, 2))),
    ("openat2", 2): lambda chance: struct.pack("<QQQ", NONBLOCK | chance.choice((0, 2, 0o102, 0o200000)), chance.choice((0, 0o644)),
    chance.choice((0, 0, 1, 4, 8, 99))),
    ("utimensat", 2): lambda chance: struct.pack("<qqqq", *chance.choice(((1000, 5, 2000, 7), (0, 0x3FFFFFFE, 0, 0x3FFFFFFE),
    (5, -1, 5, 0)))),
    ("utime", 1): lambda chance: struct.pack("<qq", 1000, 2000), ("utimes", 1): lambda chance: struct.pack("<qqqq", 1000, 5, 2000,
    chance.choice((7, 2000000))),
    ("futimesat", 2): lambda chance: struct.pack("<qqqq", 1000, 5, 2000, 7),
    ("msgsnd", 1): lambda chance: struct.pack("<q", chance.choice((1, 5, 0, -1))) + b"a message",
    ("getcpu", 2): lambda chance: b"", ("seccomp", 2): lambda chance: struct.pack("<I", chance.choice((0x7FFF0000, 0x7FC00000, 1))),
    ("set_tidaddress_of_socket", 0): lambda chance: b"", ("mq_open", 3): lambda chance: struct.pack("<qqqq", 0, 4, 64, 0),
    ("mq_getsetattr", 1): lambda chance: struct.pack("<qqqq", NONBLOCK, 0, 0, 0),
    ("landlock_create_ruleset", 0): lambda chance: struct.pack("<Q", chance.choice((0x3F, 0, MANY - 1))),
}  # fmt: skip
"""Begins of memory that means something; what follows, and the rest, is random."""
