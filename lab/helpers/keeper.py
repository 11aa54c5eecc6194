"""keeper.py LAB PID START: waits for the end of a lab's owner, which has not taken the lab down by then, and does it in their stead.

START: clock ticks since boot, of PID's start. It waits as a bare script, which costs a few milliseconds, and becomes
`python -m lab.helpers.keeper LAB` for the work. It ends with its lab, whichever of both comes first.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def wait_for_the_end(pid: int, start: int) -> None:
    """Return when that process has ended, of which another may bear the number by now."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    if int(fields[19]) != start:
        return
    watched = select.poll()
    watched.register(handle, select.POLLIN)
    watched.poll()


def main() -> int:
    """Wait, or take the lab down if it is still the one that this process was started for; return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are meant for the owner
        signal.signal(number, signal.SIG_IGN)
    name, *owner = sys.argv[1:]
    if owner:
        try:
            wait_for_the_end(*map(int, owner))
        except OSError:
            pass  # it ended between two looks
        os.execv(sys.executable, [sys.executable, "-I", "-m", "lab.helpers.keeper", name])
    from lab.lab import Lab
    from lab.state import LabError

    try:
        Lab(name).down(keeper=os.getpid())
    except LabError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
