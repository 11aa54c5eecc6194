"""Private directories (mosrun -X): files of one process and its children, wherever they are, which no other process sees."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.objects import move_at_every_step, parameters

pytestmark = pytest.mark.timeout(120)
USER = "farhome-a"

WORKS = """
import os, subprocess, sys

def works(n):
    log.write(f"{n}\\n"), log.flush()
    place = f"{n % 7}"
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/data", "w") as file:
        file.write("x" * n), file.truncate(n + 100)
    os.link(f"{place}/data", f"{place}/second"), os.replace(f"{place}/second", f"{place}/other"), os.unlink(f"{place}/data")
    assert os.stat(f"{place}/other").st_nlink == 1 and os.path.getsize(f"{place}/other") == n + 100
    assert open(f"{place}/other").read() == "x" * n + "\\0" * 100
    if n % 20 == 0:
        assert subprocess.check_output(["wc", "-l", "log"]) == b"%d log\\n" % n
        assert sorted(os.listdir()) == ["0", "1", "2", "3", "4", "5", "6", "log"]

lines, enough = open("lines", "w"), os.path.abspath("enough")
os.chdir(sys.argv[1])
assert os.listdir() == []
log = open("log", "w+")
gone = open("gone", "w+")
os.unlink("gone"), gone.write("still here"), gone.flush()
n = 0
while n < 20 or not os.path.exists(enough):
    n += 1
    works(n), lines.write("on\\n"), lines.flush()
log.seek(0), gone.seek(0)
assert log.read().split() == [str(i + 1) for i in range(n)] and gone.read() == "still here"
print("all as it should be")
"""


def started(cluster: Cluster, user: str, command: str = 'exec python3 -c "$WORKS" /tmp/$OWN/work', options: str = "") -> Running:
    """It has a directory `work` of its own where there is a file for others."""
    first = f"OWN=$(basename $PWD) WORKS='{WORKS}'; export OWN WORKS; mkdir work; echo others > work/others;"
    return Running(cluster, "counter", "", user, f"{first} mosrun -L {options} -X /tmp/$OWN/work", f"sh -c '{command}'")


def mounted_by(cluster: Cluster) -> list[str]:
    """Processes of the home node that see private directories."""
    found = []
    for mounts in Path(cluster.home.root, "proc").glob("[0-9]*/mountinfo"):
        try:
            if " - tmpfs farhome-private " in mounts.read_text():
                found.append(mounts.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("user", ["", USER])
def test_files_are_its_own_wherever_it_is_and_gone_with_it(cluster: Cluster, user: str) -> None:
    with started(cluster, user) as job:
        shown = [job.directory / "work"]
        for target in ("n2", "n3", HOME, "n2"):
            job.works()
            job.moved(target)
            assert [os.listdir(place) for place in shown] == [["others"]]
        job.works()
        (job.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in job.end(), job.said
        assert os.listdir(job.directory / "work") == ["others"]
    until("no process has them", lambda: not mounted_by(cluster))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", parameters("objects_files", "objects_mappings", "objects_descriptors"))
def test_programs_behave_the_same_with_private_directories(cluster: Cluster, scenario: str) -> None:
    move_at_every_step(cluster, scenario, private=True)


@pytest.mark.parametrize("daemon", ["deputy --pid {}", "mosd --config"])
def test_private_directories_are_removed_after_a_daemon_is_killed(cluster: Cluster, daemon: str) -> None:
    with started(cluster, USER) as job:
        job.moved("n2")
        job.works()
        daemons = cluster.home.run("pgrep", "-f", daemon.format(job.pid)).stdout.split()
        assert daemons and not cluster.home.run("kill", "-9", *daemons).returncode
        if daemon.startswith("mosd"):
            job.works()
            cluster.lab.node(HOME).start_mosd()
            assert str(job.pid) in mounted_by(cluster)
            (job.directory / "enough").touch()
            assert "all as it should be\nstatus 0" in job.end(), job.said
        else:
            assert "status 137" in job.end(), job.said
    until("no process has them", lambda: not mounted_by(cluster))


def test_a_child_that_outlives_it_has_them_until_it_is_killed(cluster: Cluster) -> None:
    outlives = "echo kept > /tmp/$OWN/work/file; (sleep 1000 & echo $! > child); exec sleep 1000"
    with started(cluster, USER, outlives) as job:
        until("the child is there", lambda: (job.directory / "child").exists() and (job.directory / "child").read_text().endswith("\n"))
        child = (job.directory / "child").read_text().strip()
        job.moved("n2")
        cluster.home.run("kill", "-9", str(job.pid))
        assert "status 137" in job.end()
        until("the child alone has it", lambda: mounted_by(cluster) == [child])
        file = f"/proc/{child}/root/tmp/{job.name}/work/file"
        assert cluster.home.run("cat", file).stdout == "kept\n"
        assert cluster.home.run("cat", file, user="farhome-b").returncode
        cluster.home.run("kill", "-9", child)
    until("no process has it", lambda: not mounted_by(cluster))


def test_no_rights_are_gained_and_the_size_is_bounded(cluster: Cluster) -> None:
    report = (
        "grep Cap /proc/self/status; id -u; stat -fc %S:%b:%T /tmp/$OWN/work; grep /work /proc/self/mountinfo; su root -c id </dev/null"
    )
    with started(cluster, USER, f"{report}; sleep 0.3") as job:
        job.end()
        native = cluster.home.run("sh", "-c", "grep Cap /proc/self/status; id -u", user=USER).stdout
        assert job.said.startswith(native), job.said
        assert "uid=0" not in job.said and " rw,nosuid,nodev," in job.said, job.said
        unit, blocks, kind = job.said.splitlines()[len(native.splitlines())].split(":")
        assert kind == "tmpfs" and int(blocks) <= os.sysconf("SC_PHYS_PAGES") // 4 + 1 and int(unit) == os.sysconf("SC_PAGESIZE")


SHOWS = """
import ctypes, os, resource, sys
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))
print(open("/proc/self/environ").read(), signal.value, os.getresuid(), os.getgroups(), os.getcwd(), os.listdir(), oct(os.umask(0)),
      [resource.getrlimit(n) for n in range(16)], open("/proc/self/personality").read(), os.listdir("/proc/self/fd"),
      [oct(os.stat(".").st_mode), os.stat(".").st_uid, os.stat(".").st_gid], sys.argv)
"""


def test_all_else_is_as_without_them(cluster: Cluster) -> None:
    """Includes what the kernel resets when a process executes a program with file capabilities."""
    own = f"/tmp/own-{os.getpid()}"
    assert not cluster.home.run("sh", "-c", f"mkdir -m 2751 {own} && cd {own}", user=USER).returncode
    where = f"cd {own}; umask 27; exec env -i LD_LIBRARY_PATH=/nowhere PATH=$PATH TMPDIR=/there A= setpriv --pdeathsig USR1 "
    where += "setarch -R prlimit --stack=unlimited --core=0"
    program = f"python3 -c '{SHOWS}' -- -X"
    natively = cluster.home.run("sh", "-c", f"{where} {program}", user=USER)
    within = cluster.home.run("sh", "-c", f"{where} mosrun -L -X {own} {program}", user=USER)
    assert "LD_LIBRARY_PATH" in natively.stdout and " 10 (" in natively.stdout, natively.stderr
    assert (within.stdout, within.stderr) == (natively.stdout, "")


def test_no_command_line_shows_the_environment(cluster: Cluster) -> None:
    """A command line can be read by all users."""
    own = f"/tmp/secret-{os.getpid()}"
    program = f"mosrun -L -X {own} sh -c 'test $SECRET = hunter2'"
    traced = f"mkdir {own}; SECRET=hunter2 strace -f -e trace=execve -s 9999 -o {own}/calls {program}"
    assert cluster.home.run("sh", "-c", f"{traced} && grep -c mosrun-private {own}/calls").returncode == 0
    assert cluster.home.run("grep", "-c", "SECRET=", f"{own}/calls").stdout == "0\n"


FILLS = """
import errno, os, time
while not os.path.exists(f"{os.environ['OWN']}/go"):
    time.sleep(0.02)
with open(f"{os.environ['OWN']}/work/file", "w") as file:
    try:
        os.posix_fallocate(file.fileno(), 0, os.sysconf("SC_PHYS_PAGES") // 3 * os.sysconf("SC_PAGESIZE"))
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_a_program_that_fills_its_directory_gets_enospc(cluster: Cluster) -> None:
    (cluster.home.root / "tmp" / "fills.py").write_text(FILLS)
    with started(cluster, USER, "cd /tmp; exec python3 /tmp/fills.py") as job:
        job.moved("n2")
        (job.directory / "go").touch()
        assert job.end() == "ENOSPC\nstatus 0\n"


def test_unsupported_actions_are_refused_and_the_program_runs_on(cluster: Cluster) -> None:
    with started(cluster, USER) as job:
        job.works()
        for words, reason in (
            (["migrate", str(job.pid), "n2", "--engine", "criu"], "it has private directories (mosrun -X)"),
            (["migrate", str(job.pid), "checkpoint", f"/tmp/{job.name}/saved"], "it has private directories (mosrun -X)"),
        ):
            done: subprocess.CompletedProcess[str] = cluster.home.run(*words, user=USER)
            assert (done.returncode, reason in done.stderr) == (75, True), done.stderr
        checked = cluster.home.run("moscheck", str(job.pid), user=USER)
        assert checked.returncode == 0, checked.stdout
        assert "another kernel: it has private directories" in checked.stdout
        job.moved("n2")
        job.works()
        (job.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in job.end(), job.said


@pytest.mark.parametrize(
    ("directory", "said"),
    [("/etc", "it is not your directory"), ("/proc/self", "it is a directory of the kernel's own"),
     ("/run/farhome", "it holds what farhome itself needs"), ("/run", "it holds what farhome itself needs")],
)  # fmt: skip
def test_directories_that_may_not_be_hidden(cluster: Cluster, directory: str, said: str) -> None:
    user = USER if "your" in said else ""
    done = cluster.home.run("mosrun", "-X", directory, "true", user=user)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (77, "", 1)
    assert f"mosrun: -X {directory}: {said}" in done.stderr


def test_a_trace_has_to_be_where_it_can_be_found(cluster: Cluster) -> None:
    done = cluster.home.run("mosrun", "-X", "/tmp", "--trace=/tmp/calls", "true", user=USER)
    assert (done.returncode, done.stderr) == (64, "mosrun: --trace=/tmp/calls lies in a directory of -X, where nobody would find it\n")


def test_a_program_with_no_new_privs_may_not_have_private_directories(cluster: Cluster) -> None:
    done = cluster.home.run("setpriv", "--no-new-privs", "mosrun", "-X", "/tmp", "true", user=USER)
    assert (done.returncode, done.stderr.count("\n"), done.stderr.startswith("mosrun: -X needs the capability")) == (77, 1, True)
