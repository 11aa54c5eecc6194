"""Opens files in many ways and prints what each call returns: see tests/moves/test_carried.py."""

from __future__ import annotations

import array
import ctypes
import fcntl
import hashlib
import mmap
import os
import signal
import sys
import termios
import time

SIZES = (0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 300_000)
LIBC = ctypes.CDLL(None, use_errno=True)


def digest(data: bytes) -> str:
    """Returns the length and a hash of the bytes."""
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()[:12]}"


def status(found: os.stat_result) -> tuple[int, ...]:
    """Returns the attributes that are the same in two runs."""
    return found.st_mode, found.st_nlink, found.st_size, found.st_uid, found.st_blksize, int(found.st_mtime)


def fails(number: int | None) -> str:
    """A word for an error."""
    return f"errno {number}"


def at_once(fd: int) -> object:
    return digest(os.read(fd, 1 << 20)), digest(os.read(fd, 1 << 20))


def in_pieces(fd: int) -> object:
    pieces = []
    while piece := os.read(fd, 1000):
        pieces.append(piece)
        if len(pieces) == 80:
            break
    return digest(b"".join(pieces)), os.lseek(fd, 0, os.SEEK_CUR)


def by_place(fd: int) -> object:
    return [digest(os.pread(fd, 100, at)) for at in (0, 50, 4000, 4096, 65500, 70_000)], os.lseek(fd, 0, os.SEEK_CUR)


def seeking(fd: int) -> object:
    found: list[object] = []
    for by, whence in ((10, os.SEEK_SET), (5, os.SEEK_CUR), (-3, os.SEEK_END), (1 << 20, os.SEEK_SET), (-1, os.SEEK_SET), (0, 9), (4, 0)):
        try:
            found += [os.lseek(fd, by, whence), digest(os.read(fd, 7))]
        except OSError as error:
            found.append(fails(error.errno))
    return found


def kind(fd: int) -> object:
    try:
        termios.tcgetattr(fd)
    except termios.error as error:
        return status(os.fstat(fd)), fails(error.args[0]), fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD)
    return "a terminal"


def shared(fd: int) -> object:
    first = digest(os.read(fd, 100))
    copy = os.dup(fd)
    return first, digest(os.read(copy, 100)), digest(os.read(fd, 100)), os.close(copy), os.lseek(fd, 0, os.SEEK_CUR)


def inherited(fd: int) -> object:
    first = digest(os.read(fd, 10))
    child = os.fork()
    if not child:
        os.read(fd, 10)
        os._exit(0)
    os.waitpid(child, 0)
    return first, os.lseek(fd, 0, os.SEEK_CUR), digest(os.read(fd, 10))


def to_bad_memory(fd: int) -> object:
    ctypes.set_errno(0)
    got = LIBC.read(fd, ctypes.c_void_p(16), 10)
    return got, fails(ctypes.get_errno()), os.lseek(fd, 0, os.SEEK_CUR)


def without_rights(fd: int) -> object:
    try:
        return os.write(fd, b"x")
    except OSError as error:
        return fails(error.errno)


def in_vectors(fd: int) -> object:
    first, second = bytearray(10), bytearray(20)
    return os.readv(fd, [first, second]), digest(bytes(first)), digest(bytes(second)), digest(os.read(fd, 5))


def counted(fd: int) -> object:
    room = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, room)
    except OSError as error:
        return fails(error.errno)
    return room[0]


def closed_twice(fd: int) -> object:
    copy = os.dup(fd)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.read(again, 5)
    os.close(again)
    try:
        os.close(again)
    except OSError as error:
        return fails(error.errno), os.close(copy)
    return "closed twice"


def number_used_again(fd: int) -> object:
    other = os.open("4095", os.O_RDONLY)
    first = digest(os.read(other, 10))
    os.close(other)
    again = os.open("4096", os.O_RDONLY)
    return first, again == other, digest(os.read(again, 10)), os.close(again)


def closed_later(fd: int) -> object:
    """When other calls have gone home since it was opened: mapped, locked, made another file's."""
    name, found = str(os.fstat(fd).st_size), []
    one, two = os.open(name, os.O_RDONLY), os.open(name, os.O_RDONLY)
    if name != "0":
        with mmap.mmap(one, 0, prot=mmap.PROT_READ) as area:
            found.append(digest(area[:]))
    fcntl.flock(one, fcntl.LOCK_EX)
    for _ in range(2):
        try:
            found.append(fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except OSError as error:
            found.append(fails(error.errno))
            os.close(one)
    again = os.open(name, os.O_RDONLY)
    found += [again == one, os.dup2(two, again) == again]
    os.close(again)
    for _ in range(2):
        try:
            found.append(os.close(again))
        except OSError as error:
            found.append(fails(error.errno))
    closed = os.open(name, os.O_RDONLY)
    os.getppid()
    os.close(closed)
    reader, writer = os.pipe()
    os.write(writer, b"x")
    found += [closed in (reader, writer), os.read(reader, 1)]
    for other in (two, reader, writer):
        os.close(other)
    return found


WAYS = (at_once, in_pieces, by_place, seeking, kind, shared, inherited, to_bad_memory, without_rights, in_vectors, counted, closed_twice,
        number_used_again, closed_later)  # fmt: skip


def listed(path: str) -> list[object]:
    """Directories read whole, in parts, from the beginning again, and with a change between."""
    found: list[object] = [sorted(os.listdir(path))]
    with os.scandir(path) as entries:
        first = next(entries, None)
        found.append(first is not None)
        rest = [entry.name for entry in entries]
    found.append(sorted([*rest, *([first.name] if first else [])]) == sorted(os.listdir(path)))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    found.append([sorted(os.listdir(fd)) == sorted(os.listdir(path)) for _ in range(2)])
    for size in (24, 100, 1000):
        os.lseek(fd, 0, os.SEEK_SET)
        room, names, total = ctypes.create_string_buffer(size), 0, 0
        while (got := LIBC.syscall(217, fd, room, size)) > 0:
            at = 0
            while at < got:
                at += int.from_bytes(room.raw[at + 16 : at + 18], "little")
                names += 1
            total += 1
        found.append((size, got, names))
    os.close(fd)
    return found


def emptied(path: str) -> list[object]:
    """Each name is removed while the directory is read."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    room, gone = ctypes.create_string_buffer(200), 0
    while (got := LIBC.syscall(217, fd, room, 200)) > 0:
        at = 0
        while at < got:
            size = int.from_bytes(room.raw[at + 16 : at + 18], "little")
            name = room.raw[at + 19 : at + size].split(b"\0")[0]
            if name not in (b".", b".."):
                os.unlink(name, dir_fd=fd)
                gone += 1
            at += size
    os.close(fd)
    return [gone, os.listdir(path)]


def examine() -> None:
    """Tries all ways of reading with all sizes; the test checks the times of access that other processes see."""
    for size in SIZES:
        with open(str(size), "wb") as file:
            file.write(bytes(n * 7 % 251 for n in range(size)))
        os.utime(str(size), (time.time(), 1_000_000_000))
    time.sleep(0.02)
    for way in WAYS:
        for size in SIZES:
            for flags in (0, os.O_CLOEXEC, os.O_NONBLOCK):
                fd = os.open(str(size), os.O_RDONLY | flags)
                print(way.__name__, size, flags, way(fd), flush=True)
                os.close(fd)
    for count in (0, 1, 50, 3000):
        os.mkdir(f"d{count}")
        for n in range(count):
            os.close(os.open(f"d{count}/{'n' * (n % 50)}{n}", os.O_WRONLY | os.O_CREAT))
        os.utime(f"d{count}", (time.time(), 1_000_000_000))
        print(count, hashlib.sha256(repr(listed(f"d{count}")).encode()).hexdigest(), flush=True)
    print(emptied("d50"), flush=True)


def hold() -> None:
    """Leaves a position and a closed descriptor behind, and computes until a signal comes."""
    heard: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    fd = os.open("held", os.O_RDONLY)
    os.read(fd, 123)
    os.close(os.open("closed", os.O_RDONLY))
    again = os.open("held", os.O_RDONLY)
    os.read(again, 77)
    while not heard:
        pass
    print([(os.lseek(one, 0, os.SEEK_CUR), digest(os.read(one, 1000))) for one in (fd, again)], flush=True)


def hear(rounds: str) -> None:
    """Keeps a file open whose content it knows, and checks it after each kind of notification of a change."""
    count = 0
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    requests, answers = os.open("requests", os.O_WRONLY), os.open("answers", os.O_RDONLY)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for n in range(int(rounds)):
        fd = os.open("changing", os.O_RDONLY)
        before = os.fstat(fd).st_size, os.read(fd, 100)
        names = sorted(os.listdir("names"))
        directory = os.open("names", os.O_RDONLY)
        os.fstat(directory)
        os.write(requests, b"%d\n" % n)
        if n % 2:
            os.read(answers, 1)
        else:
            signal.sigwait([signal.SIGUSR1])
        now = os.fstat(fd).st_size, os.pread(fd, 100, 0)
        if now == before or now[1] != b"round %d" % n:
            print("STALE", n, before, now)
        if sorted(os.listdir(directory)) == names or not os.path.exists(f"names/{n}"):
            print("STALE names", n)
        os.close(fd)
        os.close(directory)
        count += 1
    print(count, "rounds", flush=True)


def change(rounds: str, other: str) -> None:
    """Runs beside hear(), at home: changes the files that it checks, and notifies it."""
    requests, answers = os.open("requests", os.O_RDONLY), os.open("answers", os.O_WRONLY)
    for n in range(int(rounds)):
        while os.read(requests, 1) not in (b"\n", b""):
            pass
        with open("changing", "wb") as file:
            file.write(b"round %d" % n)
        os.close(os.open(f"names/{n}", os.O_WRONLY | os.O_CREAT))
        if n % 2:
            os.write(answers, b"x")
        else:
            os.kill(int(other), signal.SIGUSR1)


def many(count: str) -> None:
    """Reads small files, then waits until it is let go."""
    for n in range(int(count)):
        fd = os.open(f"many/{n}", os.O_RDONLY)
        size = os.fstat(fd).st_size
        if len(os.read(fd, 65536)) != size or os.read(fd, 1):
            print("wrong", n)
        os.close(fd)
    print("read", flush=True)
    with open("go", "rb") as go:
        go.read()


if __name__ == "__main__":
    {"examine": examine, "hold": hold, "hear": hear, "change": change, "many": many}[sys.argv[1]](*sys.argv[2:])
