"""A program for a private mount namespace: a lab where the unified cgroup hierarchy is the only one, and a move in it.

Prints one JSON object of what was seen. The argument is the lab's name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from lab import Lab, cgroups


def main(name: str) -> None:
    seen: dict[str, object] = {"versions": [one.version for one in cgroups.hierarchies()]}
    with Lab.up(2, name=name, cpus=0.5) as lab:
        n1, n2 = lab.nodes()
        sleeper = n1.popen(["mosrun", "sh", "-c", "sleep 3; echo done"], stdout=subprocess.PIPE, text=True)
        pid = sleeper.node_pid
        deadline = time.monotonic() + 20
        while not any(one["pid"] == pid and one["state"] == "home" for one in n1.ask_mosd("ps")["processes"]):
            assert time.monotonic() < deadline, "mosrun does not start"
            time.sleep(0.02)
        guests = n2.root / "sys/fs/cgroup/farhome/guests"
        seen["migrate"] = n1.run(["migrate", str(pid), "n2"], text=True).stderr
        seen["in its group"] = len((guests / f"n1-{pid}" / "cgroup.procs").read_text().split()) > 0
        seen["in the root group"] = (n2.root / "sys/fs/cgroup/cgroup.procs").read_text()
        seen["output"] = sleeper.communicate(timeout=30)[0]
        deadline = time.monotonic() + 20
        while (guests / f"n1-{pid}").exists():
            assert time.monotonic() < deadline, "the guest's group stays"
            time.sleep(0.02)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
