"""host_state.py: prints what a guest must not change of the node that it is on, as one JSON object. Run there, as root."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

_COUNTERS = ("fs/", "kernel/random/", "kernel/ns_last_pid", "kernel/pty/nr", "kernel/sched_domain", "fs/quota/")
OF_ITSELF = tuple(f"/proc/sys/{name}" for name in _COUNTERS)
"""Counters, and values that the kernel sets as processors come and go. Under fs, only names that end as in COUNTERS are skipped."""
COUNTERS = ("-nr", "-state", "-nr_inodes", "nr_open_files", "quota")
FOREIGN = ("farhome", "criu", "lock", "systemd", "dpkg", "apt", "user", "udev", "utmp", ".bash_history")
"""Paths that programs of the node or of the machine write to."""


def settings() -> dict[str, str]:
    """All sysctls that can be read."""
    found = {}
    for place, _, names in os.walk("/proc/sys"):
        for name in names:
            path = f"{place}/{name}"
            if path.startswith(OF_ITSELF[1:]) or (path.startswith(OF_ITSELF[0]) and name.endswith(COUNTERS)):
                continue
            try:
                found[path] = Path(path).read_bytes()[:4096].decode("latin-1")
            except OSError:
                continue
    return found


def files() -> dict[str, list[int]]:
    """Returns the owners, modes, sizes and times of the machine's files."""
    found = {}
    for top in ("/etc", "/run", "/var/lib", "/root"):
        for place, directories, names in os.walk(top):
            directories[:] = [name for name in directories if not name.startswith((*FOREIGN, "."))]
            for name in [*names, *directories]:
                if name.startswith(FOREIGN):
                    continue
                try:
                    status = os.lstat(f"{place}/{name}")
                except OSError:
                    continue
                content = [0, 0] if name in directories else [status.st_size, status.st_mtime_ns]
                found[f"{place}/{name}"] = [status.st_mode, status.st_uid, status.st_gid, *content]
    return found


def processes() -> dict[str, list[str]]:
    """Returns names with their owners, and the namespaces that they are in."""
    commands, namespaces = [], set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            commands.append(f"{(entry / 'comm').read_text().strip()} of {entry.stat().st_uid}")
            namespaces |= {os.readlink(entry / "ns" / kind) for kind in ("mnt", "net", "pid", "uts", "ipc", "user", "cgroup", "time")}
        except OSError:
            continue
    return {"commands": sorted(commands), "namespaces": sorted(namespaces)}


def users() -> dict[str, str]:
    """Returns the limits of an ordinary user and what they have in use; both are shared by all users of that number."""
    limits = {}
    for name in ("farhome-a", "nobody"):
        number = pwd.getpwnam(name).pw_uid
        script = "ulimit -a; ulimit -Ha; grep SigQ /proc/self/status"
        command = ["setpriv", f"--reuid={number}", "--clear-groups", "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        limits[name] = done.stdout + done.stderr
    return limits


if __name__ == "__main__":
    mounts = sorted(" ".join(line.split(" ")[4:6]) for line in Path("/proc/self/mountinfo").read_text().splitlines())
    json.dump({"settings": settings(), "files": files(), "processes": processes(), "mounts": mounts, "users": users()}, sys.stdout)
