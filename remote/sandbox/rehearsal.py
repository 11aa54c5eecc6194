"""`python -m remote.sandbox.rehearsal IMAGES`: has CRIU look at the kernel once, here and in a sandbox.

No process is to stand still for that. CRIU asks a kernel that it does not know some hundred questions, for 30 to 150 ms. What it finds it
keeps on /run, and engine.criu hands it on to sandboxes; the node daemon runs this when it starts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from engine.criu import criu, images
from kernel_helpers.common.library import build_directory
from remote.sandbox.sandbox import Sandbox

NOBODY = 65534
WHOLE_TIMEOUT = 120.0
"""Seconds for all looks."""
TIMEOUT = 60.0
"""Seconds for each look."""


def main() -> int:
    """Exit 0 when CRIU's knowledge is kept. Errors: FarhomeError, OSError; the first move is slower then, no more."""
    if criu.knows_kernel():
        return 0
    os.nice(10)
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Where CRIU has to be another user to dump his processes, it keeps another file for him; any will do.
    users = [-1] if images.has_capability(images.CAP_SYS_RESOURCE) else [-1, NOBODY]
    try:
        sandbox = Sandbox.create("rehearsal", [], images=directory)
        try:
            for user in users:
                option = ["--unprivileged"] if user >= 0 else []
                helper = [str(build_directory() / "sandbox"), "run", "0", str(user), str(user), "0", "--"]
                _look([*helper, *criu.tool().argv, "check", *option])
                _look(sandbox.enter_argv([*criu.tool().inside, "check", *option], uid=user, gid=user))
            criu.keep_kernel_data(Path(f"/proc/{sandbox.first}/root"))
        finally:
            sandbox.destroy()
    finally:
        directory.rmdir()
    return 0


def ensure(images: Path) -> None:
    """Before a sandbox is opened for CRIU, which in there cannot do what it would to get to know the kernel: has it done so, if it has not
    yet. images: a directory in which one may be made. No error: CRIU says itself what it lacks."""
    if not criu.knows_kernel():
        argv = [sys.executable, "-P", "-s", "-m", "remote.sandbox.rehearsal", str(images / f"rehearsal-{os.getpid()}")]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=WHOLE_TIMEOUT, check=False)


def _look(argv: list[str]) -> None:
    # Its verdict on features that we do not use does not matter.
    subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT, check=False,
        env=criu.environment(),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
