"""Makes writes whose order, content and failures another process checks: see tests/moves/test_run_ahead.py."""

import ctypes
import errno
import fcntl
import os
import random
import signal
import socket
import sys
import time

LINE = 100
AT_EMPTY_PATH = 0x1000


def line(number):
    return (b"%d:" % number).ljust(LINE - 1, b".") + b"\n"


# ---- all kinds of writes, against what they must come to ----


class File:
    """Some descriptors of one file, and what is to be in it. Position of each description; None: it appends."""

    def __init__(self, name, rng):
        self.name, self.rng, self.content = name, rng, bytearray()
        self.fds = {}
        self.open()

    def open(self):
        flags = self.rng.choice([0, 0, os.O_APPEND, os.O_DSYNC if self.rng.random() < 0.2 else 0])
        fd = os.open(self.name, os.O_RDWR | os.O_CREAT | flags, 0o600)
        self.fds[fd] = [0, bool(flags & os.O_APPEND)]
        if self.rng.random() < 0.3:
            self.fds[os.dup(fd)] = self.fds[fd]  # of one description

    def put(self, at, data):
        if at > len(self.content):
            self.content.extend(bytes(at - len(self.content)))
        self.content[at : at + len(data)] = data

    def write(self, fd, data):
        place = self.fds[fd]
        assert os.write(fd, data) == len(data)
        at = len(self.content) if place[1] else place[0]
        self.put(at, data)
        place[0] = at + len(data)

    def step(self):
        rng, fd = self.rng, self.rng.choice(list(self.fds))
        place = self.fds[fd]
        what = rng.random()
        data = rng.randbytes(rng.choice([1, 7, 100, 4096, 30000, 40000]))
        if what < 0.5:
            self.write(fd, data)
        elif what < 0.7 and not place[1]:
            at = rng.randrange(len(self.content) + 100)
            assert os.pwrite(fd, data, at) == len(data)
            self.put(at, data)
        elif what < 0.78:
            place[0] = os.lseek(fd, rng.randrange(len(self.content) + 1), os.SEEK_SET)
        elif what < 0.82:
            size = rng.randrange(len(self.content) + 1)
            os.ftruncate(fd, size)
            del self.content[size:]
        elif what < 0.86:
            assert os.fstat(fd).st_size == len(self.content)
        elif what < 0.9:
            assert os.lseek(fd, 0, os.SEEK_CUR) == place[0], (os.lseek(fd, 0, os.SEEK_CUR), place)
        elif what < 0.92 and len(self.fds) > 1:
            os.close(fd)
            del self.fds[fd]
        elif what < 0.94 and len(self.fds) < 6:
            self.open()
        elif what < 0.95:
            child = os.fork()
            if not child:
                os.write(fd, data)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            at = len(self.content) if place[1] else place[0]
            self.put(at, data)
            place[0] = at + len(data)
        elif what < 0.97:
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) ^ os.O_APPEND)
            place[1] = not place[1]
        else:
            self.check()

    def check(self):
        with open(self.name, "rb") as source:
            assert source.read() == self.content, self.name
        fd = next(iter(self.fds))
        assert os.pread(fd, len(self.content) + 1, 0) == self.content


def model(seed, steps):
    rng = random.Random(int(seed))
    files = [File(f"file-{number}", rng) for number in range(3)]
    for number in range(int(steps)):
        file = rng.choice(files)
        file.step()
        if len(file.content) > 300000:
            os.ftruncate(next(iter(file.fds)), 0)
            file.content.clear()
        if number % 50 == 0:
            print(number, flush=True)
    for file in files:
        file.check()
    print("all as it should be")


# ---- a notified process checks the writes ----


def await_file(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def number_in(path):
    with open(path) as source:
        return int(source.read())


def sender(how, rounds):
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, line(0))
    fifo = os.open("fifo", os.O_RDWR) if how == "fifo" else -1
    there = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for number in range(1, int(rounds)):
        os.write(log, line(number))
        if how == "fifo":
            os.write(fifo, b"x")
        elif how == "socket":
            there.sendto(b"x", "socket")
        elif how == "name":
            os.mkdir(f"number-{number}")
        elif how == "lock":
            fcntl.lockf(lock := os.open("lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
            os.pwrite(lock, b"%08d" % number, 0)
            os.close(lock)
        elif how == "signal":
            os.kill(number_in("partner"), signal.SIGUSR1)
            signal.sigtimedwait([signal.SIGUSR1], 20)
        elif how == "exit":
            if not os.fork():
                os.write(log, line(number)[: LINE - 1] + b"\n")
                os._exit(0)
            os.wait()
            assert os.stat("log").st_size == LINE * (2 * number + 1)
    print("said")


def notified(how, number, fifo, here):
    """Waits for the notification with that number; returns whether it has come."""
    if how == "fifo":
        return os.read(fifo, 1) == b"x"
    if how == "socket":
        return here.recv(10) == b"x"
    if how == "name":
        while not os.path.exists(f"number-{number}"):
            time.sleep(0.0001)
        return True
    if how == "lock":
        while True:
            fcntl.lockf(lock := os.open("lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
            latest = int(os.pread(lock, 8, 0) or b"0")
            os.close(lock)
            if latest >= number:
                return True
    return signal.sigtimedwait([signal.SIGUSR1], 60) is not None


def receiver(how, rounds):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    here = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    here.bind("socket")
    os.mkfifo("fifo")
    fifo = os.open("fifo", os.O_RDWR)
    with open("partner.new", "w") as partner:
        partner.write(str(os.getpid()))
    os.rename("partner.new", "partner")
    for number in range(1, int(rounds)):
        assert notified(how, number, fifo, here)
        size = os.stat("log").st_size
        assert size >= LINE * (number + 1), (number, size)
        if how == "signal":
            await_file("sender")
            os.kill(number_in("sender"), signal.SIGUSR1)
    print("heard")


# ---- what fails ----


def attributes(fd, name):
    """Has libc ask for the attributes of an open file by that call, with an empty path."""
    libc, room = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(256)
    more = (room, AT_EMPTY_PATH) if name == "newfstatat" else (AT_EMPTY_PATH, 0x7FF, room)
    if libc.syscall({"newfstatat": 262, "statx": 332}[name], fd, b"", *more):
        raise OSError(ctypes.get_errno(), name)
    return 0


def full(path, call):
    """Uses up the space of its file system, then makes `call`."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, line(0))
    os.mkdir("ready")
    await_file("go")
    said = []
    said.append(os.write(fd, bytes(20000)))
    said.append(os.write(fd, bytes(20000)))
    time.sleep(0.1)
    os.mkdir("failed")
    await_file("again")  # there is room again
    said.append(os.write(fd, bytes(20000)))
    if call == "elsewhere":
        os.dup2(os.open("other", os.O_RDWR | os.O_CREAT, 0o600), fd)
    try:
        said.append(
            os.fsync(fd)
            if call == "fsync"
            else os.close(fd)
            if call == "close"
            else os.lseek(fd, 0, os.SEEK_END)
            if call == "elsewhere"
            else attributes(fd, call)
            if call in ("newfstatat", "statx")
            else os.write(fd, bytes(40000))
        )
    except OSError as error:
        said.append(errno.errorcode[error.errno])
    size = os.stat(path).st_size
    if call == "fsync":
        said.append(os.write(fd, bytes(5)))
        os.fsync(fd)
        said.append(os.stat(path).st_size - size)
    print(*said, size <= 4096, flush=True)


def limited(limit):
    import resource

    signal.signal(signal.SIGXFSZ, lambda number, frame: print("signal", number, flush=True))
    fd = os.open("limited", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, bytes(1000))
    os.write(fd, bytes(1000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    for _ in range(4):
        try:
            print(os.write(fd, bytes(1000)), flush=True)
        except OSError as error:
            print(errno.errorcode[error.errno], flush=True)


def alternate(*_):
    """To two files by turns, until it is killed."""
    files = [os.open(name, os.O_WRONLY | os.O_CREAT, 0o600) for name in ("one", "two")]
    number = 0
    while True:
        for file in files:
            os.write(file, line(number))
        number += 1
        if number % 20 == 0:
            os.fsync(files[0])
            os.mkdir(f"synced-{number}")


def ends(how):
    """Just after it has written."""
    import ctypes

    file = os.open("last", os.O_WRONLY | os.O_CREAT, 0o600)
    for number in range(300):
        os.write(file, line(number))
    if how == "exits":
        os._exit(3)
    if how == "faults":
        ctypes.string_at(8)
    if how == "aborts":
        os.abort()
    if how == "kills itself":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "executes":
        os.execvp("sh", ["sh", "-c", f"test $(wc -c < last) = {300 * LINE}; exit $?"])
    if how == "has a child":
        if os.fork():
            os._exit(os.wait()[1] >> 8)
        os._exit(os.stat("last").st_size != 300 * LINE)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)  # by SIGALRM, wherever it is
    while True:
        os.write(file, line(number := number + 1))


def count(number):
    """Short writes, and no more."""
    log = os.open("log", os.O_WRONLY | os.O_CREAT, 0o600)
    for n in range(int(number)):
        os.write(log, line(n))
    os.close(log)
    print("written", flush=True)
    time.sleep(60)


globals()[sys.argv[1]](*sys.argv[2:])
