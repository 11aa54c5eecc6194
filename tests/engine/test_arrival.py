"""The interceptors that this kernel can serve."""

from __future__ import annotations

import os
import subprocess
import sys

from engine.pour.arrival import notifications_work

WITHOUT = r"""
import ctypes, struct
from engine.pour.arrival import notifications_work
libc = ctypes.CDLL(None, use_errno=True)
code = b"".join(struct.pack("<HBBI", *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 1, 317), (6, 0, 0, 0x00050000 | 22), (6, 0, 0, 0x7FFF0000)))
buffer = ctypes.create_string_buffer(code, len(code))
program = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
print(notifications_work())
"""


def test_notifications_are_there_since_linux_5_19() -> None:
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    assert notifications_work() == ((major, minor) >= (5, 19))


def test_a_kernel_that_does_not_know_the_flags_has_none() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "False"
