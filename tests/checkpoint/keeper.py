"""A process that has a bit of everything that a checkpoint keeps; when the file `go` exists, it checks that it still has all of it, and
writes what is missing into the file `verdict`."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time

here = os.getcwd()
faults: list[str] = []
alarms: list[float] = []


def check(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        faults.append(f"{what}: {found!r}, not {wanted!r}")


signal.signal(signal.SIGALRM, lambda number, frame: alarms.append(time.monotonic()))
signal.signal(signal.SIGUSR1, lambda number, frame: faults.append("a signal that is blocked came"))
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 1000.0, 7.0)
os.umask(0o027)
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
with open("data", "wb") as file:
    file.write(bytes(range(200)))

shared = os.open("data", os.O_RDONLY)
os.dup2(shared, 77, inheritable=True)
apart = os.open("data", os.O_RDONLY)
appended = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
zero = os.open("/dev/zero", os.O_RDWR | os.O_NONBLOCK)
os.dup2(1, 250)
os.lseek(shared, 100, os.SEEK_SET)
os.lseek(apart, 50, os.SEEK_SET)
os.write(appended, b"before\n")
os.makedirs("below", exist_ok=True)
os.chdir("below")
mine = (os.getpid(), os.getuid(), os.getgid())
numbers = sorted(os.listdir("/proc/self/fd"))
print("ready", flush=True)
while not os.path.exists(f"{here}/go"):
    time.sleep(0.01)

check("ids", (os.getpid(), os.getuid(), os.getgid()), mine)
check("descriptors", sorted(os.listdir("/proc/self/fd")), numbers)
check("a byte at the shared offset", os.read(shared, 1), b"\x64")
check("the next, by its other number", os.read(77, 1), b"\x65")
check("a byte at an offset of its own", os.read(apart, 1), b"\x32")
check("close-on-exec", [bool(fcntl.fcntl(fd, fcntl.F_GETFD)) for fd in (shared, 77, appended)], [True, False, True])
flags = [(appended, os.O_APPEND), (zero, os.O_NONBLOCK), (apart, os.O_NONBLOCK)]
kept = [bool(fcntl.fcntl(fd, fcntl.F_GETFL) & flag) for fd, flag in flags]
check("flags", kept, [True, True, False])
os.lseek(appended, 0, os.SEEK_SET)
os.write(appended, b"after\n")
with open(f"{here}/log") as log:
    check("what was appended", log.read(), "before\nafter\n")
check("a directory", "data" in os.listdir(directory), True)
check("zeros", os.read(zero, 3), bytes(3))
check("the same output", os.fstat(250).st_ino, os.fstat(1).st_ino)
check("working directory", os.getcwd(), f"{here}/below")
check("umask", os.umask(0), 0o027)
check("nice", os.getpriority(os.PRIO_PROCESS, 0), 3)
check("descriptors at most", resource.getrlimit(resource.RLIMIT_NOFILE), (300, 400))
check("core", resource.getrlimit(resource.RLIMIT_CORE), (0, 0))
left, every = signal.getitimer(signal.ITIMER_REAL)
check("the timer", (900 < left < 1000, every), (True, 7.0))
check("what waits", signal.sigpending(), {signal.SIGUSR1})
check("mask", signal.pthread_sigmask(signal.SIG_BLOCK, ()), {signal.SIGUSR1})
check("what is ignored", signal.getsignal(signal.SIGUSR2), signal.SIG_IGN)
check("its program", os.path.basename(os.readlink("/proc/self/exe")).startswith("python"), True)
check("its command", b"keeper.py" in open("/proc/self/cmdline", "rb").read(), True)  # noqa: SIM115
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.3)
check("alarms", len(alarms), 1)
with open(f"{here}/verdict", "w") as verdict:
    verdict.write("\n".join(faults) or "fine")
