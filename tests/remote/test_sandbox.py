"""A sandbox shows some files, hides the others, and ends with everything in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernel_helpers.common.errors import FarhomeError
from remote.sandbox.sandbox import Sandbox, checked_target

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def tool(tmp_path: Path) -> str:
    """A static program that sleeps, or writes its argument's directory entries."""
    source = tmp_path / "tool.c"
    source.write_text(
        "#include <dirent.h>\n#include <stdio.h>\n#include <unistd.h>\n"
        "int main(int n, char **v) { if (n < 2) { pause(); return 0; } DIR *d = opendir(v[1]); if (!d) return 9;\n"
        "struct dirent *e; while ((e = readdir(d))) if (e->d_name[0] != '.' || e->d_name[1] == 'f') puts(e->d_name);\n"
        'char h[99]; gethostname(h, 99); printf("host %s pid %d uid %d\\n", h, getpid(), getuid());\n'
        'return fopen("/made", "w") ? 0 : 7; }\n'
    )
    program = tmp_path / "tool"
    subprocess.run(["gcc", "-static", "-o", str(program), str(source)], check=True, timeout=60)
    return str(program)


def run(sandbox: Sandbox, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(sandbox.enter_argv(argv, **options), capture_output=True, text=True, timeout=20, check=False)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_gone(pid: int) -> None:
    end = time.monotonic() + 10
    while not gone(pid):
        assert time.monotonic() < end, f"{pid} is still there"
        os.sched_yield()


def test_only_the_files_are_there_and_confined_it_is_read_only(tool: str, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    sandbox = Sandbox.create("t", [("/opt/home/tool", tool)], nodename="homely", images=images)
    try:
        inside = run(sandbox, "/opt/home/tool", "/", last_pid=5000)
        assert "host homely pid 5001 uid 0" in inside.stdout and inside.returncode == 0
        sandbox.add_files([("/lib/later", tool)])
        assert run(sandbox, "/lib/later", "/.farhome/criu").stdout.count("\n") > 1
        sandbox.confine()
        confined = run(sandbox, "/opt/home/tool", "/")
        assert confined.returncode == 7  # nothing can be made any more
        entries = confined.stdout.splitlines()[:-1]
        assert set(entries) <= {".farhome", "dev", "lib", "made", "opt", "proc", "run", "tmp"}
        assert run(sandbox, "/opt/home/tool", "/.farhome/criu").stdout.startswith("host")
        assert run(sandbox, "/bin/sh").returncode == 125
        sandbox.open_for_criu(images)
        (images / "seen").touch()
        assert "seen" in run(sandbox, "/opt/home/tool", "/.farhome/images").stdout
        sandbox.close_for_criu()
        assert "seen" not in run(sandbox, "/opt/home/tool", "/.farhome/images").stdout
    finally:
        sandbox.destroy()
    assert images.exists() and Path(tool).exists()


def test_a_confined_sandbox_shows_one_more_file(tool: str, tmp_path: Path) -> None:
    sandbox = Sandbox.create("t", [("/tool", tool)])
    try:
        sandbox.confine()
        assert sandbox.open_file("/lib/deep/later") is None
        sandbox.show_file("/lib/deep/later", tool)
        opened = sandbox.open_file("/lib/deep/later")
        assert opened is not None
        with opened:
            assert opened.read() == Path(tool).read_bytes()
        assert "host" in run(sandbox, "/lib/deep/later", "/").stdout
        assert run(sandbox, "/tool", "/").returncode == 7, "nothing can be made"
        (tmp_path / "file").write_text("a file")
        sandbox.show_file("/file", tmp_path / "file")
        with pytest.raises(FarhomeError, match="cannot show"):
            sandbox.show_file("/file/below", tool)
        with pytest.raises(FarhomeError, match="cannot be shown"):
            sandbox.show_file("/proc/1/exe", tool)
        assert run(sandbox, "/tool", "/").returncode == 7, "nothing can be made now, either"
        sandbox.ask_for_next_pid(7000)
        sandbox.await_next_pid(7000)
        assert "pid" in run(sandbox, "/tool", "/").stdout
    finally:
        sandbox.destroy()


def test_destroy_ends_everything_inside(tool: str) -> None:
    sandbox = Sandbox.create("t", [("/tool", tool)])
    try:
        process = subprocess.Popen(sandbox.enter_argv(["/tool"], last_pid=4000))
        end = time.monotonic() + 10
        inner = None
        while inner is None:
            assert time.monotonic() < end
            try:
                inner = sandbox.host_pid(4001)
            except ProcessLookupError:
                os.sched_yield()
    finally:
        sandbox.destroy()
        sandbox.destroy()
    assert process.wait(10) == 128 + signal.SIGKILL
    assert gone(inner) and gone(sandbox.first)


def test_death_of_its_creator_ends_it() -> None:
    source = """
import os, signal
from remote.sandbox.sandbox import Sandbox
print(Sandbox.create("t", []).first, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, timeout=30, check=False)
    wait_gone(int(result.stdout))


def test_user_without_resource_capability(tool: str) -> None:
    sandbox = Sandbox.create("t", [("/tool", "/bin/true"), ("/t", tool)])
    try:
        assert "uid 1234" in run(sandbox, "/t", "/", uid=1234, gid=1234).stdout
    finally:
        sandbox.destroy()


def test_cgroup_is_joined(tool: str) -> None:
    name = f"farhome-test-{os.getpid()}"
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if line.split()[2] == "cgroup2"]
    if not points:
        pytest.skip("no unified hierarchy")
    group = Path(points[0]) / name
    group.mkdir()
    try:
        sandbox = Sandbox.create("t", [("/tool", tool)], cgroup=name)
        assert (group / "cgroup.procs").read_text().split() == [str(sandbox.first)]  # the process that waits for it is none of the guests
        process = subprocess.Popen(sandbox.enter_argv(["/tool"]))
        end = time.monotonic() + 10
        while len((group / "cgroup.procs").read_text().split()) < 3:
            assert time.monotonic() < end
            os.sched_yield()
        sandbox.destroy()
        process.wait(10)
    finally:
        end = time.monotonic() + 10
        while group.exists():
            try:
                group.rmdir()
            except OSError:
                assert time.monotonic() < end
                os.sched_yield()


def test_missing_file_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FarhomeError, match="nowhere"):
        Sandbox.create("t", [("/x", tmp_path / "nowhere")])


@pytest.mark.parametrize(
    "path", ["relative", "/a/../b", "/a//b", "/a/", "/proc/1/x", "/.farhome/criu/x", "/dev/null", "/a\0b", "/" + "a" * 5000]
)
def test_unsound_place_is_refused(path: str) -> None:
    with pytest.raises(FarhomeError):
        checked_target(path)


def test_sound_places() -> None:
    for path in ("/usr/lib/x", "/dev/shm/x", "/home/a/.local/b..c"):
        assert checked_target(path) == path
