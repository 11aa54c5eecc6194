"""mosrun becomes the program: same pid, environment, descriptors, exit status; and it says in one line what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from cli import mosrun

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A place where no daemon is."""
    return {"PATH": os.environ["PATH"], "FARHOME_RUN": str(tmp_path)}


def run(environment: dict[str, str], *argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "bin" / "mosrun"), *argv], env=environment, text=True, capture_output=True, timeout=20, check=False, cwd=cwd
    )


def test_without_a_daemon_it_runs_at_home_and_says_so_once(environment: dict[str, str]) -> None:
    done = run(environment, "sh", "-c", "echo $$; exit 7")
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1
    assert "sh runs at home" in done.stderr


def test_the_program_has_the_pid_of_mosrun(environment: dict[str, str]) -> None:
    child = subprocess.Popen(
        [ROOT / "bin" / "mosrun", "sh", "-c", "echo $$"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    output, _ = child.communicate(timeout=20)
    assert int(output) == child.pid


def test_the_program_sees_what_it_would_see_natively(environment: dict[str, str], tmp_path: Path) -> None:
    show = "env | grep -v ^_=; ls -l /proc/self/fd | grep -c 'socket:'; grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; umask; pwd; ulimit -a"
    native = subprocess.run(["sh", "-c", show], env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run(environment, "sh", "-c", show, cwd=tmp_path).stdout == native.stdout


@pytest.mark.parametrize(
    ("program", "code"), [("/nonexistent/program", 127), ("no-such-program-at-all", 127), ("/etc", 126), ("/etc/passwd", 126)]
)
def test_a_program_that_cannot_run_is_told_as_a_shell_does(environment: dict[str, str], program: str, code: int) -> None:
    done = run(environment, program)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv",
    [[], ["-x", "true"], ["-r"], ["-m", "lots", "true"], ["-m", "-5", "true"], ["-h", "-b", "true"], ["-hr", "n2", "true"],
     ["--what", "true"], ["-m", "²", "true"], ["--node"], ["--"]],
)  # fmt: skip
def test_bad_usage_is_one_sentence_and_64(environment: dict[str, str], argv: list[str]) -> None:
    done = run(environment, *argv)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (64, 1, "")
    assert done.stderr.startswith("mosrun: ")


@pytest.mark.parametrize(
    ("argv", "options", "program"),
    [
        (["prog", "-h"], {}, ["prog", "-h"]),
        (["-h", "prog"], {"home": "1"}, ["prog"]),
        (["-bL", "prog"], {"best": "1", "locked": "1"}, ["prog"]),
        (["-rn2", "-m", "5", "--", "-prog"], {"node": "n2", "memory": "5"}, ["-prog"]),
        (["--node=n2", "--job", "j", "prog", "--", "-L"], {"node": "n2", "job": "j"}, ["prog", "--", "-L"]),
        (["-LJ", "j", "prog"], {"locked": "1", "job": "j"}, ["prog"]),
    ],
)
def test_options_end_where_the_program_begins(argv: list[str], options: dict[str, str], program: list[str]) -> None:
    assert mosrun.options(argv) == (options, program)


def test_help_needs_no_daemon(environment: dict[str, str]) -> None:
    done = run(environment, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout


def test_the_parser_for_the_manual_knows_the_same_options() -> None:
    known = {word for action in mosrun.parser()._actions for word in action.option_strings} - {"--help"}
    assert known == set(mosrun._FLAGS) | set(mosrun._WITH_VALUE) | {mosrun._TRACE}


def test_its_own_encoding_is_msgpack() -> None:
    fields: dict[str, str | int] = {"op": "register", "text": "é" * 100, "no": False, "yes": True, "number": 5 << 40, "": ""}
    assert msgpack.unpackb(mosrun.encode(fields)) == fields
    assert msgpack.packb({"ok": True}) == mosrun.ACCEPTED


def test_a_daemon_that_says_nonsense_does_not_hinder(environment: dict[str, str], tmp_path: Path) -> None:
    import socket
    import threading

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "mosd.sock"))
    listener.listen()

    def answer() -> None:
        for said in (b"", b"\0\0\0\1\xc1", b"x" * 4000):
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(said)
            connection.close()

    server = threading.Thread(target=answer)
    server.start()
    try:
        for _ in range(3):
            done = run(environment, "echo", "hello")
            assert (done.returncode, done.stdout) == (0, "hello\n")
            assert done.stderr.count("\n") == 1, done.stderr
    finally:
        server.join(10)
        listener.close()


def test_interrupt_while_it_starts_is_no_traceback(environment: dict[str, str], tmp_path: Path) -> None:
    import socket

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "mosd.sock"))
    listener.listen()
    child = subprocess.Popen([ROOT / "bin" / "mosrun", "true"], env=environment, stderr=subprocess.PIPE, text=True)
    connection, _ = listener.accept()
    child.send_signal(signal.SIGINT)
    _, complaint = child.communicate(timeout=20)
    assert "Traceback" not in complaint
    assert child.returncode in (130, -signal.SIGINT)
    connection.close()
    listener.close()


def test_python_of_the_installed_program_is_ours() -> None:
    assert sys.prefix == str(ROOT / ".venv")
