"""A program's own seccomp filters: they are read, judged whether they can move along, and do not hinder the examination."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.context.capture import capture
from engine.context.checked import BadContext
from engine.context.confinement import IN_IMAGES, chain, lets_sleeps_go_on, obstacle, unfit
from engine.context.context import Context
from engine.leaving import peculiar
from engine.leaving.refusal import only_poured, why_not
from kernel_helpers.calls.filter import program as own_program
from kernel_helpers.process.seizing import seize
from tests.programs.build import program

ALLOW = bytes.fromhex("060000000000ff7f")


def returns(code: int, constant: int) -> bytes:
    return code.to_bytes(2, "little") + bytes(2) + constant.to_bytes(4, "little")


@contextlib.contextmanager
def filtered(how: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([program("filtered"), how], stdin=-1, stdout=-1, cwd=place) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("many", None),
        ("white", None),
        ("trap", None),
        ("notify", "SECCOMP_RET_USER_NOTIF"),
        ("trace", "SECCOMP_RET_TRACE"),
        ("log", "SECCOMP_RET_LOG"),
        ("logs", "SECCOMP_FILTER_FLAG_LOG"),
    ],
)
def test_filters_that_notify_another_process_are_named(how: str, words: str | None, tmp_path: Path) -> None:
    with filtered(how, tmp_path) as child:
        assert why_not(child.pid) is None
        asked = peculiar.ask(child.pid)
        assert asked is None if words is None else asked is not None and words in asked
        assert list(only_poured(child.pid)) == [IN_IMAGES]


def test_strict_mode_is_seen_without_a_touch(tmp_path: Path) -> None:
    with filtered("strict", tmp_path) as child:
        status = Path(f"/proc/{child.pid}/status")
        while "Seccomp:\t1" not in status.read_text():
            time.sleep(0.001)
        reason = why_not(child.pid)
        assert reason is not None and "strict mode" in reason


def test_filters_read_are_those_set_and_survive_the_wire(tmp_path: Path) -> None:
    with filtered("many", tmp_path) as child:
        with seize(child.pid) as frozen:
            found, context = chain(child.pid), capture(frozen)
            assert obstacle(frozen) is None
        assert len(found) == 3 and all(one.endswith(ALLOW) for one in found)
        assert context.threads[0].filters == found
        again = Context.from_wire(context.to_wire())
        assert again.threads[0].filters == found
        bad = replace(context.threads[0], filters=(*found, returns(0x06, 0x7FC00000)))
        with pytest.raises(BadContext, match="USER_NOTIF"):
            Context.from_wire(replace(context, threads=(bad,)).to_wire())
        (tmp_path / "go").touch()
        assert child.wait(10) == 0


def test_an_examination_neither_ends_nor_extends_a_sleep_that_may_not_restart(tmp_path: Path) -> None:
    """Its filter kills it at a restart_syscall, which the kernel makes of a sleep that a stop has interrupted."""
    with filtered("white", tmp_path) as child:
        (tmp_path / "go").touch()
        begun = time.monotonic()
        while child.poll() is None and time.monotonic() - begun < 30:
            with contextlib.suppress(OSError):  # it may have ended
                peculiar.ask(child.pid)
            time.sleep(0.1)
        assert child.returncode == 0, "killed, or its sleep is begun anew again and again"
        assert child.stdout is not None
        assert child.stdout.read().startswith(b"slept for as long as it wanted\n")


def test_the_end_of_a_filter_lists_its_possible_results() -> None:
    assert unfit(ALLOW) is None
    assert unfit(returns(0x06, 0x00050001) + ALLOW) is None
    assert "computes" in str(unfit(returns(0x16, 0)))
    assert "0x7abc0000" in str(unfit(returns(0x06, 0x7ABC0000)))


def test_farhomes_own_filter_is_judged_as_its_own_evaluation_does() -> None:
    assert not lets_sleeps_go_on([(own_program(0x00050001),)]) or lets_sleeps_go_on([(own_program(0x7FFF0000),)])
    assert lets_sleeps_go_on([(ALLOW,)]) and lets_sleeps_go_on([()])
    assert not lets_sleeps_go_on([(ALLOW, returns(0x06, 0x00050001))])


@pytest.mark.skipif(os.getuid() != 0, reason="only root may bypass filters")
def test_threads_of_one_process_may_have_different_ones(tmp_path: Path) -> None:
    with filtered("threads", tmp_path) as child:
        assert why_not(child.pid) is None and peculiar.ask(child.pid) is None
        with seize(child.pid) as frozen:
            lengths = sorted(len(chain(tid)) for tid in frozen.threads)
        assert lengths == [0, 0, 0, 1]
