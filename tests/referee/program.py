"""Random programs for tests/programs/referee.c: from one seed always the same one."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_helpers.calls.table import Argument, Class, Shape, SizeKind
from tests.referee import contents, masks, rows, values
from tests.referee.harmless import harmless
from tests.referee.values import DATA, DATA_SIZE, FD, GROUND, GROUND_PAGES, MANY, NOBODY, NOTHING, NOWHERE, READ_ONLY

HELPER, HANDLERS, OBJECTS = 1, 2, 4
LENGTH = 160
"""Lines of calls of an episode."""
_WRITTEN = (Shape.OUT, Shape.PART, Shape.INOUT, Shape.INPLACE)


@dataclass
class Step:
    """A call, with what is put into its memory before, or another word of a script. text: for people."""

    lines: list[str]
    text: str


@dataclass
class Episode:
    """A process's steps. seed: by which it is made again."""

    seed: int
    threads: int = 0
    flags: int = 0
    steps: list[Step] = field(default_factory=list)

    def script(self) -> str:
        """Returns the lines for tests/programs/referee.c."""
        return "".join(
            f"{line}\n" for line in [f"E {self.threads:x} {self.flags:x}", *(line for step in self.steps for line in step.lines)]
        )


class Generator:
    """Makes one episode. What it chooses depends on its seed alone."""

    def __init__(self, seed: int, length: int = LENGTH) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        flags = sum(flag for flag, share in ((HELPER, 0.15), (HANDLERS, 0.6), (OBJECTS, 0.25)) if chance.random() < share)
        self.episode = Episode(seed, chance.choice((0, 0, 0, 0, 0, 0, 1, 2)), flags)
        self.length = length
        self.rough = chance.random() < 0.35
        """Memory that is not there, or not writable, besides good one."""
        self.home = chance.random() < 0.12
        """Calls that take the process home are among the others."""
        self.entries = [entry for entry in _ENTRIES if self.home or entry[2] is not Class.GO_HOME]
        self.weights = [_weight(entry) for entry in self.entries]
        self.at = DATA
        self.before: list[str] = []
        self.thread = 0
        self.masked = False
        self.last_address = 0

    def make(self) -> Episode:
        chance, steps = self.chance, self.episode.steps
        while len(steps) < self.length:
            which = chance.random()
            if which < 0.02:
                steps.append(Step(["L"], "checks memory"))
            elif which < 0.04:
                at, byte = GROUND + chance.randrange(GROUND_PAGES * 4096), chance.randrange(256)
                steps.append(Step([f"W {at:x} {byte:x}"], f"stores at {at:#x}"))
            elif which < 0.045:
                kind = chance.randrange(7)
                steps.append(Step([f"F {kind:x}"], f"bears child {kind}"))
            else:
                steps.append(self.call())
        steps.append(Step(["L"], "checks memory"))
        how = 0 if self.episode.threads else chance.choice((0, 0, 0, 1, 2))
        end = chance.choice((1, 2, 6, 9, 14, 15, 10)) if how == 2 else chance.choice((0, 1, 77, 255))
        steps.append(Step([f"X {how} {end:x}"], f"ends by way {how}: {end}"))
        return self.episode

    # ---- one call ----

    def call(self) -> Step:
        chance = self.chance
        row, _, _, arguments, conditions = chance.choices(self.entries, self.weights)[0]
        if row.name in rows.HOME_ONLY and chance.random() < 0.5:
            return Step(["L"], "checks memory")
        self.before = []
        self.at = DATA + chance.randrange(6) * 256
        numbers: dict[int, int] = {}
        for argument, _, value in conditions:
            numbers[argument] = value & (MANY - 1)
        masked = masks.MASKS.get(row.name, ("", ()))[1]
        self.masked = bool(masked) or row.name in ("ioctl", "read", "readv", "pread64", "preadv", "preadv2")
        for i, argument in enumerate(arguments):
            if argument.shape in (Shape.NUMBER, Shape.TERMINAL) and i not in numbers:
                numbers[i] = self.number(row.name, i, argument.word, numbers, arguments)
        words = [self.argument(row.name, i, argument, numbers) for i, argument in enumerate(arguments)]
        words = harmless(row.name, words, numbers, self)
        self.spare(row.name, words)
        flags = values.NOT_WAITING.get(row.name, "") + (
            "r" if row.name in masks.RESULT_MASKS and "b" not in values.NOT_WAITING.get(row.name, "") else ""
        )
        if (
            row.name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo")
            and words[0] in self.of_helper()
            and _plain(words[-1 if row.name != "rt_sigqueueinfo" else 1])
        ):
            flags += "w"
        lines = list(self.before)
        for argument, offset, size, kind in masked:
            if argument < len(words) and not words[argument].startswith("@"):
                lines.append(f"M {int(words[argument], 16) + offset:x} {size or 4096:x} {kind}")
        if row.name == "ioctl" and numbers.get(1) in masks.IOCTL_MASKS and len(words) > 2:
            lines.append(f"M {words[2]} {masks.IOCTL_MASKS[numbers[1]]:x} x")
        if self.episode.threads:
            thread = chance.choice((self.thread, chance.randrange(self.episode.threads + 1)))
            if thread != self.thread:
                lines.insert(0, f"T {thread}")
                self.thread = thread
        padded = words + ["0"] * (6 - len(words))
        lines.append(f"C {row.number:x} {' '.join(padded)} {flags or '-'}")
        return Step(lines, f"{row.name}({', '.join(words)})" + (f" in thread {self.thread}" if self.episode.threads else ""))

    def of_helper(self) -> tuple[str, ...]:
        """Returns the arguments that reach the helper: its id, and its group."""
        return ("@h", "0") if self.episode.flags & HELPER else ("@h",)

    def spare(self, name: str, words: list[str]) -> None:
        """Without handlers most signals end the process, and what would follow is not compared: so few are of that kind."""
        at = _SIGNAL_OF.get(name)
        ends = at is not None and not self.episode.flags & HANDLERS and words[0] in ("@s", "0", "@1")
        if at is not None and ends and _plain(words[at]) and self.chance.random() < 0.95:
            words[at] = f"{self.chance.choice(values.SPARING):x}"

    def inside(self, size: int) -> int:
        self.at = (self.at + 63) & ~63
        if self.at + size > DATA + DATA_SIZE:
            self.at = DATA
        at = self.at
        self.at += size
        return at

    def pid(self) -> str:
        choices = ["@s", "0", f"{NOBODY:x}", "@s"]
        if self.episode.flags & HELPER:
            choices += ["@h", "@h"]
        if self.episode.threads:
            choices += ["@1"]
        return self.chance.choice(choices)

    def number(self, name: str, i: int, word: str, numbers: dict[int, int], arguments: Sequence[Argument]) -> int:
        chance = self.chance
        if word in ("fd", "terminal", "mapfd") and word != "mapfd" and (name, i) not in values.NUMBERS:
            return self.descriptor(name)
        if word == "ground":
            return GROUND + chance.randrange(GROUND_PAGES) * 4096 + (chance.choice((0, 0, 0, 0, 0, 1)))
        if word == "length":
            return chance.choice((4096, 4096, 8192, 4 * 4096, 16 * 4096, 1, 5000, 0))
        if word == "signal" and name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            return chance.choice(values.SIGNALS)
        choices = values.NUMBERS.get((name, i)) or values.WORDS.get(word) or values._ODD
        sized = [a for a in arguments if a.size_kind is SizeKind.ARGUMENT and a.size_argument == i]
        if sized and (name, i) not in values.NUMBERS:
            if sized[0].shape in (Shape.IOV_IN, Shape.IOV_OUT, Shape.MMSG_IN, Shape.MMSG_OUT, Shape.MMSG_PART):
                choices = (0, 1, 2, 2, 3, 4)
            else:
                choices = (0, 1, 8, 24, 40, 64, 200, 1000) if sized[0].size_scale == 1 else (0, 1, 2, 4)
            if self.rough and chance.random() < 0.05:
                choices = (4096, 20000, 0x7FFFFFFF, MANY - 1, 1 << 40, 2000)
        if (name, i) in (("connect", 2), ("bind", 2), ("sendto", 5)):
            choices = (16, 16, 11, 110, 2, 0, 200)
        value = chance.choice(choices)
        return value | values.ALWAYS.get((name, i), 0)

    def descriptor(self, name: str) -> int:
        chance = self.chance
        kinds = values.KIND_OF.get(name)
        which = chance.random()
        if kinds and which < 0.7:
            return FD[chance.choice(kinds)]
        if which < 0.8:
            return chance.choice((3, 3, 4, 5, 6))
        if which < 0.86:
            return chance.choice((99, MANY - 1, 0x7FFFFFFF, 63, 1 << 32 | 20))
        if name in ("close", "dup2", "dup3"):
            return chance.choice((3, 4, 5, 6, 50, 51, *FD.values()))
        if name in ("openat", "mkdirat", "fstatat") and which < 0.95:
            return MANY - 100
        return FD[chance.choice(list(FD))]

    # ---- memory ----

    def place(self, size: int, *, good: bool = False) -> int:
        chance = self.chance
        if self.rough and not good and chance.random() < 0.14:
            end = DATA + DATA_SIZE
            at = chance.choice((end - size, end - size // 2, READ_ONLY, READ_ONLY + 4096 - size, NOTHING, NOWHERE, 0, MANY - 4096, 1 << 47,
                                self.last_address, self.last_address + 4))  # fmt: skip
            if not self.masked and chance.random() < 0.3:
                at = GROUND + chance.randrange(GROUND_PAGES) * 4096
            return at & (MANY - 1)
        self.last_address = self.inside(max(1, min(size, 2048)))
        return self.last_address

    def put(self, at: int, data: bytes) -> None:
        if data and DATA <= at < DATA + DATA_SIZE:
            self.before.append(f"P {at:x} {data[: DATA + DATA_SIZE - at].hex()}")

    def random_bytes(self, size: int) -> bytes:
        chance = self.chance
        size = min(size, 512)
        return chance.choice((bytes(size), chance.randbytes(size), bytes(chance.choice((0, 1, 2, 0, 0)) for _ in range(size))))

    def argument(self, name: str, i: int, argument: Argument, numbers: dict[int, int]) -> str:
        chance = self.chance
        shape = argument.shape
        if shape in (Shape.NUMBER, Shape.TERMINAL):
            if argument.word in values.PIDS:
                return self.pid()
            return f"{numbers[i] & (MANY - 1):x}"
        if shape is Shape.ZERO:
            return "0"
        if chance.random() < 0.06:
            return "0"
        if shape in (Shape.STRING, Shape.TEXT):
            kind = values.STRING_KINDS.get((name, i), "")
            text = chance.choice(values.STRINGS[kind] if kind else values.NAMES)
            at = self.place(len(text) + 1, good=len(text) > 300)
            if len(text) > 2000:
                at = DATA + 8192
            self.put(at, text.encode() + b"\0")
            return f"{at:x}"
        if shape is Shape.STRINGS:
            first, at = self.place(16), self.place(24)
            self.put(first, b"one\0")
            self.put(at, struct.pack("<QQ", first, 0))
            return f"{at:x}"
        if shape in (Shape.IOV_IN, Shape.IOV_OUT):
            return f"{self.vector(numbers.get(argument.size_argument, 0), shape is Shape.IOV_OUT):x}"
        if shape in (Shape.MSG_IN, Shape.MSG_OUT, Shape.MSG_PART, Shape.MMSG_IN, Shape.MMSG_OUT, Shape.MMSG_PART):
            many = shape in (Shape.MMSG_IN, Shape.MMSG_OUT, Shape.MMSG_PART)
            count = min(numbers.get(argument.size_argument, 0), 4) if many else 1
            headers = [self.message(sends=shape in (Shape.MSG_IN, Shape.MMSG_IN)) + (bytes(8) if many else b"") for _ in range(count)]
            at = self.place(64 * max(count, 1))
            self.put(at, b"".join(headers))
            return f"{at:x}"
        size = self.size(argument, numbers)
        at = self.place(size)
        if shape in (Shape.OUT, Shape.PART) and DATA <= at < DATA + DATA_SIZE:
            self.before.append(f"S {at:x} {min(size + 8, 2048):x} {chance.choice((0xA5, 0x5A, 0)):x}")
        content = contents.CONTENTS.get((name, i))
        if content is not None:
            data = content(chance)
        elif shape is Shape.MASK6:
            data = struct.pack("<QQ", chance.choice((0, DATA)), 8)
        elif shape is Shape.MASK:
            data = bytes(8)
        elif argument.word == "xattrin" or shape in (Shape.XATTR_IN, Shape.XATTR_OUT):
            data = struct.pack("<QII", self.place(16), chance.choice((0, 5, 16, 100)), chance.choice((0, 1, 2, 9)))
        elif shape is Shape.PROGRAM:
            data = struct.pack("<HxxxxxxQ", chance.choice((1, 2, 0)), self.place(16)) + bytes(4)
        elif shape in (Shape.OUT, Shape.PART):
            data = b""
        elif size == 4 and argument.size_kind is SizeKind.FIXED:
            data = struct.pack("<I", chance.choice((0, 1, 4, 8, 16, 64, 128, 0xFFFFFFFF)))
        elif name in ("poll", "ppoll") and i == 0:
            data = b"".join(
                struct.pack("<Ihh", self.descriptor("ioctl") & 0xFFFFFFFF, chance.choice((1, 4, 5, 0x1000)), 0)
                for _ in range(max(size // 8, 1))
            )
        elif name in ("select", "pselect6") and i in (1, 2, 3):
            data = struct.pack(
                "<Q", sum(1 << FD[kind] for kind in ("reading", "writing", "stream", "event", "slave") if chance.random() < 0.4)
            ) * max(size // 8, 1)
        else:
            data = self.random_bytes(size)
        self.put(at, data)
        return f"{at:x}"

    def size(self, argument: Argument, numbers: dict[int, int]) -> int:
        if argument.shape in (Shape.MASK, Shape.MASK6, Shape.EVENT, Shape.TIMEX):
            return {Shape.MASK: 8, Shape.MASK6: 16, Shape.EVENT: 64, Shape.TIMEX: 208}[argument.shape]
        if argument.size_kind is SizeKind.BITS:
            return min(64, (numbers.get(argument.size_argument, 0) & 0xFFF) // 8 + 8)
        x = {SizeKind.BEHIND: 128, SizeKind.ARGUMENT: numbers.get(argument.size_argument, 0)}.get(argument.size_kind, 0)
        return max(1, min(x * argument.size_scale + argument.size_add, DATA_SIZE))

    def vector(self, count: int, written: bool) -> int:
        pieces = b""
        for _ in range(min(count, 8)):
            length = self.chance.choice((0, 1, 5, 8, 100))
            at = self.place(length)
            self.put(at, b"" if written else self.random_bytes(length))
            pieces += struct.pack("<QQ", at, length)
        at = self.place(max(16, len(pieces)))
        self.put(at, pieces)
        return at

    def message(self, *, sends: bool) -> bytes:
        chance = self.chance
        name, names = (self.place(16), chance.choice((0, 16, 128))) if chance.random() < 0.4 else (0, 0)
        if sends and name:
            self.put(name, contents.address_of_socket(chance))
        count = chance.choice((0, 1, 2, 2))
        vector = self.vector(count, not sends)
        control, controls = (self.place(64), 64) if chance.random() < 0.4 else (0, 0)
        if sends and control:
            controls = 24
            self.put(control, struct.pack("<Qiii4x", 20, 1, 1, chance.choice((20, 23, 33, 99))))
        return struct.pack("<QI4xQQQQI4x", name, names, vector, count, control, controls, 0)


_SIGNAL_OF = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}


def _plain(word: str) -> bool:
    return not word.startswith("@") and int(word, 16) in values.FATAL_TO_HELPER | {9}


def _weight(entry: rows.Entry) -> float:
    row, number, class_, _, _ = entry
    base = min(1.0, 4.0 / (len(row.variants) + 1))
    if row.name in _RARE:
        base *= 0.1
    if row.name in _OFTEN:
        base *= 2
    if class_ is Class.GO_HOME:
        base *= 0.06 if number == 0 else 0.03
    return base


_RARE = {"setfsuid", "setfsgid", "setgroups", "capset", "munlockall", "mlockall", "close_range", "fsync", "fdatasync", "syncfs", "execve",
"execveat",
         "setsid", "mlock2", "umask", "memfd_secret", "fanotify_init", "chdir", "fchdir", "setpgid"}  # fmt: skip
_OFTEN = {"read", "write", "readv", "writev", "mmap", "mprotect", "munmap", "mremap", "madvise", "rt_sigaction", "rt_sigprocmask", "kill",
"openat", "poll",
          "recvmsg", "sendmsg", "pipe2", "socketpair", "close", "dup2", "fstat", "lseek", "wait4"}  # fmt: skip
_OF_THE_MACHINE = {"msgctl": (3, 11, 12, 13), "semctl": (3, 18, 19, 20), "shmctl": (3, 13, 14, 15)}
_NOT_THESE = {("fcntl", 38), ("arch_prctl", 0x1002), *((name, command) for name, some in _OF_THE_MACHINE.items() for command in some)}
"""F_OFD_SETLKW may wait for the process itself; by ARCH_SET_FS a thread loses what the C library keeps of it; the others list objects
that other programs make."""
_ENTRIES = [entry for entry in rows.entries() if not (entry[4] and (entry[0].name, entry[4][0][2]) in _NOT_THESE)]


def episode(seed: int, length: int = LENGTH) -> Episode:
    return Generator(seed, length).make()


def program(seed: int, calls: int) -> list[Episode]:
    """Makes as many episodes as it takes to make that many calls. Each has a seed of its own."""
    return [episode(seed * 1_000_003 + number) for number in range(max(1, calls // LENGTH))]
