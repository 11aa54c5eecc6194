"""State of a restarted process, without a node around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoint.errors import CheckpointRefused, RestartRefused
from checkpoint.restart import restart
from checkpoint.take import take
from node.common.process import read_stat
from tests.moves.cluster import until

pytestmark = pytest.mark.alone  # its pid must still be free: a test that starts many programs meanwhile takes it
KEEPER = Path(__file__).with_name("keeper.py")
PARENT = "import os, sys\nprint('ready', flush=True)\nsys.stdin.readline()\nprint(os.waitstatus_to_exitcode(os.wait()[1]))"
USER = 65534


@contextmanager
def started(argv: list[Any], directory: Path, uid: int = 0, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program, when it has said that it is ready."""
    process = subprocess.Popen(
        [*map(str, argv)], cwd=directory, stderr=subprocess.DEVNULL, start_new_session=True, text=True, user=uid, group=uid,
        extra_groups=[], **options,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def program(name: str) -> str:
    return str(Path(f"/usr/bin/{name}").resolve())


def saved(directory: Path, uid: int, meanwhile: str = "") -> int:
    """The keeper is checkpointed, and ends. Returns its process id."""
    directory.chmod(0o755)
    os.chown(directory, uid, uid)
    images = directory.with_name(f"{directory.name}-images")  # other files' tests do the same beside these
    out = directory / "out"
    with open(out, "wb") as output:
        os.fchown(output.fileno(), uid, uid)
        # Nothing of the test's interpreter is mapped, which ordinary users might not read.
        keeper = directory / "keeper.py"
        keeper.write_bytes(KEEPER.read_bytes())
        with started([program("python3"), "-I", keeper], directory, uid, stdin=subprocess.DEVNULL, stdout=output) as process:
            until("it is ready", lambda: out.read_text() == "ready\n")
            with pytest.raises(CheckpointRefused, match="another user's"):
                take(process.pid, 12345, directory / "saved", images, directory / "journal")
            answer = take(process.pid, uid, directory / "saved", images, directory / "journal")
            assert answer["frozen_ms"] < 5000
            return process.pid


def restarted(directory: Path, uid: int, source: str = "saved") -> tuple[subprocess.Popen[str], Any]:
    """A parent that waits, and what the restart has answered."""
    parent = subprocess.Popen(
        [program("python3"), "-I", "-c", PARENT], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=uid, group=uid,
        extra_groups=[], start_new_session=True,
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        stat = read_stat(parent.pid)
        assert stat is not None
        return parent, restart(parent.pid, stat.starttime, uid, directory / source)
    except BaseException:
        parent.kill()
        parent.communicate()
        raise


def finds_everything(parent: subprocess.Popen[str], directory: Path) -> None:
    """Has the keeper, the parent's child, check what it has, and end."""
    try:
        (directory / "go").touch()
        verdict = directory / "verdict"
        until("it has checked", lambda: verdict.exists() and verdict.read_text(), seconds=30)
        assert verdict.read_text() == "fine"
        assert parent.communicate("\n", timeout=30)[0] == "0\n"
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("uid", [0, USER], ids=["root", "user"])
def test_everything_that_a_checkpoint_keeps_is_there_again(tmp_path: Path, uid: int) -> None:
    pid = saved(tmp_path, uid)
    parent, answer = restarted(tmp_path, uid)
    assert (answer["pid"], answer["notes"]) == (pid, [])
    finds_everything(parent, tmp_path)


@pytest.mark.timeout(60)
def test_no_user_restarts_anothers_checkpoint_or_asks_for_another_user(tmp_path: Path) -> None:
    saved(tmp_path, USER)
    with pytest.raises(RestartRefused, match=r"another user|cannot be read"):
        restarted(tmp_path, USER - 1)
    with started([sys.executable, "-c", "input()"], tmp_path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as stranger:
        stat = read_stat(stranger.pid)
        assert stat is not None
        with pytest.raises(RestartRefused, match="not who runs"):
            restart(stranger.pid, stat.starttime, USER, tmp_path / "saved")
        with pytest.raises(RestartRefused, match="no mosrun that waits"):
            restart(stranger.pid, stat.starttime + 1, 0, tmp_path / "saved")
    (tmp_path / "saved").chmod(0o777)
    with pytest.raises(RestartRefused, match="others can write"):
        restarted(tmp_path, USER)
