"""Reports of executed programs, and of what they have used at their end: of followed processes only, and only useful ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from select import select

import pytest

from kernel_helpers.inspection.programs.executions import Execution, Executions
from tests.programs.build import program

pytestmark = pytest.mark.timeout(60)
FLOOR = 0.05
READY = "read x; "
"""A shell waits until it is followed."""


@pytest.fixture
def executions() -> Iterator[Executions]:
    try:
        made = Executions(FLOOR)
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def run(executions: Executions, script: str, is_followed: bool = True, goes_on: int = 0) -> list[Execution]:
    """Returns the reports of a shell that runs the script, and of its children. goes_on: how many programs wait, each for its report."""
    found: list[Execution] = []
    with subprocess.Popen(["sh", "-c", READY + script], stdin=subprocess.PIPE, bufsize=0) as shell:
        assert shell.stdin is not None
        if is_followed:
            executions.follow(shell.pid)
        shell.stdin.write(b"\n")
        if not goes_on:
            shell.stdin.close()
        end = os.pidfd_open(shell.pid)
        try:
            while not select([end], [], [], 0)[0]:
                assert select([end, executions], [], [], 30)[0], "nothing happens"
                fresh = executions.take()
                found += fresh
                shell.stdin.write(b"x" * sum(not one.has_ended for one in fresh)) if goes_on else None
        finally:
            os.close(end)
    return found + executions.take()


def of_program(found: list[Execution], name: str) -> list[Execution]:
    return [one for one in found if one.path.endswith(f"/{name}")]


def test_programs_with_processor_time_are_reported_and_short_ones_are_not(executions: Executions) -> None:
    burns = program("burns")
    (one,) = run(executions, f"{burns} 1; {burns} 200; true; expr 1 + 1 >/dev/null")
    assert (one.path, one.uid, one.has_ended, one.replaced) == (str(burns), os.getuid(), True, False)
    assert one.cpu > 0.19


def test_processor_time_is_exact_and_of_all_threads(executions: Executions) -> None:
    burns = program("burns")
    executions.know(os.getuid(), str(burns))
    found = run(executions, f"{burns} 200 1 wait; {burns} 100 3 wait; exec sh -c '{burns} 50 1 wait; exec {burns} 100 1 wait'", goes_on=4)
    used = [one.cpu for one in found if one.has_ended]
    assert used == pytest.approx([0.2, 0.3, 0.05, 0.1], abs=0.03)  # what the process used before it executed the last one is not its


def test_known_programs_are_reported_at_exec_however_short_they_were_before(executions: Executions) -> None:
    burns = program("burns")
    executions.know(os.getuid(), str(burns))
    executions.know(os.getuid() + 1, "/bin/sh")
    begun, ended = of_program(run(executions, f"{burns} 30"), "burns")
    assert not begun.has_ended
    assert ended.has_ended
    assert begun.pid == ended.pid
    executions.know(os.getuid(), str(burns), False)
    assert not run(executions, f"{burns} 30")


def test_the_program_of_a_process_that_executes_another_has_ended(executions: Executions) -> None:
    burns = program("burns")
    executions.know(os.getuid(), str(burns))
    found = of_program(run(executions, f"exec sh -c '{burns} 100; exec {burns} 150'"), "burns")
    assert [one.has_ended for one in found] == [False, True, False, True]
    assert found[0].pid != found[2].pid


def test_processes_that_are_not_followed_are_not_reported(executions: Executions) -> None:
    burns = program("burns")
    executions.know(os.getuid(), str(burns))
    assert not run(executions, f"{burns} 100", is_followed=False)


def test_children_are_followed_whose_parents_have_ended(executions: Executions) -> None:
    burns = program("burns")
    found = run(executions, f"(({burns} 200 && echo x >&4 ) & ) 4>&1 | read y")
    assert [one.has_ended for one in of_program(found, "burns")] == [True]
