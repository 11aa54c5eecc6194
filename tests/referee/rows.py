"""Which calls random programs make: every row of calls.table but those of LEFT_OUT; and arguments that the table does not describe."""

from __future__ import annotations

from kernel_helpers.calls.table import Argument, Class, Row, _parse_argument, rows

LEFT_OUT = {
    "changes the machine, or may": (
        "reboot", "settimeofday", "clock_settime", "sethostname", "setdomainname", "mount", "umount2", "swapon", "swapoff", "init_module",
        "finit_module", "delete_module", "acct", "syslog", "quotactl", "quotactl_fd", "bpf", "kexec_load", "kexec_file_load", "fsopen",
        "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr", "move_mount", "mount_setattr", "adjtimex", "clock_adjtime",
        "sync", "vhangup", "pivot_root", "chroot", "iopl", "ioperm", "modify_ldt", "migrate_pages", "lsm_set_self_attr",
    ),
    "reports on the whole machine, which other programs change": ("statmount", "listmount", "sysfs", "ustat"),
    "keys are shared with all other processes of the user": ("add_key", "request_key", "keyctl"),
    "ends, or begins, a process or thread: words of a script do that in an orderly way": (
        "exit", "exit_group", "fork", "vfork", "clone", "clone3", "ptrace", "rt_sigreturn",
    ),
    "away it is ENOSYS, as docs/calls.md says: programs fall back": ("io_uring_setup", "io_uring_enter", "io_uring_register"),
    "waits for what never comes": ("pause", "rt_sigsuspend"),
    "what it brings about is memory of the C library, or its end": ("set_robust_list", "restart_syscall", "landlock_restrict_self", "setns",
    "unshare",
                                                                    "map_shadow_stack", "userfaultfd", "perf_event_open",
                                                                    "remap_file_pages"),
}  # fmt: skip
"""Reasons, and the calls that no random program makes."""

_SPECIFIED = {
    "mmap": "ground length rights mapflags mapfd mapoffset", "mprotect": "ground length rights", "munmap": "ground length", "brk": "break",
    "mremap": "ground length length remapflags ground", "msync": "ground length flags", "mincore": "ground length out(64)",
    "madvise": "ground length advice", "mlock": "ground length", "munlock": "ground length", "mlockall": "lockflags", "munlockall": "",
    "mlock2": "ground length flags", "pkey_mprotect": "ground length rights key", "pkey_alloc": "flags rights", "pkey_free": "key",
    "membarrier": "barrier flags cpu", "shmdt": "ground", "futex": "in(4) futexop value in(16) in(4) value",
    "futex_waitv": "in(24) count flags in(16) clock", "futex_wake": "in(4) mask count flags",
    "futex_wait": "in(4) value mask flags in(16) clock",
    "futex_requeue": "in(48) flags count count", "get_robust_list": "pid out(8) out(8)", "set_tid_address": "out(4)",
    "rseq": "in(32) size flags value",
    "sched_yield": "", "gettid": "", "getpid": "", "getcpu": "out(4) out(4) value", "getrandom": "out(@1,ret) size flags",
    "set_thread_area": "in(16)", "get_thread_area": "in(16)", "arch_prctl": "archcode out(8)",
    "rt_sigaction": "mysignal in(32) out(32) sigsize",
    "rt_sigprocmask": "how in(8) out(8) sigsize", "rt_sigpending": "out(8) sigsize", "sigaltstack": "in(24) out(24)",
    "rt_sigtimedwait": "in(8) out(128) in(16) sigsize",
    "clock_gettime": "clock out(16)", "clock_getres": "clock out(16)", "gettimeofday": "out(16) out(8)", "time": "out(8)",
    "getuid": "", "getgid": "", "geteuid": "", "getegid": "", "getresuid": "out(4) out(4) out(4)", "getresgid": "out(4) out(4) out(4)",
    "sched_get_priority_max": "policy", "sched_get_priority_min": "policy",
    "io_setup": "count out(8)", "io_destroy": "value", "io_getevents": "value count count out(32) in(16)", "io_submit": "value count in(8)",
    "io_cancel": "value in(64) out(32)", "io_pgetevents": "value count count out(32) in(16) in(16)",
    "io_uring_setup": "count in(120)", "io_uring_enter": "fd count count flags", "io_uring_register": "fd value in(16) count",
    "vmsplice": "fd iovin(@2) count flags", "signalfd": "fd in(8) sigsize", "signalfd4": "fd in(8) sigsize flags",
    "shmat": "segment ground shmflags",
    "mbind": "ground length mode in(8) value flags", "move_pages": "pid count in(8) in(4) out(4) flags",
    "set_mempolicy_home_node": "ground length value flags", "process_madvise": "fd iovin(@2) count advice flags",
    "mseal": "ground length flags",
    "setuid": "uid", "setgid": "uid", "setreuid": "uid uid", "setregid": "uid uid", "setresuid": "uid uid uid", "setresgid": "uid uid uid",
    "process_vm_readv": "pid iovout(@2) count iovin(@4) count flags", "process_vm_writev": "pid iovin(@2) count iovin(@4) count flags",
    "prctl": "option value value value value", "seccomp": "value flags in(8)", "ioctl": "fd value in(64)",
    "semctl": "id index value out(64)",
    "msgctl": "id value out(120)", "shmctl": "id value out(112)", "setrlimit": "resource in(16)",
    "prlimit64": "pid resource in(16) out(16)",
    "setitimer": "which in(32) out(32)",
}  # fmt: skip
"""Arguments of calls that are made where the process is, and of calls that the table sends home without examining them."""

HOME_ONLY = frozenset(
    {"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "mseal", "io_setup", "shmat", "process_vm_writev"}
)
"""Calls that go home and change the process so that it stays there: an episode has at most one of them."""


def left_out() -> frozenset[str]:
    return frozenset(name for names in LEFT_OUT.values() for name in names)


def specified(name: str) -> tuple[Argument, ...]:
    return tuple(_parse_argument(word) for word in _SPECIFIED.get(name, "").split())


Entry = tuple[Row, int, Class, tuple[Argument, ...], tuple[tuple[int, int, int], ...]]
"""row, number of the variant (0: the row itself), class, arguments, and which of them have which bits"""


def entries() -> list[Entry]:
    """Every row, and every variant of one, that is not left out."""
    found: list[Entry] = []
    unwanted = left_out()
    for row in rows():
        if row.name in unwanted:
            continue
        found.append((row, 0, row.class_, row.arguments or specified(row.name), ()))
        for number, variant in enumerate(row.variants, 1):
            conditions = [(variant.argument, variant.mask, variant.value)]
            if variant.also[1]:
                conditions.append(variant.also)
            arguments = variant.arguments or row.arguments or specified(row.name)
            found.append((row, number, variant.class_, arguments, tuple(conditions)))
    return found
