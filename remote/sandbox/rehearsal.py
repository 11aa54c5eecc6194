"""`python -m remote.sandbox.rehearsal IMAGES [trial]`: has CRIU look at the kernel once, here and in a sandbox.

No process is to stand still for that. CRIU asks a kernel that it does not know some hundred questions, for 30 to 150 ms. What it finds it
keeps on /run, and engine.criu hands it on to sandboxes; the node daemon runs this when it starts. trial: has it dump a process of our own,
too, and reads that as images of another node are read: `mosctl status` shows whether it could (engine/criu/kept.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from engine.criu import criu, images, inspection, kept
from engine.criu.forkcopy import fork_copy
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.common.library import build_directory
from kernel_helpers.process import seizing
from remote.sandbox.sandbox import Sandbox

NOBODY = 65534
WHOLE_TIMEOUT = 120.0
"""Seconds for all looks."""
TIMEOUT = 60.0
"""Seconds for each look."""


def main() -> int:
    """Exit 0 when CRIU's knowledge is kept. Errors: FarhomeError, OSError; the first move is slower then, no more."""
    directory = Path(sys.argv[1])
    knows, tried = kept.knows_kernel(), sys.argv[2:] != ["trial"] or kept.why_images_fail() is not None
    if knows and tried:
        return 0
    os.nice(10)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        if not knows:
            _get_to_know_the_kernel(directory)
        if not tried:
            try_images(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _get_to_know_the_kernel(directory: Path) -> None:
    # Where CRIU has to be another user to dump his processes, it keeps another file for him; any will do.
    users = [-1] if images.has_capability(images.CAP_SYS_RESOURCE) else [-1, NOBODY]
    sandbox = Sandbox.create("rehearsal", [], images=directory)
    try:
        for user in users:
            option = ["--unprivileged"] if user >= 0 else []
            helper = [str(build_directory() / "sandbox"), "run", "0", str(user), str(user), "0", "--"]
            _look([*helper, *criu.tool().argv, "check", *option])
            _look(sandbox.enter_argv([*criu.tool().inside, "check", *option], uid=user, gid=user))
        kept.keep_kernel_data(Path(f"/proc/{sandbox.first}/root"))
    finally:
        sandbox.destroy()


def try_images(directory: Path) -> str:
    """Dump a process of our own and read that; return and keep why it does not work, "" if it does. directory: of our own, empty."""
    # It ends by itself: should we be killed, nobody else would end it.
    with subprocess.Popen(["sleep", str(round(WHOLE_TIMEOUT))], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/") as program:
        try:
            with seizing.seize(program.pid) as frozen:
                copy = fork_copy(frozen)
                try:
                    criu.dump(copy, directory, timeout=TIMEOUT)
                finally:
                    copy.discard()
            inspection.inspect(directory, program.pid)
            why = ""
        except (FarhomeError, OSError) as error:
            why = str(error)
        finally:
            program.kill()
    kept.keep_trial(why)
    return why


def ensure(images: Path) -> None:
    """Before a sandbox is opened for CRIU, which in there cannot do what it would to get to know the kernel: has it done so, if it has not
    yet. images: a directory in which one may be made. No error: CRIU says itself what it lacks."""
    if not kept.knows_kernel():
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
