"""What keeps a process at home, a sentence for each reason. Looks into /proc only; does not touch the process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.context.confinement import IN_IMAGES, STRICT, is_confined
from engine.context.marks import IN_IMAGES as GUARDS_IN_IMAGES
from engine.files.files import FileMapping, named_mappings
from engine.leaving.peculiar import CPU_TIMER, by_looking, lines
from engine.leaving.permission import LINES, THREADS_DIFFER, Statuses, credentials
from engine.leaving.private import has_own_mounts, private_directories
from engine.leaving.remains import is_slots
from engine.mappings.address_space import Maps, read_mappings_quickly
from engine.memory import alone, written
from engine.signals.signalfds import NAME as SIGNALFD
from kernel_helpers.inspection import tasks
from kernel_helpers.inspection.sharing import who_shares_memory
from kernel_helpers.pages.pages import has_guards
from kernel_helpers.process.seizing import parent_of

_DESCRIPTORS = {
    "anon_inode:[io_uring]": "it uses io_uring",
    "anon_inode:[userfaultfd]": "it handles page faults with userfaultfd",
    "anon_inode:[perf_event]": "it holds performance counters",
    "anon_inode:kvm-vm": "it runs a virtual machine",
    "/secretmem": "it holds secret memory",
}
_OWN_PROC = re.compile(r"/proc/\d+/(?:task/\d+/)?(?:maps|smaps|smaps_rollup|numa_maps|status|stat|statm|mem|pagemap|clear_refs)")
_PF_KTHREAD = 0x200000
_LOOKS = 10
"""At memory that two processes have, until it is said to stay so."""
_VFORK = "it shares its memory until process"
_ITSELF = "it looks at itself through /proc/self/"
PRIVATE = "it has private directories (mosrun -X)"
_CAP_SYS_RESOURCE = 24
_NAMESPACES = {
    "user": "it is in a user namespace of its own",
    "pid": "it is in a pid namespace of its own",
    "time": "it is in a time namespace of its own",
}


def statuses(pid: int) -> Statuses:
    """Return what the statuses of all threads say of what is looked at here and in engine/leaving/permission.py. Errors:
    ProcessLookupError."""
    return tasks.texts(pid, "status", [*LINES, *lines()])


@dataclass(frozen=True)
class Standing:
    """What has been read of a process that stands still: its statuses(), its mappings that have a file, and all."""

    statuses: Statuses
    named: list[FileMapping]
    maps: Maps

    @classmethod
    def of(cls, pid: int) -> Standing:
        """Errors: OSError, ProcessLookupError."""
        return cls(statuses(pid), named_mappings(pid), read_mappings_quickly(pid))


def why_not(
    pid: int, traced_by: int | None = None, lasting: bool = False, standing: Standing | None = None, signalfds: list[str] | None = None
) -> str | None:
    """Return the first reason why the process cannot move, or None. `traced_by`: a tracer that is no reason (the deputy itself). lasting:
    leave out what may have passed in a moment. standing: what is known of it, if it stands still. signalfds: gets the numbers of those that
    it has.

    Errors: ProcessLookupError.
    """
    return next((reason for reason in reasons(pid, traced_by, standing, signalfds) if not (lasting and passes(reason))), None)


def passes(reason: str) -> bool:
    """Return whether such a thing mostly is gone in a moment: a file that is read at once and closed, a child that is about to execute."""
    return reason.startswith((_ITSELF, _VFORK))


def reasons(pid: int, traced_by: int | None = None, standing: Standing | None = None, signalfds: list[str] | None = None) -> Iterator[str]:
    """Every reason, none twice, each looked for when it is asked for.

    Errors: ProcessLookupError.
    """
    said = set()
    try:
        for reason in _all(pid, traced_by, standing, signalfds):
            if reason not in said:
                said.add(reason)
                yield _printable(reason)
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    except PermissionError:
        yield "it has more rights than farhome, which may not look into it"


def only_poured(pid: int) -> Iterator[str]:
    """Reasons why a process cannot be moved by CRIU's images, only straight from memory into memory. Takes a walk over all of
    its pages.

    Errors: ProcessLookupError.
    """
    try:
        status = _status(pid)
        if not _has_capability(_CAP_SYS_RESOURCE) and any(len(set(status[name].split()[:3])) > 1 for name in ("Uid", "Gid")):
            yield "it runs with mixed user ids"
        if private_directories(pid):
            yield PRIVATE
        if is_confined(pid):
            yield IN_IMAGES
        if has_guards(pid):
            yield GUARDS_IN_IMAGES
        if any(m.permissions[3] == "s" and alone.may_be(m.path) and not is_slots(m) for m in named_mappings(pid)):
            yield alone.IN_IMAGES
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as smaps:
            start = ""
            for line in smaps:
                word = line.split(" ", 1)[0]
                if word == "VmFlags:":
                    flags = line.split()[1:]
                    # Device mappings have it too, and are reported as such.
                    if "dc" in flags and "io" not in flags and "pf" not in flags:
                        yield f"its memory at {start} is not passed on by fork (MADV_DONTFORK)"
                elif "-" in word:
                    start = word.partition("-")[0]
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    except PermissionError:
        return  # reasons() reports it


def _all(pid: int, traced_by: int | None, standing: Standing | None, signalfds: list[str] | None) -> Iterator[str]:
    status = _status(pid)
    if status["State"][0] in "ZX":
        yield "it has ended" if status.get("Threads", "1") == "1" else "its main thread has ended"
        return  # of such a one nothing more can be read
    if "VmSize" not in status:
        yield "it is part of the kernel" if is_kernels(pid) else "it has ended"  # it gives up its memory before all else
        return
    yield from _by_status(status, traced_by)
    reported = standing.statuses if standing is not None else statuses(pid)
    if len(credentials(pid, reported)) > 1:
        yield THREADS_DIFFER
    sharing = shares_memory(pid)
    if sharing is not None:
        yield sharing
    yield from _by_namespaces(pid)
    yield from _by_program(pid)
    yield from _by_descriptors(pid, signalfds)
    yield from _by_mappings(pid, standing.named if standing is not None else named_mappings(pid))
    yield from _by_timers(pid)
    yield from by_looking(pid, reported, standing is None or standing.maps.may_be_sealed)


def _printable(text: str) -> str:
    """A path may hold anything: what is no text, or no part of a line, becomes a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in status)}


def _by_status(status: dict[str, str], traced_by: int | None) -> Iterator[str]:
    tracer = int(status["TracerPid"])
    if tracer and tracer != traced_by:
        yield f"it is traced by process {tracer}"
    if status.get("Seccomp", "0") == "1":  # of its filters only the process itself can know: engine/leaving/peculiar.py
        yield STRICT


def _has_capability(number: int) -> bool:
    return bool(int(_status(os.getpid())["CapEff"], 16) >> number & 1)


def _by_namespaces(pid: int) -> Iterator[str]:
    for name, reason in _NAMESPACES.items():
        try:
            if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
                yield reason
        except FileNotFoundError:
            if not os.path.exists(f"/proc/self/ns/{name}"):
                continue  # this kernel has no such namespaces
            raise
    if has_own_mounts(pid) and not private_directories(pid):
        yield "it is in a mount namespace of its own"
    if os.readlink(f"/proc/{pid}/root") != "/":
        yield "it has a root directory of its own"


def _by_program(pid: int) -> Iterator[str]:
    with open(f"/proc/{pid}/exe", "rb") as program:
        header = program.read(20)
    if header[:4] == b"\x7fELF" and (header[4] != 2 or header[18:20] != b"\x3e\x00"):
        yield "it is not a 64-bit x86 program"


def _by_descriptors(pid: int, signalfds: list[str] | None) -> Iterator[str]:
    """One reason for each kind, with the first descriptor of it."""
    directory, reported = f"/proc/{pid}/fd", set()
    for name in os.listdir(directory):
        try:
            target = os.readlink(f"{directory}/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(f"/proc/{pid}/") and _OWN_PROC.fullmatch(target) and _ITSELF not in reported:
            reported.add(_ITSELF)
            yield f"{_ITSELF}{target.rpartition('/')[2]} (descriptor {name})"
        if target.startswith(("anon_inode:", "/secretmem")):
            if signalfds is not None and target == SIGNALFD:
                signalfds.append(name)
            reason = _DESCRIPTORS.get(target.removesuffix(" (deleted)"))
            if reason is not None and reason not in reported:
                reported.add(reason)
                yield f"{reason} (descriptor {name})"


def _by_mappings(pid: int, maps: Sequence[FileMapping]) -> Iterator[str]:
    """maps: those that have a file; of all others nothing is to be said."""
    for mapping in maps:
        reason = _by_mapping(mapping)
        if reason is not None:
            yield reason
    its_own = [mapping for mapping in maps if not is_slots(mapping)]
    yield from alone.why_not(pid, its_own)
    yield from written.why_not(pid, its_own)
    if _has_huge_pages(pid):
        yield "it has huge pages of hugetlbfs mapped"


def _has_huge_pages(pid: int) -> bool:
    return int(_status(pid).get("HugetlbPages", "0 kB").split()[0]) > 0


def _by_timers(pid: int) -> Iterator[str]:
    """A timer stays at home with the stub, and there a cpu clock stands still. Those of setitimer(2) are listed nowhere: see
    engine/leaving/peculiar.py."""
    try:
        with open(f"/proc/{pid}/timers", encoding="utf-8") as timers:
            clocks = [int(line.split()[1]) for line in timers if line.startswith("ClockID:")]
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}"):
            return  # this kernel does not report it
        raise
    if any(clock < 0 for clock in clocks):
        yield CPU_TIMER.format("timer_create")


def shares_memory(pid: int) -> str | None:
    """Return whether another process has the same address space: what is moved of one, or given up, is the other's. One that is about to
    execute a program (vfork, posix_spawn) has it for a moment: its parent waits for it, but for the last of that moment, in which the
    parent has been woken and the memory is still to be left. Errors: ProcessLookupError."""
    for _ in range(_LOOKS):
        other = who_shares_memory(pid)
        if not other:
            return None
        child = other if parent_of(other) == pid else pid if parent_of(pid) == other else 0
        if child and _awaits_child(pid if child == other else other):
            return f"{_VFORK} {child} executes a program (vfork)"
        time.sleep(0.001)
    return f"it shares its memory with process {other} (clone, CLONE_VM)"


def is_kernels(pid: int) -> bool:
    """Return whether it is a thread of the kernel itself; one that is not, and has no memory, is about to end. Errors: FileNotFoundError,
    ProcessLookupError."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return bool(int(stat.read().rsplit(b")", 1)[1].split()[6]) & _PF_KTHREAD)


def _awaits_child(pid: int) -> bool:
    """Whether a thread of it stands still as in vfork(2)."""
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/stat", "rb") as stat:
                if stat.read().rsplit(b")", 1)[1].split()[0] == b"D":
                    return True
    except (FileNotFoundError, ProcessLookupError):
        pass
    return False


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
    if mapping.inode and path and not path.startswith("/"):
        return f"it has {path} mapped"
    if path.startswith("/dev/") and not path.startswith(("/dev/zero", "/dev/shm/")):
        return f"it has the device {path} mapped"
    if shared and mapping.permissions[1] == "w" and not alone.may_be(path):
        return f"it has {path or 'memory'} mapped shared and writable"
    return None  # what may_be() is looked at together
