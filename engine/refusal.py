"""What keeps a process at home, in one sentence. Looks into /proc only; does not touch the process."""

from __future__ import annotations

import os

from engine.files import FileMapping, mappings
from kernel_helpers.inject import SYS, Frozen

_DESCRIPTORS = {
    "anon_inode:[io_uring]": "it uses io_uring",
    "anon_inode:[signalfd]": "it receives signals through a signalfd",
    "anon_inode:[userfaultfd]": "it handles page faults with userfaultfd",
    "anon_inode:[perf_event]": "it holds performance counters",
    "anon_inode:kvm-vm": "it runs a virtual machine",
    "/secretmem": "it holds secret memory",
}
_CPU_TIMER = "it has a timer that counts its processor time ({})"
ITIMER_VIRTUAL, ITIMER_PROF = 1, 2
_NAMESPACES = {
    "user": "it is in a user namespace of its own",
    "pid": "it is in a pid namespace of its own",
    "mnt": "it is in a mount namespace of its own",
    "time": "it is in a time namespace of its own",
}


def why_not(pid: int, traced_by: int | None = None) -> str | None:
    """The reason why the process cannot move, or None. `traced_by`: a tracer that is no reason (the deputy itself).

    Errors: ProcessLookupError.
    """
    try:
        return (
            _by_status(pid, traced_by)
            or _by_namespaces(pid)
            or _by_program(pid)
            or _by_descriptors(pid)
            or _by_mappings(pid)
            or _by_timers(pid)
        )
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in status)}


def _by_status(pid: int, traced_by: int | None) -> str | None:
    status = _status(pid)
    if status["State"][0] in "ZX":
        return "it has ended" if status.get("Threads", "1") == "1" else "its main thread has ended"
    if "VmSize" not in status:
        return "it is part of the kernel"
    tracer = int(status["TracerPid"])
    if tracer and tracer != traced_by:
        return f"it is traced by process {tracer}"
    if status.get("Seccomp", "0") != "0":
        return "it runs under a seccomp filter of its own"
    return None


def _by_namespaces(pid: int) -> str | None:
    for name, reason in _NAMESPACES.items():
        try:
            if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
                return reason
        except FileNotFoundError:
            if not os.path.exists(f"/proc/self/ns/{name}"):
                continue  # this kernel has no such namespaces
            raise
    if os.readlink(f"/proc/{pid}/root") != "/":
        return "it has a root directory of its own"
    return None


def _by_program(pid: int) -> str | None:
    with open(f"/proc/{pid}/exe", "rb") as program:
        header = program.read(20)
    if header[:4] == b"\x7fELF" and (header[4] != 2 or header[18:20] != b"\x3e\x00"):
        return "it is not a 64-bit x86 program"
    return None


def _by_descriptors(pid: int) -> str | None:
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        try:
            target = os.readlink(f"{directory}/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(("anon_inode:", "/secretmem")):
            reason = _DESCRIPTORS.get(target.removesuffix(" (deleted)"))
            if reason is not None:
                return f"{reason} (descriptor {name})"
    return None


def _by_mappings(pid: int) -> str | None:
    for mapping in mappings(pid):
        reason = _by_mapping(mapping)
        if reason is not None:
            return reason
    if _has_huge_pages(pid):
        return "it has huge pages of hugetlbfs mapped"
    return None


def _has_huge_pages(pid: int) -> bool:
    return int(_status(pid).get("HugetlbPages", "0 kB").split()[0]) > 0


def _by_timers(pid: int) -> str | None:
    """A timer stays at home with the stub, and there a cpu clock stands still. Those of setitimer(2) are told nowhere: see
    why_not_frozen()."""
    try:
        with open(f"/proc/{pid}/timers", encoding="utf-8") as timers:
            clocks = [int(line.split()[1]) for line in timers if line.startswith("ClockID:")]
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}"):
            return None  # this kernel does not tell
        raise
    return _CPU_TIMER.format("timer_create") if any(clock < 0 for clock in clocks) else None


def why_not_frozen(frozen: Frozen) -> str | None:
    """What only the process itself can find out. Errors: OSError."""
    with frozen.scratch(32) as address:
        for which in (ITIMER_VIRTUAL, ITIMER_PROF):
            frozen.call(SYS.getitimer, which, address)
            if any(frozen.read(address, 32)[16:]):
                return _CPU_TIMER.format("setitimer")
    return None


def _by_mapping(mapping: FileMapping) -> str | None:
    path = mapping.path
    shared = mapping.permissions[3] == "s"
    if path.startswith("/SYSV"):
        return "it has System V shared memory attached"
    if path.startswith("/[aio]"):
        return "it uses kernel asynchronous I/O"
    if path.startswith("/anon_hugepage"):
        return "it has huge pages of hugetlbfs mapped"
    if path.startswith(("anon_inode:", "dmabuf:", "/secretmem")):
        return f"it has {path.removesuffix(' (deleted)')} mapped"
    if path.startswith("/dev/") and not path.startswith(("/dev/zero", "/dev/shm/")):
        return f"it has the device {path} mapped"
    if shared and mapping.permissions[1] == "w":
        if path.startswith("/dev/zero"):
            return "it shares anonymous memory that it, or a process it is related to, can write"
        return f"it has {path.removesuffix(' (deleted)') or 'memory'} mapped shared and writable"
    if shared and path.endswith(" (deleted)"):
        return f"it has {path.removesuffix(' (deleted)')} mapped shared, which is deleted"
    return None
