"""Arguments that would reach beyond a random program are put right, and those that mean nothing at random get a meaning."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tests.referee.values import DATA, DATA_SIZE, MANY

if TYPE_CHECKING:
    from tests.referee.program import Generator

OBJECTS = 4


def in_data(word: str) -> bool:
    """Whether an argument is an address of the calls' memory."""
    return not word.startswith("@") and DATA <= int(word, 16) < DATA + DATA_SIZE


def harmless(name: str, words: list[str], numbers: dict[int, int], program: Generator) -> list[str]:
    """The call's arguments without what would reach other processes, harm them or wait for them."""
    chance = program.chance
    if name == "fcntl":
        command = numbers[1]
        if command in (0, 1030):
            words[2] = f"{chance.choice((0, 10, 50)):x}"
        elif command == 4:
            words[2] = f"{0x800 | chance.choice((0, 0x400, 0x2000)):x}"
        elif command in (8, 10, 1031, 1033):
            words[2] = {8: "@s", 10: f"{chance.choice((0, 10, 34)):x}", 1031: "1000", 1033: f"{chance.choice((1, 2, 16)):x}"}[command]
        if command == 15:
            program.before += (
                [f"P {words[2]} {struct.pack('<i', chance.choice((0, 1, 9))).hex()}", f"Q {int(words[2], 16) + 4:x} @s"]
                if in_data(words[2])
                else []
            )
    elif name == "ioctl" and numbers.get(1) in (0x5410, 0x8901, 0x8902) and in_data(words[2]):
        program.before.append(f"Q {words[2]} @s")
    elif name == "ioctl" and numbers.get(1) == 0x5421 and in_data(words[2]):
        program.before.append(f"P {words[2]} 01000000")
    elif name == "ioctl" and numbers.get(1) in (0x40086602, 0x401C5820, 0x40087602) and in_data(words[2]):
        program.before.append(f"S {words[2]} 20 0")
    elif name == "ioctl" and numbers.get(1) == 0x5441:
        words[2] = "902"
    elif name == "ioctl" and 0x8910 <= numbers.get(1, 0) <= 0x8942 and in_data(words[2]):
        program.before.append(f"P {words[2]} {chance.choice((b'lo', b'nosuch')).ljust(16, bytes(1)).hex()}01000000")
    elif name in ("setpriority", "ioprio_set") and numbers[0] not in (0, 1):
        words[1] = f"{99999:x}"
    elif name == "ioprio_set" and numbers[0] == 1:
        words[1] = "@s"
    elif name == "futex":
        words[0], words[3] = f"{program.inside(4):x}", f"{program.inside(16):x}"
        program.before.append(f"P {words[3]} {struct.pack('<qq', 0, chance.choice((0, 1000, 2000000))).hex()}")
        words[5] = f"{chance.choice((1, 0xFFFFFFFF)):x}" if numbers[1] & 0x7F in (9, 10) else words[5]
        if numbers[1] & 0x7F in (3, 4, 5):
            words[3] = f"{chance.choice((0, 1, 5)):x}"
    elif name in ("futex_wait", "futex_waitv"):
        place = 4 if name == "futex_wait" else 3
        words[place] = f"{program.inside(16):x}"
        program.before.append(f"P {words[place]} {bytes(16).hex()}")
    elif name == "mmap":
        words[3] = f"{numbers[3] | (0x10 if not numbers[3] & 0x100000 else 0):x}"  # where it is put is the kernel's own choice else
    elif name == "mremap" and numbers[3] == 0 and chance.random() < 0.5:
        words[2] = words[1]
    elif name in ("setrlimit", "prlimit64"):
        at = words[1 if name == "setrlimit" else 2]
        resource = numbers[0 if name == "setrlimit" else 1]
        limit = (
            chance.choice((MANY - 1, 1 << 40, 1 << 50)) if resource not in (7, 5, 6, 10, 11, 12, 13, 14) else chance.choice((64, 800, 1024))
        )
        if resource in (13, 14):
            limit = chance.choice((0, 20))
        if in_data(at):
            program.before.append(f"P {at} {struct.pack('<QQ', limit, chance.choice((limit, limit, MANY - 1, max(limit - 1, 0)))).hex()}")
    elif name in ("capget", "capset") and in_data(words[0]) and chance.random() < 0.3:
        program.before.append(f"Q {int(words[0], 16) + 4:x} @s")
    elif name == "timer_create" and in_data(words[1]):
        program.before.append(f"Q {int(words[1], 16) + 16:x} {chance.choice(('@s', '@1', '@h'))}")
    elif (
        name in ("shmat", "shmctl", "msgctl", "semctl", "semop", "semtimedop", "msgsnd", "msgrcv")
        and program.episode.flags & OBJECTS
        and chance.random() < 0.8
    ):
        words[0] = "@m" if name.startswith("shm") else "@q" if name.startswith("msg") else "@e"
    elif name in ("prctl",) and numbers[0] in (1, 4, 8, 29, 36):
        words[1] = f"{chance.choice({1: (0, 10, 65), 4: (0, 1, 2), 8: (0, 1, 2), 29: (0, 50000), 36: (0, 1)}[numbers[0]]):x}"
    elif name in ("getsockopt", "setsockopt") and numbers[2] in (26, 51):
        words[1] = "1"
    if name in ("semget", "msgget", "shmget"):
        words[-1] = f"{chance.choice((0, 0o600, 0o400)):x}"
    if name in ("waitid",) and numbers[0] in (1, 2):
        words[1] = program.pid()
    if name == "pidfd_send_signal":
        words[1] = f"{chance.choice((0, 10, 65)):x}"
    return words
