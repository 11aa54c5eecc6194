"""The mount by which a remote reads files of its guests' home: its content, and that no reader gets stuck in it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mfs.served import Served
from tests.mfs.test_deposits import deposited
from tests.moves.cluster import until

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).resolve().parents[2]
REMOTE = """
import os, sys, threading
from pathlib import Path
from remote.requests.home_files import HomeFiles
files = HomeFiles("n1", "127.0.0.1", int(sys.argv[1]), Path(sys.argv[2]), False, Path(sys.argv[3]))
def work(token):
    print("opens", flush=True)
    print(os.read(files.open(token), 100).decode(), end="", flush=True)
for line in sys.stdin:
    threading.Thread(target=work, args=(line.strip(),), daemon=True).start()
files.close()
"""


@pytest.fixture
def remote(served: Served, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", REMOTE, str(served.port), str(served.others.directory), str(tmp_path / "room")], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def request_open(remote: subprocess.Popen[str], token: str) -> None:
    """Has the remote open the file that is deposited under that token."""
    assert remote.stdin is not None
    assert remote.stdout is not None
    remote.stdin.write(f"{token}\n")
    assert remote.stdout.readline() == "opens\n"


def token_of(served: Served, path: Path) -> str:
    return deposited(served, path).rpartition("-")[2]


def test_files_are_read_by_their_tokens(served: Served, area: Path, remote: subprocess.Popen[str]) -> None:
    assert remote.stdin is not None
    assert remote.stdout is not None
    for name in ("secret", "shown"):
        request_open(remote, token_of(served, area / name / "file"))
        assert remote.stdout.readline() == f"{name}\n"
    remote.stdin.close()
    assert remote.wait(10) == 0


def test_a_process_that_waits_for_a_silent_home_can_be_killed(served: Served, area: Path, remote: subprocess.Popen[str]) -> None:
    assert remote.stdout is not None
    request_open(remote, token_of(served, area / "shown" / "file"))
    assert remote.stdout.readline() == "shown\n"
    token = token_of(served, area / "secret" / "file")
    served.process.send_signal(signal.SIGSTOP)
    request_open(remote, token)
    until("it waits", lambda: any("request_wait_answer" in path.read_text() for path in Path(f"/proc/{remote.pid}/task").glob("*/wchan")))
    remote.kill()
    assert remote.wait(10) == -signal.SIGKILL
