"""A program with every capability that there is in a guest's sandbox reaches nothing outside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from remote.sandbox.sandbox import Sandbox
from tests.remote.ids import own_ids

_PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <unistd.h>
static int more;
static void report(const char *what, long result)
{
    printf("%s\"%s\": %d", more++ ? ", " : "{", what, result < 0 ? errno : 0);
}
int main(void)
{
    struct timeval now = {1, 0};
    struct rlimit files = {1 << 30, 1 << 30};
    struct sched_param first = {99};
    report("pattern of cores", open("/proc/sys/kernel/core_pattern", O_WRONLY));
    report("magic key", open("/proc/sysrq-trigger", O_WRONLY));
    report("a root that can be written", mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    report("a mount", mount("tmpfs", "/tmp", "tmpfs", 0, NULL));
    report("no /proc", umount2("/proc", MNT_DETACH));
    report("no file of home", umount2("/tool", MNT_DETACH));
    report("another root", chroot("/tmp/..") ? -1 : syscall(SYS_pivot_root, "/", "/"));
    report("a disk", mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0)));
    report("memory of the machine", mknod("/run/mem", S_IFCHR | 0600, makedev(1, 1)));
    report("the clock", settimeofday(&now, NULL));
    report("a module", syscall(SYS_init_module, "", 0, ""));
    report("the end", reboot(RB_DISABLE_CAD));
    report("the log", syscall(SYS_syslog, 5, NULL, 0));
    report("descriptors", setrlimit(RLIMIT_NOFILE, &files));
    report("real time", sched_setscheduler(0, SCHED_FIFO, &first));
    report("before others", setpriority(PRIO_PROCESS, 0, -20));
    report("no end for want of memory", open("/proc/self/oom_score_adj", O_WRONLY) < 0 ? -1 :
         write(open("/proc/self/oom_score_adj", O_WRONLY), "-1000", 5));
    report("the users outside", open("/proc/1/uid_map", O_WRONLY) < 0 ? -1 : write(open("/proc/1/uid_map", O_WRONLY), "0 0 1", 5));
    report("a mapped file", open("/tool", O_WRONLY));
    report("swap", syscall(SYS_swapoff, "/dev/vda"));
    puts("}");
    return 0;
}
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tool")
    (directory / "tool.c").write_text(_PROGRAM)
    subprocess.run(["gcc", "-static", "-w", "-o", directory / "tool", directory / "tool.c"], check=True, timeout=60)
    return str(directory / "tool")


@pytest.mark.parametrize("confined", [False, True])
def test_all_capabilities_inside_reach_nothing_outside(tool: str, confined: bool) -> None:
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    sandbox = Sandbox.create("strong", [("/tool", tool)], identities=own_ids())
    try:
        if confined:
            sandbox.confine()
        done = subprocess.run(sandbox.enter_argv(["/tool"]), capture_output=True, text=True, timeout=30, check=True)
        succeeded = {what for what, code in json.loads(done.stdout).items() if not code}
    finally:
        sandbox.destroy()
    assert succeeded == set()
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_a_program_inside_the_sandbox_has_all_capabilities_there(tool: str) -> None:
    """Else the test above shows nothing."""
    sandbox = Sandbox.create("strong", [("/cat", "/bin/true")], identities=own_ids())
    try:
        status = Path(f"/proc/{sandbox.first}/status").read_text()
    finally:
        sandbox.destroy()
    assert next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")) >= (1 << 38) - 1
