"""Processes that are checkpointed, ended, and started again from there: they end with what an undisturbed run ends with."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.moves.cluster import Cluster, until
from tests.moves.outcome import kill_session
from tests.programs.build import program

NUMBERS = itertools.count(1)
NOTHING: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
USER, OTHER = "farhome-a", "farhome-b"
PYTHON = """
import hashlib, sys
ballast = [bytes([i % 256]) * 100 for i in range(350000)]
digest, table = b"farhome", {}
with open("lines", "w") as log:
    for step in range(int(sys.argv[1])):
        for _ in range(2000):
            digest = hashlib.sha256(digest).digest()
        table[step] = digest * 10
        print(digest.hex(), file=log, flush=True)
print(hashlib.sha256(b"".join(table.values()) + b"".join(ballast)).hexdigest())
"""


class Work:
    """A command line, run on n1 in two directories of one parent: `native`, undisturbed, and `run`, under mosrun."""

    def __init__(self, cluster: Cluster, command: str, *, user: str = "", mosrun: str = "mosrun -L", files: dict[str, bytes] | None = None):
        self.cluster, self.command, self.user = cluster, command, user
        self.name = f"ckpt{os.getpid() % 10000}x{next(NUMBERS)}"
        self.inside = Path("/tmp") / self.name
        self.directory = cluster.home.root / "tmp" / self.name
        for name in ("native", "run"):
            (self.directory / name).mkdir(parents=True)
            for file, content in (files or {}).items():
                (self.directory / name / file).write_bytes(content)
                # The same, since programs copy it: gzip does.
                os.utime(self.directory / name / file, (1_000_000_000, 1_000_000_000))
        for name in ("counter", "threads"):
            shutil.copy(program(name), self.directory / name)
        self.sh(f"chmod -R a+rwX {self.inside}", user="")
        if user:
            self.sh(f"chown -R {user} {self.inside}", user="")
        self.mosrun = mosrun
        self.process: subprocess.Popen[bytes] | None = None
        self.native: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def sh(self, script: str, *, user: str | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """A shell's doing in the parent directory."""
        words = ("sh", "-c", f"cd {self.inside} && {script}")
        return self.cluster.home.run(*words, user=self.user if user is None else user, timeout=timeout)

    def start(self) -> None:
        script = f"cd {self.inside}/run && exec {self.mosrun} -J {self.name} {self.command}"
        self.process = self.cluster.home.popen(["setsid", "--wait", "sh", "-c", script], self.user, **NOTHING)
        script = f"cd {self.inside}/native && {self.command}"
        self.native = self.cluster.home.popen(["setsid", "--wait", "sh", "-c", script], self.user, **NOTHING)
        shown = until("it is registered", lambda: next(iter(self.cluster.processes(self.name)), None), seconds=60)
        self.pid = int(shown["pid"])

    def grows(self, name: str = "lines", least: int = 200) -> None:
        """Waits until the file has that many more bytes."""
        path = self.directory / "run" / name
        before = path.stat().st_size if path.exists() else 0
        until(f"{name} grows", lambda: path.exists() and path.stat().st_size >= before + least, seconds=90)

    def checkpoint(self, to: str = "saved") -> subprocess.CompletedProcess[str]:
        return self.sh(f"migrate {self.pid} checkpoint {to}")

    def checkpointed(self, to: str = "saved") -> None:
        done = self.checkpoint(to)
        assert done.returncode == 0, done.stderr
        print(done.stdout, end="")

    def kill(self) -> None:
        assert self.process is not None
        self.sh(f"kill -9 {self.pid}", user="")
        self.process.wait(60)
        until("it is gone", lambda: self.cluster.process(self.pid, self.name) is None, seconds=30)

    def restart(self, source: str = "saved", user: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.sh(f"mosrun -J {self.name} --restart {source}", user=user)

    def restarting(self) -> subprocess.Popen[bytes]:
        """The same, by root, while it goes on."""
        script = f"cd {self.inside}; mosrun -J {self.name} --restart saved & echo $! > parent; wait $!"
        return self.cluster.home.popen(["sh", "-c", script], "", **NOTHING)

    def goes_on_from_a_checkpoint(self) -> None:
        """It is checkpointed, killed a little later, and ends with what an undisturbed run ends with."""
        self.checkpointed()
        time.sleep(0.2)
        self.kill()
        done = self.restart()
        assert done.returncode == 0, done.stderr
        self.is_the_same()

    def is_the_same(self) -> None:
        """Checks that every file is the same as in the native run."""
        assert self.native is not None
        self.native.wait(120)
        native, run = (
            {path.name: path.read_bytes() for path in (self.directory / name).iterdir() if path.is_file()} for name in ("native", "run")
        )
        assert native.keys() == run.keys()
        for name in native:
            assert native[name] == run[name], f"{name} differs: {native[name][-200:]!r}, {run[name][-200:]!r}"

    def end(self) -> None:
        for process in (self.process, self.native):
            if process is not None and process.poll() is None:
                kill_session(process.pid)
                process.wait(10)
        for one in self.cluster.processes(self.name):
            self.sh(f"kill -9 {one['pid']}", user="")
        shutil.rmtree(self.directory, ignore_errors=True)


Maker = Callable[..., Work]


@pytest.fixture
def work(cluster: Cluster) -> Iterator[Maker]:
    """Makes works; they and what they have left are ended."""
    made: list[Work] = []

    def make(command: str, **options: object) -> Work:
        made.append(Work(cluster, command, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.end()
    assert stopped_copies(cluster) == []
    assert not list((cluster.home.root / "run/farhome/images").glob("checkpoint-*"))


def stopped_copies(cluster: Cluster) -> list[str]:
    """Processes of n1 that are stopped: copies that were forgotten."""
    found = []
    for stat in Path(cluster.home.root, "proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if text.rpartition(")")[2].split()[0] in "Tt":
            found.append(text)
    return found


COUNTER = "../counter lines {} 10 4 > out"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "user"])
def test_a_counter_is_checkpointed_and_killed_and_ends_as_it_would_have(work: Maker, user: str) -> None:
    counter = work(COUNTER.format(300), user=user)
    counter.start()
    counter.grows()
    counter.checkpointed()
    saved = counter.directory / "saved"
    assert oct(saved.stat().st_mode & 0o777) == "0o700"
    assert {oct(path.stat().st_mode & 0o777) for path in saved.iterdir()} == {"0o600"}
    counter.grows()
    counter.kill()
    lines = (counter.directory / "run/lines").read_bytes()
    done = counter.restart()
    assert done.returncode == 0, done.stderr
    assert f"mosrun: {counter.inside}/run/lines is cut back from {len(lines)} to " in done.stderr
    assert lines.endswith((saved / "cut/lines").read_bytes())
    counter.is_the_same()


@pytest.mark.timeout(400)
def test_a_counter_whose_node_dies_ends_as_it_would_have(work: Maker) -> None:
    cluster = Cluster(2, configuration="link_timeout = 3\n")
    try:
        counter = Work(cluster, COUNTER.format(900), user=USER)
        counter.start()
        counter.grows()
        assert cluster.migrate(counter.pid, "n1", "n2").done
        counter.grows()
        counter.checkpointed()
        assert cluster.where(cluster.processes(counter.name)[0]) == "n2", "it has gone back"
        counter.grows()
        cluster.lab.kill("n2")
        assert counter.process is not None
        counter.process.wait(60)
        done = counter.restart()
        assert done.returncode == 0, done.stderr
        counter.is_the_same()
        assert stopped_copies(cluster) == []
    finally:
        cluster.down()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_four_threads(work: Maker) -> None:
    threads = work("../threads 60 > out")
    threads.start()
    until("it works", (threads.directory / "run/out").exists, seconds=30)
    time.sleep(0.5)
    threads.goes_on_from_a_checkpoint()
    tids = json.loads((threads.directory / "saved/farhome.json").read_text())["tids"]
    assert len(tids) == 4


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_python_with_50_mb(work: Maker) -> None:
    python = work("/usr/bin/python3 program.py 6000 > out", files={"program.py": PYTHON.encode()}, user=USER)
    python.start()
    python.grows()
    python.goes_on_from_a_checkpoint()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_gzip_from_a_file_to_a_file(work: Maker) -> None:
    gzip = work("gzip -9 -c < numbers > out", files={"numbers": b"".join(b"%d\n" % number for number in range(4_000_000))})
    gzip.start()
    gzip.grows("out", 1)
    gzip.goes_on_from_a_checkpoint()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_sqlite(work: Maker) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("no sqlite3")
    query = b"with recursive c(x) as (select 1 union all select x+1 from c where x < 60000) select sum(x*%d), max(x) from c;\n"
    queries = b"".join(query % number for number in range(300))
    script = b"create table t(a, b); insert into t values (1, 2);\n" + queries + b"select * from t;\n"
    sqlite = work("sqlite3 :memory: < script > out", files={"script": script}, user=USER)
    sqlite.start()
    time.sleep(0.5)
    sqlite.goes_on_from_a_checkpoint()


@pytest.mark.timeout(300)
def test_a_changed_file_is_refused_by_name(work: Maker) -> None:
    script = (
        "import time\nsource = open('input')\nlog = open('lines', 'r+')\n"
        "while True:\n    log.seek(0, 2), log.write('x' * 50), log.flush(), time.sleep(.02)\n"
    )
    python = work("/usr/bin/python3 program.py > out", files={"program.py": script.encode(), "input": b"abc", "lines": b"begin"}, user=USER)
    python.start()
    python.grows()
    python.checkpointed()
    running = python.restart()
    assert running.returncode == 75
    assert f"its process id {python.pid} is taken by python3" in running.stderr
    python.kill()
    foreign = python.restart(user=OTHER)
    assert foreign.returncode == 75
    assert "cannot be read" in foreign.stderr or "another user" in foreign.stderr
    for change, words in (
        ("echo more >> run/input", "run/input has changed"),
        ("cp run/input x && mv x run/input", "run/input is another file than it was"),
        ("rm run/input", "run/input cannot be opened: No such file or directory"),
        ("printf BEGIN | dd of=run/lines conv=notrunc status=none", "run/lines has changed where it had been written already"),
        ("truncate -s 3 run/lines", "run/lines is shorter than it was"),
    ):
        assert python.sh(f"cp -a run kept; {change}").returncode == 0
        before = {path.name: path.read_bytes() for path in (python.directory / "run").iterdir()}
        done = python.restart()
        assert done.returncode == 75, done.stderr
        assert words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
        assert before == {path.name: path.read_bytes() for path in (python.directory / "run").iterdir()}
        assert python.cluster.processes(python.name) == []
        # The very files come back, not copies.
        python.sh("rm -rf kept")
        if "input" in change:
            return_input(python)
    assert not (python.directory / "saved/cut").exists()


def return_input(work: Work) -> None:
    """Restores `input`. Its inode number differs from the one in the checkpoint, so the record is changed to the new one."""
    path = work.directory / "saved/farhome.json"
    record = json.loads(path.read_text())
    (work.directory / "run/input").write_bytes(b"abc")
    status = (work.directory / "run/input").stat()
    for file in record["open_files"]:
        if file["file"]["path"].endswith("/input"):
            file["file"] |= {"inode": status.st_ino, "size": status.st_size, "mtime": status.st_mtime_ns}
    path.write_text(json.dumps(record))


@pytest.mark.timeout(300)
def test_forged_checkpoints_gain_no_access(work: Maker) -> None:
    counter = work(COUNTER.format(100000), user=USER)
    counter.start()
    counter.grows()
    counter.checkpointed()
    counter.kill()
    record = json.loads((counter.directory / "saved/farhome.json").read_text())
    setuid = Path("/usr/bin/passwd").stat()
    passwd = {"path": "/usr/bin/passwd", "inode": setuid.st_ino, "size": setuid.st_size, "mtime": setuid.st_mtime_ns}
    pages = os.path.getsize(counter.directory / "saved/pages-1.img")

    def changed(**fields: object) -> Callable[[Path], object]:
        return lambda saved: (saved / "farhome.json").write_text(json.dumps({**record, **fields}))

    def linked(saved: Path) -> None:
        (saved / "pages-1.img").unlink()
        (saved / "pages-1.img").symlink_to("/etc/shadow")

    attacks: dict[str, Callable[[Path], object]] = {
        "another user's process": changed(uids=[0, 0, 0]),
        "group 0, which is not the user's": changed(gids=[0, 0, 0]),
        "rights of its own": changed(program="/usr/bin/passwd", mapped=[*record["mapped"], passwd]),
        "others can write there": lambda saved: saved.chmod(0o777),
        "is no JSON": lambda saved: (saved / "farhome.json").write_text("{" * 100000),
        "another version": changed(version=99),
        "tids makes no sense": changed(tids=[True]),
        "those of another process": changed(pid=record["pid"] + 1, tids=[record["pid"] + 1]),
        "pages-1.img cannot be read": linked,
        "memory is not whole": lambda saved: os.truncate(saved / "pages-1.img", pages - 4096),
        "is no image of a process": lambda saved: (saved / f"core-{record['pid']}.img").write_bytes(b"x" * 1000),
        "open files make no sense": changed(open_files=[{**record["open_files"][0], "kind": "magic"}]),
        "/etc/shadow cannot be opened": changed(
            open_files=[{**record["open_files"][0], "kind": "file", "file": {**passwd, "path": "/etc/shadow"}}]
        ),
        "other capabilities": changed(capabilities=[(1 << 40) - 1] * 5),
        "another kernel": changed(kernel="[vdso]:4096," + "0" * 64),
    }
    for words, attack in attacks.items():
        counter.sh("rm -rf forged; cp -a saved forged", user=USER)
        attack(counter.directory / "forged")
        counter.sh("chown -hR farhome-a forged", user="")
        done = counter.restart("forged")
        assert done.returncode == 75, (words, done.stderr)
        assert words in done.stderr and len(done.stderr.splitlines()) == 1, (words, done.stderr)
        assert counter.cluster.processes(counter.name) == [], words
    log = (counter.cluster.home.root / "run/farhome/mosd.log").read_text()
    assert "Traceback" not in log


@pytest.mark.timeout(300)
def test_a_user_owned_checkpoint_that_root_restarts_is_the_users_process(work: Maker) -> None:
    counter = work(COUNTER.format(400), user=USER)
    counter.start()
    counter.grows()
    counter.checkpointed()
    counter.kill()
    restarted = counter.restarting()
    shown = until("it is there", lambda: next(iter(counter.cluster.processes(counter.name)), None), seconds=60)
    assert (shown["pid"], shown["user"]) == (counter.pid, USER)
    status = (counter.cluster.home.root / f"proc/{counter.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert restarted.wait(120) == 0
    counter.is_the_same()


@pytest.mark.timeout(300)
def test_mosrun_stops_and_goes_on_with_its_child_and_ends_as_it_does(work: Maker) -> None:
    counter = work("../counter lines 100000 10 1")
    counter.start()
    counter.grows()
    counter.checkpointed()
    counter.kill()
    restarted = counter.restarting()
    until("it is there", lambda: counter.cluster.processes(counter.name), seconds=60)
    parent = int((counter.directory / "parent").read_text())

    def state(pid: int) -> str:
        return (counter.cluster.home.root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    counter.grows()
    counter.sh(f"kill -STOP {counter.pid}")
    until("both are stopped", lambda: state(counter.pid) == "T" and state(parent) == "T")
    counter.sh(f"kill -CONT {parent}")
    counter.grows()
    assert counter.cluster.migrate(counter.pid, "n1", "n2").done, "it moves as any other does"
    counter.grows()
    counter.sh(f"kill -TERM {parent}")
    assert restarted.wait(60) == 143


@pytest.mark.timeout(300)
def test_a_checkpoint_that_fails_leaves_the_one_before(work: Maker) -> None:
    counter = work("../counter lines 100000 10 4")
    counter.start()
    counter.grows()
    small = counter.inside / "small"
    try:
        assert counter.sh(f"mkdir small && mount -t tmpfs -o size=6m none {small}").returncode == 0
        counter.checkpointed("small/saved")
        before = counter.sh("cd small && find . -type f | sort | xargs sha256sum").stdout
        full = counter.checkpoint("small/saved")
        assert full.returncode == 1
        assert "cannot be written: No space left on device" in full.stderr
        assert before == counter.sh("cd small && find . -type f | sort | xargs sha256sum").stdout
        counter.grows()
        for pause in (0.3, 0.6, 0.9):
            counter.sh(
                f"migrate {counter.pid} checkpoint small/saved & sleep {pause};"
                " kill -9 $(pgrep -f 'checkpoint[.]take') 2>/dev/null; wait; true"
            )
            assert before == counter.sh("cd small/saved && find ../saved -type f | sort | xargs sha256sum").stdout.replace("../", "./")
            counter.grows()
        until("no copy is left", lambda: stopped_copies(counter.cluster) == [])
        counter.sh("rm -rf run/there && mkdir run/there && touch run/there/file")
        kept = counter.checkpoint("run/there")
        assert (kept.returncode, "is there already, and is no checkpoint" in kept.stderr) == (1, True)
        linked = counter.sh(f"ln -s small/saved link && migrate {counter.pid} checkpoint link")
        assert (linked.returncode, "is there already, and is no checkpoint" in linked.stderr) == (1, True)
        counter.kill()
        waits = "for i in $(seq 300); do grep -q 'is cut back' said && break; sleep 0.1; done"
        done = counter.sh(f"true; mosrun --restart small/saved 2> said & {waits}; cat said; kill -9 $!", timeout=60)
        assert "is cut back" in done.stdout, done.stdout
        counter.sh(f"kill -9 {counter.pid}")
    finally:
        counter.sh(f"umount -l {small}")
    shutil.rmtree(counter.cluster.home.root / "run/farhome/images" / f"checkpoint-{counter.pid}", ignore_errors=True)


@pytest.mark.timeout(300)
def test_checkpoints_by_the_clock(work: Maker) -> None:
    counter = work(COUNTER.format(1500), mosrun="mosrun -L -A 0.03", user=USER)
    counter.start()
    directory = counter.directory / f"run/ckpt.{counter.pid}"

    def at() -> float:
        shown = counter.cluster.process(counter.pid, counter.name)
        assert shown is not None
        assert shown["checkpoint"]["directory"] == f"{counter.inside}/run/ckpt.{counter.pid}"
        return float(shown["checkpoint"]["at"])

    first = until("the first checkpoint", at, seconds=60)
    until("the next", lambda: at() > first, seconds=60)
    assert counter.cluster.migrate(counter.pid, "n1", "n2").done
    moved = time.time()
    until("the next but one, away", lambda: at() > moved, seconds=60)
    until("it has gone back", lambda: counter.cluster.where(counter.cluster.processes(counter.name)[0]) == "n2", seconds=60)
    counter.kill()
    done = counter.restart(f"run/{directory.name}")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(directory)
    counter.is_the_same()


@pytest.mark.timeout(300)
def test_the_reason_for_missing_checkpoints_is_shown(work: Maker) -> None:
    counter = work("../counter lines 100000 10 1", mosrun="mosrun -L -A 0.02 -C /proc/saved")
    counter.start()
    shown = until(
        "it is shown", lambda: next((one for one in counter.cluster.processes(counter.name) if one["checkpoint"]["why"]), None), seconds=60
    )
    assert "/proc/saved cannot be written" in shown["checkpoint"]["why"]
    assert "no checkpoint: " in counter.cluster.home.run("mosps").stdout
    counter.grows()
    wrong = counter.sh("mosrun -A never true")
    assert (wrong.returncode, "number of minutes" in wrong.stderr) == (64, True)
