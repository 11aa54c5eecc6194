"""Files that a program maps while it is away. What becomes of each mapping at every step: the scenarios objects_mappings.c."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.outcome import PATH, kill_session
from tests.moves.workloads import USER

pytestmark = pytest.mark.timeout(180)

NUMBERS = itertools.count(1)
LISTENS = "import sys\nprint('ready', flush=True)\nfor line in iter(sys.stdin.readline, ''):\n    print(eval(line), flush=True)\n"
OPENED = "__import__('mmap').mmap(__import__('os').open({path!r}, {flags}), 0, {kind})"
PRIVATE, SHARED = "flags=2, prot=1", "flags=1, prot=1"


class Listener:
    """A Python under mosrun on the home node, asked for the values of expressions."""

    def __init__(self, cluster: Cluster, user: str = "") -> None:
        self.cluster = cluster
        self.job = f"listener-{os.getpid()}-{next(NUMBERS)}"
        argv = ["env", "-i", f"PATH={PATH}", "setsid", "--wait", "mosrun", "-L", "-J", self.job, "--", "python3", "-c", LISTENS]
        self.process = cluster.home.popen(argv, user, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._line() == "ready"
        self.pid = int(until("it is registered", lambda: next(iter(cluster.processes(self.job)), None))["pid"])

    def _line(self) -> str:
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(b"\n"):
            assert select.select([self.process.stdout], [], [], 30)[0], f"it says nothing more than {text!r}"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"it has ended, after {text!r}"
            text += more
        return text.decode().strip()

    def ask(self, expression: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(expression.encode() + b"\n")
        self.process.stdin.flush()
        return self._line()

    def digest(self, path: str, kind: str, flags: int = os.O_RDONLY) -> str:
        """SHA-256 of the file as it is mapped."""
        return self.ask(f"__import__('hashlib').sha256({OPENED.format(path=path, flags=flags, kind=kind)}).hexdigest()")

    def moved(self, target: str) -> None:
        shown = self.cluster.process(self.pid, self.job)
        assert shown is not None
        move = self.cluster.migrate(self.pid, self.cluster.where(shown), target)
        assert move.done, str(move)

    def went_home_for(self) -> set[str]:
        """Why it was taken home, when it is there."""
        until("it is at home", lambda: (p := self.shown()) and p["where"] in ("home", None, ""))
        return went_home_for(self.cluster, self.job)

    def shown(self) -> dict[str, object] | None:
        return self.cluster.process(self.pid, self.job)

    def stays_at(self, node: str, moves: int) -> None:
        """It is there, and has been moved as often as it was asked to."""
        shown = self.shown()
        assert shown is not None
        assert (shown["where"], shown["moves"]) == (node, moves), shown

    def maps(self) -> str:
        """Returns the mappings that home's kernel shows."""
        return (self.cluster.home.root / "proc" / str(self.pid) / "maps").read_text()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            kill_session(self.process.pid)
            self.process.wait(10)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def went_home_for(cluster: Cluster, job: str) -> set[str]:
    """Why a process of the job was taken home."""
    rows = json.loads(cluster.home.run("mosps", "-v", "--json", "-J", job).stdout)
    return {str(count["reason"]) for row in rows for count in row["taken_home"]}


@pytest.fixture
def directory(cluster: Cluster) -> Iterator[Path]:
    """A fresh directory of the home node."""
    made = Path(tempfile.mkdtemp(prefix="mapped-", dir=cluster.home.root / "tmp"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER])
def test_modules_and_libraries_are_loaded_away(cluster: Cluster, user: str) -> None:
    with Listener(cluster, user) as program:
        program.moved("n2")
        assert program.ask("str(__import__('decimal').Decimal(2).sqrt())").startswith("1.41421356")
        assert program.ask("__import__('sqlite3').connect(':memory:').execute('select 6*7').fetchone()") == "(42,)"
        assert program.ask("__import__('ctypes').CDLL('libm.so.6').abs(-5)") == "5"
        program.stays_at("n2", 1)
        program.moved("n3")
        assert program.ask("__import__('lzma').decompress(__import__('lzma').compress(b'away'))") == "b'away'"
        assert program.ask("str(__import__('decimal').Decimal(3).sqrt())").startswith("1.7320508")
        program.stays_at("n3", 2)
        program.moved(HOME)
        assert program.ask("str(__import__('decimal').Decimal(5).sqrt())").startswith("2.2360679")
        assert program.ask("__import__('sqlite3').connect(':memory:').execute('select 7*7').fetchone()") == "(49,)"
        for library in ("_decimal", "_sqlite3", "_lzma", "libsqlite3"):
            assert len(set(re.findall(rf"\S*/{library}\S*\.so\S*", program.maps()))) == 1, program.maps()
        assert not re.search(r"^4b0", program.maps(), re.MULTILINE), "what the stub had aside is gone"


def test_a_file_that_only_home_has_comes_once_and_is_kept_when_it_goes(cluster: Cluster, directory: Path) -> None:
    content = random.Random(7).randbytes(3_500_007)
    digest = hashlib.sha256(content).hexdigest()
    (directory / "data").write_bytes(content)
    inside = f"/tmp/{directory.name}/data"
    theirs = cluster.place("n2").root / "tmp" / directory.name
    theirs.mkdir()
    (theirs / "data").write_bytes(bytes(len(content)))
    with Listener(cluster) as program:
        program.moved("n2")
        assert program.ask(f"globals().update(m={OPENED.format(path=inside, flags=0, kind=PRIVATE)})") == "None"
        assert program.digest(inside, PRIVATE) == digest
        cache = cluster.place("n2").root / "var/lib/farhome/cache" / digest
        assert cache.read_bytes() == content
        assert not [path for path in cache.parent.iterdir() if len(path.name) != 64], "nothing half-way is left"
        (directory / "data").unlink()
        other = content[::-1]
        (directory / "data").write_bytes(other)
        assert program.digest(inside, PRIVATE) == hashlib.sha256(other).hexdigest()
        program.stays_at("n2", 1)
        for target in ("n3", HOME, "n2"):
            program.moved(target)
            assert program.ask("__import__('hashlib').sha256(m).hexdigest()") == digest
            assert program.digest(inside, PRIVATE) == hashlib.sha256(other).hexdigest()
    shutil.rmtree(theirs)


CHILD = """
def child(inside):
    import os, time
    number = os.fork()
    if number:
        return number
    while not os.path.exists(inside + "/stop"):
        with mmap.mmap(os.open(inside + "/other", os.O_RDONLY), 0, flags=2, prot=1) as other, open(inside + "/lines", "a") as lines:
            print(hashlib.sha256(m).hexdigest(), hashlib.sha256(other).hexdigest(), file=lines)
        time.sleep(0.05)
    os._exit(0)
"""


def test_a_child_has_the_files_that_its_parent_has_mapped_away(cluster: Cluster, directory: Path) -> None:
    for name in ("data", "other"):
        (directory / name).write_bytes(name.encode() * 5000)
    inside = f"/tmp/{directory.name}"
    digests = [hashlib.sha256(name * 5000).hexdigest() for name in (b"data", b"other")]
    with Listener(cluster) as program:
        program.moved("n2")
        mapped = OPENED.format(path=f"{inside}/data", flags=0, kind=PRIVATE)
        assert program.ask(f"globals().update(m={mapped}, mmap=__import__('mmap'), hashlib=__import__('hashlib'))") == "None"
        assert program.ask(f"exec({CHILD!r}, globals())") == "None"
        child = int(program.ask(f"child({inside!r})"))
        (directory / "data").unlink()
        lines = directory / "lines"
        where = "n2"
        for target in ("n2", "n3", HOME, "n2"):
            if target != where:
                move = cluster.migrate(child, where, target)
                assert move.done, str(move)
                where = target
            before = lines.read_text().count("\n") if lines.exists() else 0
            until("the child goes on", lambda before=before: lines.exists() and lines.read_text().count("\n") > before + 1)  # type: ignore[misc]
        program.moved(HOME)
        assert program.ask("hashlib.sha256(m).hexdigest()") == digests[0]
        (directory / "stop").touch()
        assert program.ask(f"__import__('os').waitpid({child}, 0)") == f"({child}, 0)"
        assert set(lines.read_text().splitlines()) == {" ".join(digests)}


def test_mappings_that_only_home_can_make_are_made_at_home(cluster: Cluster, directory: Path) -> None:
    (directory / "data").write_bytes(b"written" * 1000)
    inside = f"/tmp/{directory.name}/data"
    digest = hashlib.sha256(b"written" * 1000).hexdigest()
    with Listener(cluster) as program:
        for flags, kind, reason in (
            (os.O_RDWR, PRIVATE, "it maps a file that is open for writing"),
            (os.O_RDONLY, SHARED, "it maps a file shared that it may write"),
            (os.O_RDWR, "", "mmap"),
        ):
            program.moved("n2")
            assert program.digest(inside, kind, flags) == digest
            assert reason in program.went_home_for()


def test_a_part_of_the_system_is_mapped_shared_away(cluster: Cluster) -> None:
    library = "/usr/lib/locale/C.utf8/LC_CTYPE"
    digest = hashlib.sha256(Path(library).read_bytes()).hexdigest()
    with Listener(cluster) as program:
        program.moved("n2")
        assert program.digest(library, SHARED) == digest
        program.stays_at("n2", 1)
        program.moved("n3")
        assert program.digest(library, SHARED) == digest


def test_threads_map_files_while_signals_come_and_it_moves(cluster: Cluster) -> None:
    with Running(cluster, "mapper", "") as mapper:
        mapper.works()
        for target in ("n2", "n3", "n2", HOME, "n3", "n2"):
            if mapper.where() != target:
                mapper.move(target)
            mapper.works()
        shown = mapper.shown()
        assert shown is not None and shown["moves"] >= 4, shown
        assert went_home_for(cluster, mapper.job) <= {"asked"}
        (mapper.directory / "stop").touch()
        assert mapper.end() == "signals came\nstatus 0\n"


def test_a_broken_link_delays_mappings_and_no_more(cluster: Cluster) -> None:
    with Running(cluster, "mapper", "") as mapper:
        mapper.works()
        mapper.moved("n2")
        mapper.works()
        cluster.lab.cut("n1", "n2", 4)
        mapper.works(30)
        mapper.works(30)
        assert mapper.where() == "n2"
        (mapper.directory / "stop").touch()
        assert mapper.end() == "signals came\nstatus 0\n"
