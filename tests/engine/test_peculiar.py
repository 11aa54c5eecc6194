"""Settings of a program about itself that no move carries are named before anything is tried; the program does not notice the check."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from engine.leaving.peculiar import ask
from engine.leaving.refusal import passes, reasons, shares_memory
from kernel_helpers.calls.settings import parse, settings
from kernel_helpers.common.errors import MoveRefused
from tests.programs.build import program

SECONDS = 30


@contextmanager
def peculiar(how: str, seconds: float = SECONDS) -> Iterator[subprocess.Popen[bytes]]:
    with TemporaryDirectory() as place, subprocess.Popen([str(program("peculiar")), how, str(seconds)], stdout=-1, cwd=place) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line and child.wait(10) == 77:
                pytest.skip(f"this machine has no {how}")
            assert line == b"ready\n"
            yield child
            time.sleep(0.05)  # it checks its state every 2 ms
            for name in ("go", "end"):
                (Path(place) / name).touch()
            assert child.wait(60) == 0, "it is not what it was"
        finally:
            child.kill()


def why(pid: int) -> list[str]:
    """Returns the reasons as moscheck finds them."""
    found = list(reasons(pid))
    if not found:
        try:
            asked = ask(pid)
        except MoveRefused as refusal:
            asked = refusal.reason
        found = [asked] if asked else []
    return found


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("dispatch", "PR_SET_SYSCALL_USER_DISPATCH"),
        ("tsc", "PR_SET_TSC"),
        ("speculation", "PR_SET_SPECULATION_CTRL"),
        ("mdwe", "PR_SET_MDWE"),
        ("ldt", "modify_ldt"),
        ("cpuid", "ARCH_SET_CPUID"),
        ("tiles", "AMX"),
        ("personality", "READ_IMPLIES_EXEC"),
        ("seal", "mseal"),
        ("user", "its threads have different rights"),
        ("clone", "it shares its memory with process"),
    ],
)
def test_settings_that_no_move_carries_are_named(how: str, words: str) -> None:
    with peculiar(how) as child:
        found = why(child.pid)
        assert len(found) == 1, found
        assert words in found[0]
        assert not passes(found[0])


@pytest.mark.parametrize("how", ["trap", "ignored"])
def test_actions_for_traps_outlive_many_examinations(how: str) -> None:
    with peculiar(how) as child:
        for _ in range(50):
            assert why(child.pid) == []


def test_the_two_that_share_memory_in_a_vfork_wait_for_the_new_program() -> None:
    with peculiar("vfork") as child:
        time.sleep(0.3)
        (inner,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        for pid in (child.pid, int(inner)):
            found = list(reasons(pid))
            assert f"it shares its memory until process {inner} executes a program (vfork)" in found
            assert passes(found[-1]) or passes(found[0])


def test_a_process_that_constantly_executes_shares_memory_only_for_moments() -> None:
    """At any moment of the examination."""
    source = "import os\nwhile True: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)"
    with subprocess.Popen([sys.executable, "-c", source]) as spawner:
        try:
            said = [shares_memory(spawner.pid) for _ in range(3000)]
        finally:
            spawner.kill()
    assert [words for words in said if words is not None and not passes(words)] == []
    assert {words is None for words in said} == {True, False}


def test_ordinary_processes_share_no_memory_with_their_children() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'echo ready; exec sleep 5'; true"], stdout=-1, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n", "its child has not executed a program yet"
            assert why(child.pid) == []
        finally:
            os.killpg(child.pid, signal.SIGKILL)


OPTIONS = re.compile(r"^#\s*define\s+((?:PR_(?:SET_|LOCK_|CAPBSET_DROP|CAP_AMBIENT|TASK_PERF_EVENTS_DISABLE|MCE_KILL\b|MPX_ENABLE|"
                     r"SCHED_CORE\b|PAC_(?:RESET|SET)|SVE_SET|SME_SET|RISCV_\w*SET|PPC_SET)\w*))\s+\S+", re.MULTILINE)  # fmt: skip
NO_OPTIONS = re.compile(r"PR_SET_(MM_|VMA_|PTRACER_)|PR_SCHED_CORE_|PR_MCE_KILL_|PR_CAP_AMBIENT_|PR_S[VM]E_SET_VL_ONEXEC")


def test_every_option_that_sets_something_has_a_row() -> None:
    header = Path("/usr/include/linux/prctl.h").read_text()
    names = {name for name in OPTIONS.findall(header) if not NO_OPTIONS.match(name)}
    assert len(names) > 25
    assert names <= {row.name for row in settings()}, names - {row.name for row in settings()}


@pytest.mark.parametrize(
    ("permitted", "asked_for"),
    [
        (0x7, False),
        (0x207, False),
        (0x2E7, False),
        (0x202E7, False),
        (0x602E7, True),
        (0x602E7 | 1 << 19, True),
        (0x202E7 | 1 << 19, False),
    ],
)
def test_registers_that_need_no_permission_are_no_reason(permitted: int, asked_for: bool) -> None:
    """Values of ARCH_GET_XCOMP_PERM, recorded on processors without and with AMX (whose XTILECFG every process may use), and with APX."""
    (row,) = (row for row in settings() if row.name == "ARCH_REQ_XCOMP_PERM")
    assert row.is_set(permitted) is asked_for


def test_a_row_without_sense_is_named() -> None:
    for wrong in ("PR_X | - | - | gone | words", "PR_X | - | - | stays |", "PR_X | -"):
        with pytest.raises(ValueError, match="line 2"):
            parse(f"# a comment\n{wrong}\n")
