"""What this node's kernel lets guests stand on."""

from __future__ import annotations

import subprocess

from kernel_helpers.common.library import build_directory

TIMEOUT = 5.0
"""Seconds."""


def why_no_user_namespaces() -> str:
    """Return why the kernel makes none for us, in the words of what has tried; empty: it does."""
    try:
        done = subprocess.run(
            [build_directory() / "sandbox", "try"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip().removeprefix("sandbox: ") or f"status {done.returncode}"
