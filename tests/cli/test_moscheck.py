"""moscheck reports what it reads from a program's file, and all that keeps a process at home; it changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from cli import moscheck
from cli.common import executable
from cli.common.executable import examine
from kernel_helpers.calls import table
from tests.engine.test_all_reasons import THREE_THINGS
from tests.engine.test_refusal import python
from tests.node.conftest import new_pair, pair  # noqa: F401
from tests.node.nodes import Cluster

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: str | bytes, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "bin" / "moscheck", *argv], env={**os.environ, "FARHOME_RUN": "/nonexistent", **environment}, capture_output=True,
        text=True, timeout=20, check=False,
    )  # fmt: skip


def made(path: Path, content: bytes | str, mode: int = 0o755) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def compiled(directory: Path, source: str, *options: str) -> Path:
    program = directory / "program"
    subprocess.run(["gcc", "-std=gnu89", "-w", "-x", "c", "-", "-o", program, *options], input=source.encode(), check=True, timeout=60)
    return program


def header(machine: int = 62, bits: int = 2, kind: int = 2, order: str = "<") -> bytes:
    """The first bytes of an ELF file."""
    return b"\x7fELF" + bytes([bits, 1 if order == "<" else 2, 1]) + bytes(9) + struct.pack(f"{order}HH", kind, machine) + bytes(44)


def test_an_ordinary_program_could_move() -> None:
    done = run("sleep")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{shutil.which('sleep')} could move"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (header(3, 1), "a program for 32-bit x86"), (header(183), "a program for 64-bit ARM"), (header(62, 1), "the x32 kind"),
        (header(22, 2, order=">"), "a program for IBM Z"), (header(4711), "for another machine"), (header(kind=1), "a part of one"),
        (b"", "neither a program nor a script"), (b"\x7fELF", "neither a program nor a script"), ("just text\n", "neither a program"),
        ("#!\n", "names no interpreter"), ("#!/nonexistent/perl -w\n", "interpreter /nonexistent/perl is not there"),
        ("#!/usr/bin/env no-such-thing\n", "interpreter no-such-thing is not found"),
        ("#!/usr/bin/env -S A=1 no-such-thing -x\n", "interpreter no-such-thing is not found"),
    ],
)  # fmt: skip
def test_the_reason_against_a_move_is_named(tmp_path: Path, content: bytes | str, named: str) -> None:
    done = run(str(made(tmp_path / "program", content)))
    assert (done.returncode, done.stderr) == (1, "")
    assert " cannot move:\n  " in done.stdout
    assert named in done.stdout


def test_files_that_cannot_be_executed_are_named(tmp_path: Path) -> None:
    assert "is no file that can be executed" in run(str(tmp_path)).stdout
    made(tmp_path / "unexecutable-file", header(), 0o644)
    for name in (str(tmp_path / "unexecutable-file"), "unexecutable-file"):
        done = run(name, PATH=f"{os.environ['PATH']}:{tmp_path}")
        assert (done.returncode, "you may not execute it" in done.stdout) == (1, True)


def test_a_script_is_its_interpreter(tmp_path: Path) -> None:
    script = made(tmp_path / "script", "#!/bin/sh -e\nexit 3\n")
    finding = json.loads(run(str(script), "--json").stdout)
    assert (finding["can_move"], finding["interpreters"]) == (True, ["/bin/sh"])
    by_env = made(tmp_path / "by-env", f"#!/usr/bin/env {script}\n")
    assert examine(str(by_env)).chain == ["/usr/bin/env", str(script), "/bin/sh"]
    foreign = made(tmp_path / "foreign", header(183))
    assert f"{foreign} is a program for 64-bit ARM" in examine(str(made(tmp_path / "outer", f"#!{foreign}\n"))).reasons[0]
    loop = tmp_path / "loop"
    made(loop, f"#!{loop}\n")
    assert examine(str(loop)).reasons == ["its interpreters are scripts, too many of them"]


def test_a_program_that_gives_rights_stays_at_home(tmp_path: Path) -> None:
    program = Path(shutil.copy("/bin/true", tmp_path / "program"))
    os.chown(program, 12345, 12345)
    for mode, word in ((0o4755, "setuid"), (0o2755, "setgid")):
        program.chmod(mode)
        finding = json.loads(run(str(program), "--json").stdout)
        assert finding["can_move"] is False
        assert [word in reason for reason in finding["reasons"]] == [True]
    os.chown(program, os.geteuid(), os.getegid())
    program.chmod(0o4755)  # gives nothing to the caller, as sudo to root
    finding = examine(str(program))
    assert finding.reasons == []
    assert any("setuid" in note and "others" in note for note in finding.notes)
    program.chmod(0o755)
    assert (examine(str(program)).reasons, examine(str(program)).notes) == ([], [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives capabilities to files")
def test_a_program_with_capabilities_of_its_own_stays_at_home(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(directory.stat().st_mode | 0o055)
    program = Path(shutil.copy("/bin/true", tmp_path / "program"))
    os.setxattr(program, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    assert any("capabilities" in note for note in examine(str(program)).notes)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setresuid(65534, 65534, 65534)
        os.write(write, "\n".join(examine(str(program)).reasons).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as output:
        assert "capabilities of its own" in output.read()


@pytest.mark.parametrize("name", ["bash", "make", "gcc", "sh", "perl", "git"])
def test_programs_whose_children_are_born_away_have_no_note_about_fork(name: str) -> None:
    path = executable.find(name)
    if path is None:
        pytest.skip(f"there is no {name}")
    notes = "\n".join(examine(path).notes)
    assert not any(call in notes for call in ("fork", "clone")), notes


def test_java_stays_without_the_option_to_share_nothing() -> None:
    path = executable.find("java")
    if path is None:
        pytest.skip("there is no java")
    assert ["-XX:-UsePerfData" in reason for reason in examine(path).reasons] == [True]


def test_notes_by_program_name_apply_to_installed_programs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chromium", "docker", "sudo"):
        shutil.copy("/bin/true", tmp_path / name)
    assert [examine(str(tmp_path / name)).reasons + examine(str(tmp_path / name)).notes for name in ("chromium", "docker")] == [[], []]
    monkeypatch.setattr(executable, "SYSTEM", (f"{tmp_path}/",))
    assert "seccomp" in examine(str(tmp_path / "chromium")).reasons[0]
    assert "daemon" in examine(str(tmp_path / "docker")).reasons[0]
    assert "rights" in examine(str(tmp_path / "sudo")).reasons[0]
    os.symlink("chromium", tmp_path / "www-browser")
    assert examine(str(tmp_path / "www-browser")).reasons


def test_calls_that_a_program_imports_are_noted(tmp_path: Path) -> None:
    source = "int main(int n, char **a) { if (n > 9) { shmat(1, 0, 0); fork(); chroot(a[0]); execv(a[0], a); } return 0; }"
    notes = "\n".join(examine(str(compiled(tmp_path, source))).notes)
    assert "shmat" in notes
    always = {row.name for row in table.rows() if row.class_ == table.Class.GO_HOME and not row.variants}
    for name in {"chroot", "execve"} & always:
        assert name in notes
    assert "fork" not in notes
    assert "linked statically" in "\n".join(examine(str(compiled(tmp_path, "int main() { return 0; }", "-static"))).notes)
    assert examine(str(compiled(tmp_path, "int main() { return 0; }"))).notes == []


def test_a_missing_loader_is_reported(tmp_path: Path) -> None:
    program = compiled(tmp_path, "int main() { return 0; }", "-Wl,--dynamic-linker=/lib/ld-nowhere.so")
    assert examine(str(program)).reasons == ["it needs the loader /lib/ld-nowhere.so, which is not there"]


def test_headers_that_make_no_sense_do_no_harm(tmp_path: Path) -> None:
    """Every byte of the headers, and of what they point to, once turned over; and every way to be cut off."""
    whole = compiled(tmp_path, 'int main() { puts("x"); return 0; }', "-s").read_bytes()
    program = tmp_path / "broken"
    table_at = struct.unpack_from("<Q", whole, 40)[0]
    for at in [*range(16, 64 + 56 * 13), *range(table_at, len(whole))]:
        made(program, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        examine(str(program))
    for length in range(0, 2048, 13):
        made(program, whole[:length])
        examine(str(program))


@pytest.mark.parametrize(
    "argv",
    [[], ["no-such-program-at-all"], ["/nonexistent/program"], [""], ["0"], ["9" * 30], ["sleep", "60"], ["--what"], ["sleep", "--what"]],
)
def test_bad_input_is_one_sentence_and_64(argv: list[str]) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (64, "", 1), done.stderr
    assert done.stderr.startswith("moscheck: ")


def test_a_process_without_a_daemon_is_69() -> None:
    done = run(str(os.getpid()))
    assert (done.returncode, done.stderr.count("\n")) == (69, 1)


def test_a_name_that_is_no_text_does_no_harm(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/odd\xff\nname"
    Path(os.fsdecode(path)).write_bytes(header(3, 1))
    os.chmod(path, 0o755)
    for options in ([], ["--json"]):
        done = run(path, *options)
        assert (done.returncode, done.stderr) == (1, "")
        assert "odd??name" in done.stdout


def test_help_has_examples_and_exit_codes() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "exit codes:" in done.stdout
    assert moscheck.parser().prog == "moscheck"
    assert executable.find("sleep") == shutil.which("sleep")


def test_all_reasons_of_a_process_are_shown_and_it_is_left_alone(pair: Cluster) -> None:  # noqa: F811
    with python(THREE_THINGS) as pid:
        done = pair[1].command("moscheck", str(pid))
        assert done.returncode == 1
        assert len([line for line in done.stdout.splitlines() if not line.startswith("  note: ")]) == 4
        assert f"process {pid} (/usr/bin/python3" in done.stdout
        answer = json.loads(pair[1].command("moscheck", str(pid), "--json").stdout)
        assert (answer["can_move"], answer["registered"], len(answer["reasons"])) == (False, False, 3)
        assert "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text()
    assert pair[1].processes() == []
    assert pair[1].programs() == []


def test_a_process_that_could_move_is_shown_as_such_wherever_it_is(pair: Cluster) -> None:  # noqa: F811
    with python("") as pid:
        assert pair[1].ok("moscheck", str(pid)).endswith("could move\n")
        pair[1].ok("migrate", str(pid), "n2")
        assert "note: it is on n2 now" in pair[1].ok("moscheck", str(pid))
        pair[2].ok("mosctl", "block")
    home_only = pair.spawn(pair[1], "-h", "sleep", "60")
    done = pair[1].command("moscheck", str(home_only))
    assert (done.returncode, "mosrun -h" in done.stdout) == (1, True)
    assert pair[1].command("moscheck", "4194304").returncode == 75
