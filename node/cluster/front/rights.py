"""Gives up all rights, before the first byte of a stranger is read: what reads such bytes may turn out to be somebody else's program.

What is left to it are the descriptors that it was given, its memory, and a directory of its own in memory, which is all of its root. It
has a user id that no account and no guest has, no capability and none to get, and may make no system call but those named here: it opens
no socket, starts no program and no thread, and makes no memory executable.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from pathlib import Path

IDS = 0x7FFE_0000
"""The first of 65536 user ids: beyond those of guests (remote/sandbox/identity.py), below 2**31."""
ROOM = 1 << 20
"""Bytes of its directory."""
DESCRIPTORS = 4096
MEMORY = 2 << 30
"""Bytes of address space."""

_UNSHARE_MOUNTS, _UNSHARE_IPC = 0x00020000, 0x08000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 22, 24, 38, 47
_SECCOMP_MODE_FILTER, _CAP_AMBIENT_CLEAR_ALL = 2, 4
_SYS_PIVOT_ROOT, _SYS_CAPSET = 155, 126
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63

CALLS = {
    "epoll_wait": 232, "recvmsg": 47, "sendmsg": 46, "recvfrom": 45, "sendto": 44, "read": 0, "write": 1, "epoll_ctl": 233,
    "clock_gettime": 228, "futex": 202, "mmap": 9, "munmap": 11, "mprotect": 10, "mremap": 25, "madvise": 28, "brk": 12, "close": 3,
    "accept4": 288, "getsockname": 51, "getpeername": 52, "getsockopt": 55, "setsockopt": 54, "shutdown": 48, "ioctl": 16, "fcntl": 72,
    "getrandom": 318, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sigaltstack": 131, "restart_syscall": 219,
    "openat": 257, "fstat": 5, "stat": 4, "lstat": 6, "newfstatat": 262, "lseek": 8, "getdents64": 217, "getcwd": 79, "readlink": 89,
    "clock_nanosleep": 230, "sched_yield": 24, "getpid": 39, "gettid": 186, "getuid": 102, "geteuid": 107, "getgid": 104, "getegid": 108,
    "poll": 7, "epoll_pwait": 281, "exit": 60, "exit_group": 231, "tgkill": 234, "rseq": 334, "set_robust_list": 273,
}  # fmt: skip
"""What it may do; everything else is EPERM."""
_WITH_PROTECTION = ("mmap", "mprotect")
_IOCTLS = (0x5421, 0x5450, 0x5451)
"""FIONBIO, FIONCLEX, FIOCLEX."""

_libc = ctypes.CDLL(None, use_errno=True)


def _must(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def give_up(parent: int) -> None:
    """Gives all rights up, for good; the process ends with `parent`. Errors: OSError: it still has some."""
    user = IDS + (os.getpid() & 0xFFFF)
    _bound()
    _leave_the_files(user)
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # the kernel has no more of them
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _libc.prctl(_PR_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _must(_libc.syscall(_SYS_CAPSET, struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)), "capset")
    _must(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")
    _must(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        raise OSError("the daemon has ended")
    _must(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    program = _filter()
    held = ctypes.create_string_buffer(program, len(program))
    reported = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(held))
    _must(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, reported, 0, 0), "PR_SET_SECCOMP")


def _bound() -> None:
    for what, most in (
        (resource.RLIMIT_NOFILE, DESCRIPTORS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, ROOM), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_MSGQUEUE, 0),
    ):  # fmt: skip
        resource.setrlimit(what, (most, most))
    Path("/proc/self/oom_score_adj").write_text("0", encoding="ascii")  # before the daemon, which has less to spare


def _leave_the_files(user: int) -> None:
    """An empty directory in memory becomes all that there is; everything that was mounted is out of reach."""
    _must(_libc.unshare(_UNSHARE_MOUNTS | _UNSHARE_IPC), "unshare")
    _must(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "making mounts private")
    options = f"mode=0700,size={ROOM},nr_inodes=32,uid={user},gid={user}".encode()
    # Any directory will do to stack the new root on; every system has this one.
    _must(_libc.mount(b"tmpfs", b"/proc", b"tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options), "tmpfs")
    os.chdir("/proc")
    _must(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    _must(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def _filter() -> bytes:
    """The program of the kernel's filter of calls: code, jump if true, jump if false, constant."""
    load, equal, any_bit, ret = 0x20, 0x15, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1  # EPERM
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4), (equal, 1, 0, 0xC000003E), (ret, 0, 0, refuse), (load, 0, 0, 0),
    ]  # fmt: skip
    for name, number in CALLS.items():
        if name in _WITH_PROTECTION:  # not PROT_EXEC
            code += [(equal, 0, 4, number), (load, 0, 0, 16 + 2 * 8), (any_bit, 0, 1, 4), (ret, 0, 0, refuse), (ret, 0, 0, allow)]
        elif name == "ioctl":
            code += [(equal, 0, len(_IOCTLS) * 2 + 2, number), (load, 0, 0, 16 + 8)]
            for one in _IOCTLS:
                code += [(equal, 0, 1, one), (ret, 0, 0, allow)]
            code.append((ret, 0, 0, refuse))
        else:
            code += [(equal, 0, 1, number), (ret, 0, 0, allow)]
    code.append((ret, 0, 0, refuse))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def remaining(pid: int) -> str | None:
    """Return a right that the process still has, in words; None: it has none. Looked at from outside, before it is sent any secret."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        reported = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if not all(IDS <= int(number) < IDS + (1 << 16) for kind in ("Uid", "Gid") for number in reported[kind].split()):
            return "an id that somebody has"
        if reported["Groups"].strip():
            return "groups"
        if any(int(reported[kind], 16) for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")):
            return "capabilities"
        if (reported["NoNewPrivs"], reported["Seccomp"]) != ("1", "2"):
            return "all system calls"
    except (OSError, KeyError, ValueError) as error:
        return f"rights that cannot be looked at ({error})"
    return None
