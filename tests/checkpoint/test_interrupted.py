"""The maker of a checkpoint is killed at each of its steps: the process goes on, and nothing of the copy is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint.take import take
from deputy.stub.mending import mend
from node.common.process import read_stat
from tests.checkpoint.test_refusals import held, scheduled
from tests.checkpoint.test_restart import PARENT, finds_everything, program, restarted, saved
from tests.moves.cluster import until
from wire.steps import VARIABLE

STEPS = ("seize", "asked", "why not", "record", "copy", "let go")
ROOT = Path(__file__).resolve().parents[2]


def stopped(command: bytes) -> list[int]:
    """Processes with these words in their command line that stand still."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if state in "Tt" and command in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


def killed_at(step: str, steps: Path, module: str, words: list[object]) -> None:
    """Starts the program, and kills it when it has come to that step."""
    steps.mkdir()
    (steps / step).touch()
    victim = subprocess.Popen(
        [sys.executable, "-P", "-s", "-m", module, *map(str, words)], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, VARIABLE: str(steps), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        until("it stands there", (steps / f"{step}.{victim.pid}").exists, seconds=30)
        until("it is stopped", lambda: victim.pid in stopped(module.encode()), seconds=30)
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait(20)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("step", STEPS)
def test_the_process_goes_on(step: str, tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    work = tmp_path / f"work-{step.replace(' ', '-')}"
    work.mkdir()
    name = work / "held.py"  # by which its copies are found
    name.write_bytes(Path(__file__).with_name("held.py").read_bytes())
    with held("nothing", work, name) as process:
        words = ["--pid", process.pid, "--asker", 0, "--directory", tmp_path / "saved", "--images", tmp_path / "images"]
        words += ["--journal", tmp_path / "journal"]
        killed_at(f"checkpoint: {step}", steps, "checkpoint.take", words)
        mend(tmp_path / "journal")  # as mosd does
        until("no copy is left", lambda: stopped(os.fsencode(name)) == [], seconds=20)
        switches = scheduled(process.pid)
        until("it goes on", lambda: scheduled(process.pid) > switches + 5, seconds=20)
        assert not (tmp_path / "saved").exists()
        take(process.pid, 0, tmp_path / "saved", tmp_path / "images", tmp_path / "journal")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "steps", work.name]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("step", ["execute", "open", "fill", "cut"])
def test_a_restart_that_is_killed_leaves_nothing_and_can_be_made_again(step: str, tmp_path: Path) -> None:
    pid = saved(tmp_path, 0)
    steps = tmp_path / "steps"
    parent = subprocess.Popen(
        [program("python3"), "-I", "-c", PARENT], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    stat = read_stat(parent.pid)
    assert stat is not None and parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    words = ["--parent", parent.pid, "--started", stat.starttime, "--uid", 0, "--directory", tmp_path / "saved"]
    killed_at(f"restart: {step}", steps, "checkpoint.restart", words)
    assert parent.communicate("\n", timeout=20)[0] == f"{-signal.SIGKILL}\n", "its child has ended, and it goes on"
    assert not Path(f"/proc/{pid}").exists()
    again, answer = restarted(tmp_path, 0)
    assert answer["pid"] == pid
    finds_everything(again, tmp_path)
