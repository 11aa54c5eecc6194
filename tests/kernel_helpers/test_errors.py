"""Error messages for users are sentences, without the kernel's numbers."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from engine.leaving.refusal import reasons
from kernel_helpers.common.errors import MoveRefused, sentence
from kernel_helpers.process.injection.native import check


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ETIMEDOUT, errno.ENXIO, errno.ECONNRESET])
def test_no_number_of_an_error_is_shown(number: int) -> None:
    with pytest.raises(OSError, match="mprotect") as raised:
        check(-number, "mprotect in 7")
    assert sentence(raised.value) == f"mprotect in 7: {os.strerror(number)}"


def test_an_absent_process_is_reported_as_ended() -> None:
    assert sentence(ProcessLookupError(errno.ESRCH, "waiting for 7")) == "it has ended"
    assert sentence(FileNotFoundError(errno.ENOENT, "No such file", "/a")) == "No such file (/a)"
    assert sentence(MoveRefused(7, "it is stopped")) == "process 7 stays at home: it is stopped"


def test_a_process_that_has_ended_is_no_part_of_the_kernel() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert list(reasons(child.pid)) == ["it has ended"]
    other = Path("/proc/2/stat")
    if other.exists() and "(kthreadd)" in other.read_text():
        assert list(reasons(2)) == ["it is part of the kernel"]
