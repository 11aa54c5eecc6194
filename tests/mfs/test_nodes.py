"""Nodes of a lab see one another's files as files of one machine, whichever node writes and whichever ends."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mfs import trees
from tests.mfs.exports import running
from tests.mfs.nodes import TIMEOUT, Pair, until
from tests.mfs.threads import stopped, watcher

HOLD = r"""
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
for number, line in enumerate(sys.stdin):
    try:
        os.pwrite(file, line.encode(), 0)
        print(os.pread(file, 100, 0).decode(), end="")
    except OSError as error:
        print("error", error.errno)
"""
READ = r"""
import sys
for _ in sys.stdin:
    try:
        print(open(sys.argv[1]).read(), end="", flush=True)
    except OSError as error:
        print("error", error.errno, flush=True)
"""
ASK = "import os, sys\ntry: print(os.stat(sys.argv[1]).st_size)\nexcept OSError as error: print('error', error.errno)"
LINKS = r"""
import os, sys
top = sys.argv[1]
def opened(name):
    with open(f"{top}/{name}", "w") as file:
        file.write("content")
    file = os.open(f"{top}/{name}", os.O_RDWR)
    assert os.fstat(file).st_nlink == 1
    return file
os.mkdir(top)
for number in range(20):
    one, two, three = opened("one"), opened("two"), opened("three")
    os.unlink(f"{top}/one")
    os.rename(f"{top}/two", f"{top}/three")
    links = [os.fstat(file).st_nlink for file in (one, two, three)]
    assert links == [0, 1, 0], (number, links)
    os.link(f"{top}/three", f"{top}/one")
    assert os.fstat(two).st_nlink == 2
    os.unlink(f"{top}/one")
    assert os.fstat(two).st_nlink == 1
    for file in (one, two, three):
        os.close(file)
"""
APPEND = "import sys\nfor n in range(100): open(sys.argv[1], 'a').write(f'{sys.argv[2]} {n}\\n')"
LOCK = r"""
import fcntl, os, sys
how = {"flock": fcntl.flock, "fcntl": fcntl.lockf}[sys.argv[2]]
seen = []
for _ in range(60):
    with open(sys.argv[1], "r+") as file:
        how(file, fcntl.LOCK_EX)
        number = int(file.read() or 0)
        seen.append(number)
        file.seek(0); file.write(str(number + 1)); file.flush()
print(*seen)
"""

READ_ON = r"""
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print("begun")
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, 0)
    while os.read(file, 1 << 20):
        pass
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.lab.down()


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    yield shared
    for node in shared.nodes:
        node.run("rm -rf /tmp/*")


def test_a_tree_goes_there_and_back_and_is_the_same(pair: Pair) -> None:
    pair.python(1, trees.MAKE, "/tmp/tree")
    listing = pair.python(1, trees.LIST, "/tmp/tree")
    assert len(listing.splitlines()) > 45
    pair.sh(1, "cp -a /tmp/tree /mfs/n2/tmp/tree")
    assert pair.python(2, trees.LIST, "/tmp/tree") == listing
    assert pair.python(1, trees.LIST, "/mfs/n2/tmp/tree") == listing
    pair.sh(1, "mkdir /tmp/back; tar -C /mfs/n2/tmp --xattrs --acls --sparse -cf - tree | tar -C /tmp/back --xattrs --acls -xpf -")
    pair.sh(2, "cp -a /tmp/tree /mfs/n1/tmp/pushed; rm -rf /mfs/n1/tmp/tree")
    assert pair.python(1, trees.LIST, "/tmp/pushed") == listing
    assert pair[1].run("ls /tmp/tree").returncode


def test_a_users_rights_there_are_those_of_the_local_user(pair: Pair) -> None:
    pair.sh(2, "install -m 600 /dev/null /tmp/roots; mkdir -m 1777 /tmp/all; mkdir -m 750 /tmp/closed; echo x >/tmp/closed/x")
    for command in ("cat /mfs/n2/tmp/roots", "cat /mfs/n2/etc/shadow", "echo x >/mfs/n2/etc/passwd", "rm -f /mfs/n2/tmp/roots",
                    "cat /mfs/n2/tmp/closed/x", "ls /mfs/n2/root"):  # fmt: skip
        done = pair[1].run(command, user="farhome-a", text=True)
        assert "ermission denied" in done.stderr or "not permitted" in done.stderr, command
    pair.sh(1, "cd /mfs/n2/tmp/all && echo mine >a && chmod 600 a && mkdir d && ln a d/b", user="farhome-a")
    assert pair.sh(2, "stat -c '%U %a %h' /tmp/all/a") == "farhome-a 600 2\n"
    assert pair[1].run("cat /mfs/n2/tmp/all/a", user="farhome-b").returncode
    assert pair[1].run("rm -f /mfs/n2/tmp/all/a", user="farhome-b").returncode
    assert pair.sh(1, "cat /mfs/n2/tmp/all/a", user="root") == "mine\n"


def test_ways_that_lead_here_and_none_that_leads_round(pair: Pair) -> None:
    pair.sh(1, "echo own >/tmp/own")
    for name in ("n1", "here", "home"):
        assert pair.sh(1, f"cat /mfs/{name}/tmp/own") == "own\n"
    assert pair.sh(2, "ls /mfs/n1 | grep -cx mfs || true") == "0\n"
    assert pair.sh(1, "ls /mfs/here/mfs /mfs/n2/proc /mfs/n2/sys /mfs/here/proc").split() == [
        "/mfs/here/mfs:", "/mfs/here/proc:", "/mfs/n2/proc:", "/mfs/n2/sys:",
    ]  # fmt: skip
    assert pair[1].run("cat /mfs/n2/dev/zero").returncode


def test_changes_are_seen_at_once_on_both_sides(pair: Pair) -> None:
    holder = pair.start(1, HOLD, "/mfs/n2/tmp/file")
    assert holder.stdin is not None
    assert holder.stdout is not None
    for number in range(8):
        holder.stdin.write(f"away {number:3}\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == f"away {number:3}\n"
        assert (pair[2].root / "tmp/file").read_text() == f"away {number:3}\n"
        (pair[2].root / "tmp/file").write_text(f"home {number:3} and more\n")
        assert pair.sh(1, "cat /mfs/n2/tmp/file; stat -c %s /mfs/n2/tmp/file") == f"home {number:3} and more\n18\n"
        (pair[2].root / "tmp/file").write_text("")
    holder.communicate(timeout=10)


@pytest.mark.parametrize("kind", ["flock", "fcntl"])
def test_locks_exclude_across_nodes(pair: Pair, kind: str) -> None:
    (pair[2].root / "tmp/count").write_text("")
    both = [pair.start(1, LOCK, "/mfs/n2/tmp/count", kind), pair.start(2, LOCK, "/tmp/count", kind)]
    seen = [[int(number) for number in one.communicate(timeout=30)[0].split()] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sorted(seen[0] + seen[1]) == list(range(120)), seen
    assert (pair[2].root / "tmp/count").read_text() == "120"


@pytest.mark.soak
def test_appends_of_both_nodes_are_all_there(pair: Pair) -> None:
    both = [pair.start(1, APPEND, "/mfs/n2/tmp/log", "away"), pair.start(2, APPEND, "/tmp/log", "home")]
    assert [one.wait(30) for one in both] == [0, 0]
    lines = (pair[2].root / "tmp/log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{who} {number}" for who in ("away", "home") for number in range(100))


def test_a_removed_file_remains_for_those_who_have_it_open(pair: Pair) -> None:
    holder = pair.start(1, HOLD, "/mfs/n2/tmp/gone")
    assert holder.stdin is not None
    assert holder.stdout is not None
    until((pair[2].root / "tmp/gone").exists, "the file")
    (pair[2].root / "tmp/gone").unlink()
    holder.stdin.write("still\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "still\n"
    # As soon as the notification has come (C3): on a busy machine later than it takes to ask.
    until(lambda: pair.python(1, ASK, "/mfs/n2/tmp/gone") == f"error {errno.ENOENT}\n", "the name to be gone")
    holder.communicate(timeout=10)


def test_a_renamed_name_leads_to_the_new_file_before_its_notification(pair: Pair) -> None:
    file = pair[2].root / "tmp/replaced"
    file.write_text("old\n")
    reader = pair.start(1, READ, "/mfs/n2/tmp/replaced")
    assert reader.stdin is not None
    assert reader.stdout is not None

    def read() -> str:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
        return reader.stdout.readline()

    def remembers(text: str) -> bool:
        time.sleep(0.1)  # what has been quiet for 50 ms is
        return read() == read() == text

    assert remembers("old\n")
    with stopped(watcher(running(pair[2], "mfs-server")[0])):
        (pair[2].root / "tmp/new").write_text("new\n")
        (pair[2].root / "tmp/new").rename(file)
        assert read() == "new\n"
        assert remembers("new\n")
        file.unlink()
        assert read() == f"error {errno.ENOENT}\n"
    reader.communicate(timeout=10)


def test_the_link_count_of_an_open_file_is_right_after_unlinks(pair: Pair) -> None:
    assert pair.python(1, LINKS, "/mfs/n2/tmp/links") == ""


def test_a_server_that_is_killed_is_hardly_noticed(pair: Pair) -> None:
    holder = pair.start(1, HOLD, "/mfs/n2/tmp/kept")
    assert holder.stdin is not None
    assert holder.stdout is not None
    for number in range(2):
        holder.stdin.write(f"{number}\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == f"{number}\n"
        pair.kill(pair[2], "server")
    holder.stdin.write("last\n")
    assert holder.communicate(timeout=20)[0] == "last\n"
    assert (pair[2].root / "tmp/kept").read_text() == "last\n"


def test_a_client_that_is_killed_leaves_an_error_and_comes_back(pair: Pair) -> None:
    holder = pair.start(1, HOLD, "/mfs/n2/tmp/file")
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("one\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "one\n"
    pid = pair.kill(pair[1], "n2")
    holder.stdin.write("two\n")
    assert holder.communicate(timeout=10)[0].startswith("error ")
    until(lambda: pair.pids(pair[1]).get("n2", pid) != pid, "another client")
    pair.wait_mounted(pair[1])
    assert pair.python(1, ASK, "/mfs/n2/tmp/file") == "4\n"
    assert pair.mounts(pair[1]) == ["/mfs/n2"]


def test_without_a_link_calls_fail_in_time_and_work_again_after(pair: Pair) -> None:
    holder = pair.start(1, HOLD, "/mfs/n2/tmp/file")
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("one\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "one\n"
    pair.lab.cut("n1", "n2")
    try:
        began = time.monotonic()
        holder.stdin.write("two\n")
        holder.stdin.flush()
        assert holder.stdout.readline() in {f"error {errno.ENOTCONN}\n", f"error {errno.EIO}\n"}
        assert time.monotonic() - began < 5 * TIMEOUT + 5
        assert pair.python(1, ASK, "/mfs/n2/tmp/file") == f"error {errno.ENOTCONN}\n"
    finally:
        pair.lab.heal()
    until(lambda: pair.python(1, ASK, "/mfs/n2/tmp/file") == "4\n", "the files are there again")
    holder.stdin.write("three\n")
    assert holder.communicate(timeout=20)[0] == "three\n"


def test_the_kernel_reads_ahead_further_than_by_itself(pair: Pair) -> None:
    line = next(line for line in pair.sh(1, "cat /proc/self/mountinfo").splitlines() if line.split()[4] == "/mfs/n2")
    assert pair.sh(1, f"cat /sys/class/bdi/{line.split()[2]}/read_ahead_kb") == "2048\n"


@pytest.mark.soak
def test_a_short_cut_only_takes_time(pair: Pair) -> None:
    (pair[2].root / "tmp/file").write_text("12345")
    assert pair.python(1, ASK, "/mfs/n2/tmp/file") == "5\n"
    pair.lab.cut("n1", "n2", TIMEOUT / 4)
    assert pair.python(1, ASK, "/mfs/n2/tmp/file") == "5\n"


def test_status_shows_the_mounts(pair: Pair) -> None:
    pair.sh(1, "echo 12345 >/mfs/n2/tmp/file; cat /mfs/n2/tmp/file")
    (mount,) = pair[1].ask_mosd("mfs")["mounts"]
    assert (mount["node"], mount["path"], mount["connected"]) == ("n2", "/mfs/n2", 1)
    served = [one for one in pair[2].ask_mosd("mfs")["served"] if one["connected"]]
    assert [one["peer"] for one in served] == ["n1"]
    assert served[0]["bytes_written"] >= 6
    shown = pair.sh(1, "mosctl mfs status")
    assert "/mfs/n2" in shown
    assert "connected" in shown


@pytest.mark.soak
def test_exports_that_change_are_all_that_is_left(pair: Pair) -> None:
    pair.sh(2, "mkdir -p /tmp/shown; echo shown >/tmp/shown/file; echo secret >/tmp/secret")
    holder = pair.start(1, HOLD, "/mfs/n2/tmp/secret")
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("secret\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "secret\n"
    configuration = (pair[2].root / "etc/farhome/node.toml").read_text()
    narrow = f'{configuration}\nexports = ["/tmp/shown"]\nread_only = ["/usr"]\n'
    try:
        (pair[2].root / "etc/farhome/node.toml").write_text(narrow)
        pair.sh(2, "mosctl reload")
        until(lambda: pair[1].run("ls /mfs/n2", text=True).stdout.split() == ["tmp", "usr"], "only what is exported")
        assert pair.sh(1, "ls /mfs/n2/tmp; cat /mfs/n2/tmp/shown/file") == "shown\nshown\n"
        assert pair.sh(2, "ls /mfs/here /mfs/n2/tmp").split() == ["/mfs/here:", "tmp", "usr", "/mfs/n2/tmp:", "shown"]
        for node, path in ((1, "/mfs/n2/usr/new"), (2, "/mfs/here/usr/new"), (1, "/mfs/n2/new")):
            assert "ead-only" in pair[node].run(f"touch {path}", text=True).stderr, path
        holder.stdin.write("more\n")
        assert holder.communicate(timeout=20)[0].startswith("error ")
        assert (pair[2].root / "tmp/secret").read_text() == "secret\n"
    finally:
        (pair[2].root / "etc/farhome/node.toml").write_text(configuration)
        pair.sh(2, "mosctl reload")
    until(lambda: pair[1].run("cat /mfs/n2/tmp/secret", text=True).stdout == "secret\n", "everything is there again")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL])
def test_without_mosd_nothing_is_mounted_and_no_process_hangs(pair: Pair, number: int) -> None:
    holder = pair.start(1, HOLD, "/mfs/n2/tmp/file", cwd="/mfs/n2/tmp")
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("one\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "one\n"
    pair[1].stop_mosd(number)
    until(lambda: not pair.mounts(pair[1]), "the mounts are gone")
    until(lambda: pair[1].run("pgrep -x 'mfs-(client|server)'").returncode == 1, "the programs have ended")
    holder.stdin.write("two\n")
    assert holder.communicate(timeout=10)[0].startswith("error ")
    pair[1].start_mosd()
    pair.wait_mounted(pair[1])
    assert pair.python(1, ASK, "/mfs/n2/tmp/file") == "4\n"


def are_held_up(programs: list[int]) -> bool:
    """Whether the kernel holds up a thread of one of them."""
    states = [task.read_text().partition("State:")[2].split()[0] for pid in programs for task in Path("/proc").glob(f"{pid}/task/*/status")]
    return "D" in states


def hold_up(programs: list[int], server: int) -> None:
    """Stops the server at a moment when pages are being read: they are taken away later, and are held by the read then."""
    for left in range(4, -1, -1):
        os.kill(server, signal.SIGSTOP)
        try:
            until(lambda: are_held_up(programs), "pages are taken away", 6.0)
            return
        except TimeoutError:
            if not left:
                raise
            os.kill(server, signal.SIGCONT)
            time.sleep(0.3)


@pytest.mark.parametrize("killed", ["mosd", pytest.param("client", marks=pytest.mark.soak)])
def test_no_reader_of_a_page_being_removed_hangs(killed: str) -> None:
    """The server sends nothing for a while: its pages are removed, and the remover waits for a page that is being read."""
    pair = Pair(timeout=30)
    try:
        pair.sh(2, "head -c 32M /dev/urandom >/tmp/large")
        reader = pair.start(1, READ_ON, "/mfs/n2/tmp/large")
        assert reader.stdout is not None
        assert reader.stdout.readline() == "begun\n"
        clients, (server,) = running(pair[1], "mfs-client"), running(pair[2], "mfs-server")
        hold_up(clients, server)
        if killed == "mosd":
            pair[1].stop_mosd(signal.SIGKILL)
        else:
            pair.kill(pair[1], "n2")
        assert reader.wait(20)
        until(lambda: not set(clients) & set(running(pair[1], "mfs-client")), "the program has ended")
    finally:
        pair.lab.down()
