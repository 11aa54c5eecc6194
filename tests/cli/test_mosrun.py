"""mosrun becomes the program: same pid, environment, descriptors, exit status; and it says in one line what is wrong."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest

from cli.mosrun import mosrun

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A place where no daemon is."""
    return {"PATH": os.environ["PATH"], "FARHOME_RUN": str(tmp_path)}


def framed(message: dict[str, object]) -> bytes:
    body: bytes = msgpack.packb(message)
    return len(body).to_bytes(4, "big") + body


ACCEPTED = framed({"ok": True})


@contextmanager
def daemon(directory: Path, answers: list[bytes]) -> Iterator[list[dict[str, object]]]:
    """Answers as many callers as there are answers; yields the list of their messages. Each has closed its connection at the end."""
    messages: list[dict[str, object]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "mosd.sock"))
        listener.listen()
        listener.settimeout(10)

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    data = connection.recv(65536)
                    assert len(data) == 4 + int.from_bytes(data[:4], "big")
                    messages.append(msgpack.unpackb(data[4:]))
                    connection.sendall(answer)
                    if answer == ACCEPTED:
                        assert connection.recv(1) == b"", "exec closes it"

        with ThreadPoolExecutor(1) as pool:
            serving = pool.submit(serve)
            yield messages
            serving.result(20)
    (directory / "mosd.sock").unlink()


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


def test_the_program_sees_the_same_as_natively(environment: dict[str, str], tmp_path: Path) -> None:
    show = "env | grep -v ^_=; ls -l /proc/self/fd | grep -c 'socket:'; grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; umask; pwd; ulimit -a"
    native = subprocess.run(["sh", "-c", show], env=environment, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
    assert run(environment, "sh", "-c", show, cwd=tmp_path).stdout == native.stdout


@pytest.mark.parametrize(
    ("program", "code"), [("/nonexistent/program", 127), ("no-such-program-at-all", 127), ("/etc", 126), ("/etc/passwd", 126)]
)
def test_a_program_that_cannot_run_is_reported_as_by_a_shell(environment: dict[str, str], program: str, code: int) -> None:
    done = run(environment, program)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv",
    [[], ["-x", "true"], ["-r"], ["-m", "lots", "true"], ["-m", "-5", "true"], ["-h", "-b", "true"], ["-hr", "n2", "true"],
     ["-C", "there", "true"], ["--restart"], ["-R", "there", "true"], ["--what", "true"], ["-m", "²", "true"], ["--node"], ["--"],
     ["-X", "relative", "true"], ["-X", "/nonexistent", "true"], ["-X", "/etc/passwd", "true"], ["-X", "/", "true"],
     ["-X", "/tmp", "-X", "/tmp", "true"], ["-X", "/usr/lib", "--private=/usr", "true"], ["-X/tmp", "-A", "5", "true"],
     ["-X", "/tmp", "-R", "saved"], [*["-X", "/tmp"] * 11, "true"], ["-X"],
     ["-J", "", "true"], ["-r", "", "true"], ["--job=", "true"], ["--node=", "true"], ["-m", "", "true"], ["-A", "", "true"],
     ["--trace=", "true"], ["-T", "", "true"]],
)  # fmt: skip
def test_bad_usage_is_one_sentence_and_64(environment: dict[str, str], argv: list[str]) -> None:
    done = run(environment, *argv)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (64, 1, "")
    assert done.stderr.startswith("mosrun: ")


DEFAULT_MESSAGE = {"op": "register", "job": "", "home_only": False, "locked": False, "memory": 0, "node": "", "trace": "", "trust": ""}
DEFAULT_MESSAGE |= {"every": "", "checkpoint": "", "directory": ""}


@pytest.mark.parametrize(
    ("argv", "options", "program"),
    [
        (["echo", "-h"], {}, "-h"),
        (["-h", "echo"], {"home_only": True}, ""),
        (["--trust", "n2,n3", "echo"], {"trust": "n2,n3"}, ""),
        (["-Tn2", "echo"], {"trust": "n2"}, ""),
        (["-bL", "echo"], {"node": "best", "locked": True}, ""),
        (["-rn2", "-m", "5", "--", "echo"], {"node": "n2", "memory": 5 << 20}, ""),
        (["--node=n2", "--job", "j", "echo", "--", "-L"], {"node": "n2", "job": "j"}, "-- -L"),
        (["-LJ", "j", "echo"], {"locked": True, "job": "j"}, ""),
        (["--locked", "--memory=999999999", "echo"], {"locked": True, "memory": 999999999 << 20}, ""),
        (["-J", "é" * 600, "echo"], {"job": "é" * 512}, ""),
        (["--trace", "-L", "echo"], {"trace": "-", "locked": True}, ""),
        (["-A", ".5", "-C", "/there/saved", "echo"], {"every": ".5", "checkpoint": "/there/saved"}, ""),
    ],
)  # fmt: skip
def test_options_end_where_the_program_begins(
    environment: dict[str, str], tmp_path: Path, argv: list[str], options: dict[str, object], program: str
) -> None:
    with daemon(tmp_path, [ACCEPTED]) as messages:
        done = run(environment, *argv)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{program}\n", "")
    message = messages[0]
    assert str(message.pop("command")).startswith("echo")
    assert message == DEFAULT_MESSAGE | options


def test_bytes_that_are_no_text_become_question_marks(environment: dict[str, str], tmp_path: Path) -> None:
    odd = b"a\xff \xc3\xa9 \xe2\x82 \xed\xa0\x80 \xf0\x9f\x98\x80 \xc0\xaf \xf4\x90\x80\x80"
    with daemon(tmp_path, [ACCEPTED]) as messages:
        subprocess.run([ROOT / "bin" / "mosrun", "true", odd, b"x" * 5000], env=environment, check=True, timeout=20)
    command = str(messages[0]["command"])
    assert command.startswith("true a? é ?? ??? \U0001f600 ?? ???? xxx")
    assert 900 < len(command.encode()) <= 1024


def test_help_needs_no_daemon(environment: dict[str, str]) -> None:
    done = run(environment, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout


def test_the_parser_for_the_manual_knows_the_same_options() -> None:
    parsed = {word for action in mosrun.parser()._actions for word in action.option_strings} - {"--help"}
    source = (ROOT / "cli" / "mosrun" / "mosrun_options.c").read_text()
    table = source[source.index("} known[] = {") : source.index("enum { KNOWN")]
    read = {word for letter, name in re.findall(r"{'(.)', \"(--[a-z]+)\"", table) for word in (f"-{letter}", name)}
    assert parsed == read | {"--trace"}
    assert len(read) == 22


def test_checkpoints_go_beside_where_it_was_started(environment: dict[str, str], tmp_path: Path) -> None:
    with daemon(tmp_path, [ACCEPTED, ACCEPTED]) as messages:
        done = run(environment, "-A", "30", "sh", "-c", "echo $$", cwd=tmp_path)
        run(environment, "-A", "30", "-C", "saved", "true", cwd=tmp_path)
    assert messages[0]["checkpoint"] == f"{tmp_path}/ckpt.{done.stdout.strip()}"
    assert messages[1]["checkpoint"] == f"{tmp_path}/saved"


def test_a_restart_that_is_refused_says_why_and_ends_with_its_code(environment: dict[str, str], tmp_path: Path) -> None:
    with daemon(tmp_path, [framed({"ok": False, "error": "it is no checkpoint", "code": 75}), framed({"ok": True})]) as messages:
        done = run(environment, "-J", "j", "--restart", "saved", cwd=tmp_path)
        nonsense = run(environment, "--restart", "saved", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (75, "mosrun: it is no checkpoint\n")
    assert nonsense.returncode == 69
    assert (messages[0]["op"], messages[0]["directory"], messages[0]["job"]) == ("restart", f"{tmp_path}/saved", "j")
    alone = run({**environment, "FARHOME_RUN": "/nonexistent"}, "--restart", "saved")
    assert (alone.returncode, alone.stderr.count("\n")) == (69, 1)


@pytest.mark.parametrize(
    "said",
    [b"", b"\0\0\0\1\xc1", b"x" * 4000, b"\0\0\0\0", b"\0\0\0\5\x82\xa5erro", b"\0\0\0\x0a\x82\xa5error\xda\xff\xff", b"\0\0\0\2\x81\x90",
     b"\0\0\0\7\x82\xa4code\xce", ACCEPTED[:-1]],
)  # fmt: skip
def test_a_daemon_that_says_nonsense_does_not_hinder(environment: dict[str, str], tmp_path: Path, said: bytes) -> None:
    with daemon(tmp_path, [said]):
        done = run(environment, "echo", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "went away before it answered; echo runs at home" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(("code", "status", "output"), [(64, 64, ""), (75, 0, "hello\n"), (300, 0, "hello\n")])
def test_a_refusal_by_the_daemon_is_shown(environment: dict[str, str], tmp_path: Path, code: int, status: int, output: str) -> None:
    for sentence in ("no node n9 is known", "é" * 200):
        with daemon(tmp_path, [framed({"ok": False, "error": sentence, "code": code, "id": 70000})]):
            done = run(environment, "echo", "hello")
        assert (done.returncode, done.stdout) == (status, output)
        assert done.stderr == f"mosrun: {sentence}{'' if status else '; echo runs at home'}\n"


def test_interrupt_while_it_starts_is_no_traceback(environment: dict[str, str], tmp_path: Path) -> None:
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


def test_environment_and_arguments_are_the_very_same(environment: dict[str, str], tmp_path: Path) -> None:
    """Includes what no shell would pass on: a stale PWD, a name twice, no name, no equals sign, no text; and their order."""
    variables = [
        "ZZ=1", f"PATH={os.environ['PATH']}", "PWD=/nonexistent", "OLDPWD=/x", "AA=2", "A=1", "A=2", "=x", "novalue", "_=/bin/x",
        "LC_ALL=C", "BASH_FUNC_f%%=() { :; }", "1a=b", "\udcff=\udcfe", f"FARHOME_RUN={tmp_path}", "SHLVL=7",
    ]  # fmt: skip
    words = ["cat", "--", "/proc/self/environ", "/proc/self/cmdline"]
    shown = {}
    for name, argv in (("native", words), ("moved", [str(ROOT / "bin" / "mosrun"), *words])):
        with (tmp_path / name).open("wb") as output, daemon(tmp_path, [ACCEPTED] * (name == "moved")):
            pid = os.fork()
            if not pid:
                os.dup2(output.fileno(), 1)
                execute(argv, variables)
            assert os.waitpid(pid, 0)[1] == 0
        shown[name] = (tmp_path / name).read_bytes()
    assert shown["moved"] == shown["native"]
    assert shown["native"] == b"\0".join(os.fsencode(word) for word in [*variables, *words, ""])


def execute(argv: list[str], variables: list[str]) -> None:
    """execve(2) itself: os.execve takes no environment that is not a map."""
    libc = ctypes.CDLL(None)
    path = shutil.which(argv[0])
    assert path is not None

    def strings(words: list[str]) -> ctypes.Array[ctypes.c_char_p]:
        return (ctypes.c_char_p * (len(words) + 1))(*(os.fsencode(word) for word in words), None)

    libc.execve(path.encode(), strings(argv), strings(variables))
    os._exit(1)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_descriptors_stay_closed(environment: dict[str, str], tmp_path: Path, closed: tuple[int, ...]) -> None:
    program = "import os, sys; sys.exit(sum(1 << fd for fd in range(3) if os.path.exists(f'/proc/self/fd/{fd}')))"
    closing = " ".join(f"{fd}>&-" for fd in closed)
    with daemon(tmp_path, [ACCEPTED]):
        script = f"exec '{ROOT}/bin/mosrun' /usr/bin/env python3 -IS -c \"{program}\" {closing}"
        done = subprocess.run(["sh", "-c", script], env=environment, timeout=20, check=False)
    native = subprocess.run(["sh", "-c", script.replace(f"'{ROOT}/bin/mosrun'", "")], env=environment, timeout=20, check=False)
    assert done.returncode == native.returncode


def test_a_script_without_an_interpreter_is_the_shells(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $0 $1\n")
    script.chmod(0o755)
    assert run(environment, str(script), "x").stdout == f"{script} x\n"
