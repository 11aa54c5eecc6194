"""What a node keeps of what CRIU has found out, in a directory on /run: what the kernel can do, and whether moves by images work here.

CRIU writes what the processor and the kernel have, and newer ones write more; images that say what we do not know are refused. So the node
daemon tries it at its start (remote/sandbox/rehearsal.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from kernel_helpers.common.library import build_directory

KEPT = Path("/run/farhome/criu")
# What CRIU found out about the kernel, by where it looks for it: as root, and as another user (XDG_RUNTIME_DIR).
KERNEL_DATA = ("run/criu.kdat", "run/farhome/criu/criu.kdat")
TRIAL = "kept-trial"
_HERE = Path(__file__).parent
_READERS = (*_HERE.glob("*.py"), _HERE.parent / "context" / "registers.py")


def hand_over_kernel_data(root: Path) -> None:
    """Gives a new root's /run what earlier CRIUs found out about this kernel: it saves the next one 30 ms. No error."""
    for number, name in enumerate(KERNEL_DATA):
        with contextlib.suppress(OSError):
            data = (KEPT / f"kept-{number}").read_bytes()
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)


def keep_kernel_data(root: Path) -> None:
    """The other direction, after CRIU has run in there. No error."""
    for number, name in enumerate(KERNEL_DATA):
        kept = KEPT / f"kept-{number}"
        with contextlib.suppress(OSError):
            data = (root / name).read_bytes()
            if not kept.exists() or kept.read_bytes() != data:
                _keep(kept, data)


def knows_kernel() -> bool:
    """Return whether there is something to hand over."""
    return (KEPT / "kept-0").exists()


def subject() -> str:
    """Return what all that is kept depends on, as a short text: this kernel from its start on, CRIU, and what reads its images."""
    parts = [Path("/proc/sys/kernel/random/boot_id").read_bytes(), (build_directory() / "criu").read_bytes()]
    parts += [readers.read_bytes() for readers in sorted(_READERS)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def why_images_fail() -> str | None:
    """Return why moves by images do not work here, as the last trial found, "" if they do, None if it has not been tried yet."""
    try:
        found = json.loads((KEPT / TRIAL).read_bytes())
        return str(found["why"]) if found["subject"] == subject() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_trial(why: str) -> None:
    """Keep the result of a trial. No error: it is tried again then."""
    with contextlib.suppress(OSError):
        _keep(KEPT / TRIAL, json.dumps({"subject": subject(), "why": why}).encode())


def _keep(path: Path, data: bytes) -> None:
    KEPT.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=KEPT)
    with open(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
