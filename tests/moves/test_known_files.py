"""Files of the system that several processes of a program map: those after the first have them from the open, and map what home has."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.moves.cluster import HOME, Cluster, until
from tests.moves.test_mappings import LISTENS, OPENED, PRIVATE, Listener

pytestmark = pytest.mark.timeout(180)
ASIDE = re.compile(r"^5[0-9a-f]{11}-\S+ r-xp \S+ \S+ \S+ +(\S+)", re.MULTILINE)
"""A mapping by a loop of a stub; and the file."""


class Child:
    """A Python that a Listener, wherever it is, has executed, and asks."""

    def __init__(self, parent: Listener, name: str) -> None:
        self.parent, self.name = parent, name
        made = f"__import__('subprocess').Popen(['python3', '-c', {LISTENS!r}], stdin=-1, stdout=-1, text=True, bufsize=1)"
        self.pid = int(parent.ask(f"(globals().__setitem__({name!r}, {made}), {name}.stdout.readline(), {name}.pid)[2]"))

    def ask(self, expression: str) -> str:
        line = f"{expression}\n"
        return self.parent.ask(f"({self.name}.stdin.write({line!r}), {self.name}.stdin.flush(), {self.name}.stdout.readline().strip())[2]")

    def digest(self, path: str) -> str:
        """SHA-256 of the file as it is mapped."""
        return self.ask(f"__import__('hashlib').sha256({OPENED.format(path=path, flags=os.O_RDONLY, kind=PRIVATE)}).hexdigest()")

    def where(self) -> str:
        shown = until("it has lived long enough to be known", lambda: self.parent.cluster.process(self.pid, self.parent.job))
        return self.parent.cluster.where(shown)

    def moved(self, target: str) -> None:
        move = self.parent.cluster.migrate(self.pid, self.where(), target)
        assert move.done, str(move)

    def comes_home(self) -> None:
        """Has it go home, as it may do by itself for a file that home alone can map."""
        if self.where() != HOME:
            self.parent.cluster.migrate(self.pid, self.where(), HOME)
        until("it is at home", lambda: self.where() == HOME)

    def maps(self) -> str:
        """Returns the mappings that home's kernel shows."""
        return (self.parent.cluster.home.root / "proc" / str(self.pid) / "maps").read_text()

    def aside(self) -> set[str]:
        """Files that its stub's loop has mapped."""
        return set(ASIDE.findall(self.maps()))


@pytest.fixture
def parent(cluster: Cluster) -> Iterator[Listener]:
    with Listener(cluster) as program:
        program.moved("n2")
        yield program


USES = {
    "str(__import__('decimal').Decimal(2).sqrt())[:6]": "1.4142",
    "__import__('sqlite3').connect(':memory:').execute('select 6*7').fetchone()[0]": "42",
}
"""Expressions that load libraries, and what they are."""


def uses(program: Listener | Child) -> bool:
    return all(program.ask(expression) == value for expression, value in USES.items())


def test_the_second_program_has_its_libraries_from_the_open(parent: Listener) -> None:
    assert uses(parent)
    one, other = Child(parent, "one"), Child(parent, "other")
    for child in (one, other):
        assert child.where() == "n2"
        assert not [path for path in child.aside() if "_decimal" in path or "_sqlite3" in path]
        assert uses(child)
        assert [path for path in child.aside() if "_decimal" in path] and [path for path in child.aside() if "_sqlite3" in path], (
            child.maps()
        )
    one.moved("n3")
    assert uses(one)
    assert one.ask("__import__('lzma').decompress(__import__('lzma').compress(b'away'))") == "b'away'"
    for child in (one, other):
        child.moved(HOME)
        assert uses(child)
        assert not child.aside(), child.maps()
    one.moved("n2")
    assert uses(one) and uses(parent)


BEYOND = """
import ctypes, os
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_void_p
fd = os.open({path!r}, os.O_RDONLY)
at = mmap(None, ctypes.c_size_t({length}), 1, 2, fd, ctypes.c_long(0))
os.close(fd)
content = ctypes.string_at(at + 4096, 4).hex()
assert not ctypes.CDLL(None).munmap(ctypes.c_void_p(at), 4096 * {gone})
said = content + " " + hex(at)
"""
"""A mapping of a file, of which so many pages go again."""
LIBRARY = "/usr/lib/x86_64-linux-gnu/libc.so.6"


def test_a_mapping_beyond_the_end_of_a_known_file_comes_home_as_it_is(parent: Listener) -> None:
    """Covers mappings like the first one of each library, which reserves room beyond the file; and what is left of such a one."""
    size = os.stat(LIBRARY).st_size
    pages = -(-size // 4096)
    for name, gone in (("one", 3), ("other", 3), ("last", pages), ("beyond", pages + 2)):
        child = Child(parent, name)
        code = BEYOND.format(path=LIBRARY, length=(pages + 20) * 4096, gone=gone)
        content, at = child.ask(f"(lambda found: (exec({code!r}, found), found['said'])[1])({{}})").split()
        with open(LIBRARY, "rb") as source:
            source.seek(4096)
            assert content == source.read(4).hex()
        child.moved(HOME)
        span = f"{int(at, 16) + gone * 4096:x}-{int(at, 16) + (pages + 20) * 4096:x} r--p {gone * 4096:08x}"
        assert span in child.maps(), (span, child.maps())


def remembered(cluster: Cluster, node: str) -> dict[str, int]:
    """Returns what `mosctl mfs status` shows on the node about remembered names of home."""
    (row,) = json.loads(cluster.place(node).run("mosctl", "mfs", "status", "--json").stdout)["remembered"]
    assert row.pop("home") == HOME
    found: dict[str, int] = row
    return found


def test_the_node_shows_which_calls_its_guests_need_not_forward(cluster: Cluster, parent: Listener) -> None:
    assert uses(parent)
    before = remembered(cluster, "n2")
    assert (before["guests"], before["silent"]) == (1, 0)
    one = Child(parent, "one")
    assert uses(one)
    assert one.ask("[__import__('os').path.exists('/absent/file') for _ in range(50)].count(False)") == "50"
    after = remembered(cluster, "n2")
    assert after["guests"] == 2
    assert after["names"] > before["names"]
    assert after["from_names"] >= before["from_names"] + 48
    assert after["from_opens"] > before["from_opens"]
    assert after["mapped"] >= before["mapped"] + 2
    shown = cluster.place("n2").run("mosctl", "mfs", "status").stdout
    assert re.search(rf"^{HOME} +2 +\d+ +\d+ +\d+ +\d+$", shown, re.MULTILINE), shown


def test_guests_that_do_not_answer_are_counted_as_such(cluster: Cluster, parent: Listener) -> None:
    assert uses(parent)
    node = cluster.place("n2")
    (remote,) = (
        entry.name
        for entry in (node.root / "proc").iterdir()
        if entry.name.isdigit() and b"\0remote\0--home\0" in (entry / "cmdline").read_bytes()
    )
    assert node.run("kill", "-STOP", remote).returncode == 0
    try:
        assert remembered(cluster, "n2")["silent"] == 1
        assert "1 guests of n1 are not counted" in node.run("mosctl", "mfs", "status").stdout
    finally:
        assert node.run("kill", "-CONT", remote).returncode == 0
    assert uses(parent)


FORKS = (
    "(lambda o, d: (lambda r, w: (lambda pid: (o.write(w, str(d.Decimal(2).sqrt())[:6].encode()), o._exit(0)) if not pid"
    " else (o.read(r, 99), o.waitpid(pid, 0)[1]))(o.fork()))(*o.pipe()))(__import__('os'), __import__('decimal'))"
)
"""Starts a child that uses what its parent has loaded, and prints the result."""


def test_a_child_of_such_a_program_has_its_libraries_too(parent: Listener) -> None:
    assert uses(parent)
    one = Child(parent, "one")
    assert uses(one)
    for target in ("n3", HOME, "n2"):
        assert one.ask(FORKS) == "(b'1.4142', 0)"
        one.moved(target)
        assert one.ask(FORKS) == "(b'1.4142', 0)"
        assert uses(one)


@pytest.fixture
def system(cluster: Cluster) -> Iterator[Path]:
    """A file of home's system of which the test can change the content: as the test sees it."""
    assert not cluster.home.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/usr/local/share").returncode
    yield cluster.home.root / "usr/local/share/known"
    assert not cluster.home.run("umount", "-l", "/usr/local/share").returncode


INSIDE = "/usr/local/share/known"


def put(path: Path, number: int, how: str = "rename") -> str:
    """Gives the file that content: a new one in place of the old one, or the same. Returns its SHA-256."""
    content = f"content {number}\n".encode() * 9000
    written = path if how == "write" and path.exists() else path.with_suffix(".new")
    written.write_bytes(content)
    written.chmod(0o644)
    if written != path:
        written.rename(path)
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("how", ["rename", "write"])
def test_a_file_of_the_system_that_becomes_another_is_mapped_as_that(parent: Listener, system: Path, how: str) -> None:
    first = put(system, 1)
    assert parent.digest(INSIDE, PRIVATE) == first
    one = Child(parent, "one")
    assert one.digest(INSIDE) == first and one.digest(INSIDE) == first
    assert INSIDE in one.aside()
    second = put(system, 2, how)
    other = Child(parent, "other")
    assert other.digest(INSIDE) == second
    assert one.digest(INSIDE) == second
    third = put(system, 3, how)
    for child in (one, other, Child(parent, "third")):
        assert child.digest(INSIDE) == third
        child.comes_home()
        assert child.digest(INSIDE) == third


def test_a_process_that_has_mapped_the_former_file_at_home_maps_both(cluster: Cluster, system: Path) -> None:
    first = put(system, 1)
    with Listener(cluster) as parent:
        one = Child(parent, "one")
        assert one.digest(INSIDE) == first
        keeps = f"globals().__setitem__('kept', {OPENED.format(path=INSIDE, flags=os.O_RDONLY, kind=PRIVATE)})"
        assert one.ask(keeps) == "None"
        second = put(system, 2)
        assert parent.digest(INSIDE, PRIVATE) == second
        parent.moved("n2")
        other = Child(parent, "other")
        assert parent.digest(INSIDE, PRIVATE) == second
        assert other.digest(INSIDE) == second
        one.moved("n2")
        for _ in range(2):
            assert one.digest(INSIDE) == second
            assert one.ask("__import__('hashlib').sha256(kept).hexdigest()") == first
            one.comes_home()


def test_a_file_of_the_system_that_is_open_for_writing_is_mapped_at_home(parent: Listener, system: Path) -> None:
    content = put(system, 1)
    assert parent.digest(INSIDE, PRIVATE) == content
    one, other = Child(parent, "one"), Child(parent, "other")
    assert one.digest(INSIDE) == content
    assert one.where() == "n2"
    with system.open("ab"):
        assert other.where() == "n2"
        assert other.digest(INSIDE) == content
        # Its daemon hears where it is a moment after it runs there.
        until("it is at home", lambda: other.where() == HOME)
