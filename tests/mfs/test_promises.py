"""Promises about what a peer may remember, and its notification in time when that changes."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mfs import figures
from tests.mfs import caller
from tests.mfs.caller import INC_EPOCH, INVAL_INODE, Caller, Entry
from tests.mfs.nodes import until
from tests.mfs.served import Served

QUIET = 1000
"""Milliseconds without a change by others before a peer may remember: long enough for a busy machine to check that it does not."""
PATIENCE = 15
"""Seconds within which a local user goes on, whatever happens to the peers that remember."""


def remembered(peer: Caller, parent: int, name: str) -> Entry:
    """Returns the entry as soon as its name and attributes may be remembered: after a time without changes by others."""
    found: Entry = until(
        lambda: (entry := peer.lookup(parent, name)).name_valid and entry.attributes_valid and entry, f"a promise about {name}"
    )
    return found


def was_quiet(since: float) -> bool:
    """Whether what was changed then (as time.monotonic()) may be remembered by now, on a machine that let the test wait."""
    return time.monotonic() - since > QUIET / 1000


def listen(peer: Caller, code: int, node: int) -> None:
    """Waits until that notification has come."""
    until(lambda: (code, node) in peer.notified or (peer.receive_frame() and False), "the notification")


@pytest.fixture(scope="module")
def area(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each test, made before: what peers may remember must not have been changed lately."""
    area = tmp_path_factory.mktemp("area")
    for name in (*CHANGES, *NAMES, *OTHERS):
        for part in ("shown", "beside"):
            (area / part / name).mkdir(parents=True)
            (area / part / name / "file").write_text("as it was")
    return area


@pytest.fixture(scope="module")
def served(area: Path) -> Iterator[Served]:
    (area / "keys").mkdir()
    served = Served(area / "keys", [area / "shown"], quiet=QUIET)
    yield served
    served.kill()


@pytest.fixture
def peer(served: Served) -> Iterator[Caller]:
    peer = served.caller()
    yield peer
    peer.send(caller.BYE, 0)
    peer.close()


OTHERS = (
    "just changed", "by a peer", "gone", "itself", "leases", "pages", "both", "mapped", "own", "restart", "written", "itself changed",
    "a file in it", "open again",
)  # fmt: skip


CHANGES: dict[str, Callable[[Path], object]] = {
    "chmod": lambda file: file.chmod(0o600),
    "chown": lambda file: os.chown(file, 7, 7),
    "utime": lambda file: os.utime(file, (1, 1)),
    "setxattr": lambda file: os.setxattr(file, "user.a", b"b"),
    "link": lambda file: os.link(file, file.with_name("second")),
    "write": lambda file: file.write_text("another"),
    "truncate": lambda file: os.truncate(file, 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_attributes_at_home_are_notified(peer: Caller, area: Path, name: str) -> None:
    top = peer.walk(area / "shown" / name).node
    file = remembered(peer, top, "file").node
    change, since = threading.Thread(target=CHANGES[name], args=(area / "shown" / name / "file",)), time.monotonic()
    change.start()
    listen(peer, INVAL_INODE, file)
    peer.ask(caller.GETATTR, file, bytes(16))  # what follows the notification, a fence too, has been obeyed
    change.join(10)
    assert not peer.lookup(top, "file").attributes_valid or was_quiet(since)


NAMES: dict[str, Callable[[Path], object]] = {
    "create": lambda top: (top / "new").write_text(""),
    "mkdir": lambda top: (top / "new").mkdir(),
    "unlink": lambda top: (top / "file").unlink(),
    "rename": lambda top: (top / "file").rename(top / "other"),
    "rename away": lambda top: (top / "file").rename(top.parent.parent / "beside" / top.name / "other"),
    "rename to here": lambda top: (top.parent.parent / "beside" / top.name / "file").rename(top / "new"),
    "symlink": lambda top: (top / "new").symlink_to("file"),
}


@pytest.mark.parametrize("name", NAMES)
def test_changes_of_names_at_home_are_notified(peer: Caller, area: Path, name: str) -> None:
    top = peer.walk(area / "shown" / name).node
    remembered(peer, top, "file")
    nothing = peer.ask(caller.LOOKUP, top, b"new\0")  # that there is none may be remembered, too
    assert nothing[:8] == bytes(8)
    assert int.from_bytes(nothing[16:24], "little") == 1
    since = time.monotonic()
    NAMES[name](area / "shown" / name)
    listen(peer, INVAL_INODE, top)
    listen(peer, INC_EPOCH, 0)
    try:
        assert not peer.lookup(top, "new").name_valid or was_quiet(since)
    except FileNotFoundError:
        pass


def test_names_are_notified_after_a_change_of_their_directory(peer: Caller, area: Path) -> None:
    top = peer.walk(area / "shown" / "itself changed").node
    remembered(peer, top, "file")
    (area / "shown" / "itself changed").chmod(0o711)
    listen(peer, INVAL_INODE, top)
    (area / "shown" / "itself changed" / "file").unlink()
    listen(peer, INC_EPOCH, 0)


def test_a_directory_is_remembered_when_a_file_in_it_has_changed_itself(peer: Caller, area: Path) -> None:
    top = peer.walk(area / "shown" / "a file in it").node
    file = remembered(peer, top, "file").node
    (area / "shown" / "a file in it" / "file").chmod(0o600)
    listen(peer, INVAL_INODE, file)
    assert (INVAL_INODE, top) not in peer.notified
    (area / "shown" / "a file in it" / "file").unlink()
    listen(peer, INVAL_INODE, top)
    listen(peer, INC_EPOCH, 0)


def test_a_recent_change_is_not_remembered(peer: Caller, area: Path) -> None:
    top = peer.walk(area / "shown" / "just changed").node
    remembered(peer, top, "file")
    since = time.monotonic()
    (area / "shown" / "just changed" / "file").chmod(0o600)
    entry = peer.lookup(top, "file")
    assert not entry.attributes_valid or was_quiet(since)
    since = time.monotonic()
    (area / "shown" / "just changed" / "fresh").write_text("")
    assert not peer.lookup(top, "fresh").attributes_valid or was_quiet(since)
    assert not peer.lookup(top, "fresh").name_valid or was_quiet(since)


def test_the_only_writer_of_a_file_remembers_it_until_another_process_opens_it(peer: Caller, area: Path) -> None:
    top = peer.walk(area / "shown" / "written").node
    entry, _ = peer.create(top, "fresh")
    assert entry.attributes_valid
    reads, since = threading.Thread(target=(area / "shown" / "written" / "fresh").read_bytes), time.monotonic()
    reads.start()
    listen(peer, INVAL_INODE, entry.node)
    peer.ask(caller.GETATTR, entry.node, bytes(16))
    reads.join(10)
    assert not reads.is_alive()
    assert not peer.lookup(top, "fresh").attributes_valid or was_quiet(since)


def test_an_only_writer_that_has_closed_the_file_delays_no_other(served: Served, area: Path) -> None:
    peer = served.caller()
    peer.obeys = False
    entry, handle = peer.create(peer.walk(area / "shown" / "written").node, "closed")
    assert entry.attributes_valid
    peer.release(entry.node, handle)
    fd = os.open(area / "shown" / "written" / "closed", os.O_WRONLY | os.O_NONBLOCK)
    assert os.write(fd, b"here") == 4
    os.close(fd)


def test_another_user_of_the_only_writers_node_truncates_the_file_without_delay(peer: Caller, area: Path) -> None:
    entry, _ = peer.create(peer.walk(area / "shown" / "written").node, "cut", mode=0o666, umask=0)
    assert entry.attributes_valid
    peer.uid = peer.gid = 65534
    peer.obeys = False
    DATA["truncate"](peer, entry.node, 0)
    assert not peer.notified


def test_a_second_open_ends_the_exclusive_use_of_a_file(served: Served, peer: Caller, area: Path) -> None:
    top = peer.walk(area / "shown" / "written").node
    entry, writes = peer.create(top, "twice open")
    reads = peer.open(entry.node)
    assert (INVAL_INODE, entry.node) in peer.notified  # its kernel has remembered what is no longer valid
    peer.release(entry.node, writes)
    peer.release(entry.node, reads)


def test_a_change_by_one_peer_is_notified_to_the_others_first(served: Served, peer: Caller, area: Path) -> None:
    other = served.caller()
    top, theirs = (one.walk(area / "shown" / "by a peer").node for one in (peer, other))
    remembered(other, theirs, "file")
    made = threading.Thread(target=peer.ask, args=(caller.MKDIR, top, b"\xff\1\0\0\0\0\0\0d\0"))
    made.start()
    made.join(0.3)
    assert made.is_alive()  # the other has not said that it has forgotten
    listen(other, INC_EPOCH, 0)
    until(lambda: other.receive_frame()[1] == caller.FENCE, "a fence")
    made.join(10)
    assert not made.is_alive()


def test_a_peer_that_is_gone_delays_a_writer_for_a_moment_only(area: Path, peer: Caller) -> None:
    peer.obeys = False
    remembered(peer, peer.walk(area / "shown" / "gone").node, "file")
    began = time.monotonic()
    (area / "shown" / "gone" / "file").write_text("changed")
    assert time.monotonic() - began < PATIENCE
    began = time.monotonic()
    (area / "shown" / "gone" / "file").write_text("again")
    assert time.monotonic() - began < PATIENCE


def test_a_peer_that_writes_what_it_remembers_does_not_wait_for_itself(peer: Caller, area: Path) -> None:
    file = remembered(peer, peer.walk(area / "shown" / "itself").node, "file").node
    handle = peer.open(file, os.O_WRONLY)
    assert not peer.notified  # its kernel forgets by itself, before it asks
    assert peer.write(file, handle, b"mine") == 4
    peer.lock(file, handle, 1)
    assert peer.receive()[1] == 0


DATA: dict[str, Callable[[Caller, int, int], object]] = {
    "write": lambda peer, file, handle: peer.write(file, handle, b"AS"),
    "truncate": lambda peer, file, handle: peer.ask(caller.SETATTR, file, struct.pack("<2I6Q3I", 8, 0, *[0] * 9) + bytes(24)),
    "open": lambda peer, file, handle: peer.open(file, os.O_WRONLY | os.O_TRUNC),
    "allocate": lambda peer, file, handle: peer.ask(caller.FALLOCATE, file, struct.pack("<3Q2I", handle, 0, 100, 0, 0)),
}


@pytest.mark.parametrize("what", DATA)
def test_pages_of_an_open_file_are_dropped_before_another_peers_write(served: Served, peer: Caller, area: Path, what: str) -> None:
    other = served.caller()
    path = area / "shown" / "pages" / "file"
    mine, theirs = peer.walk(path).node, other.walk(path).node
    writes = peer.open(mine, os.O_RDWR)
    other.read(theirs, other.open(theirs))
    made = threading.Thread(target=DATA[what], args=(peer, mine, writes))
    made.start()
    made.join(0.3)
    assert made.is_alive()  # the other has not said that its kernel has dropped them
    listen(other, INVAL_INODE, theirs)
    until(lambda: other.receive_frame()[1] == caller.FENCE, "a fence")
    made.join(10)
    assert not made.is_alive()
    began = time.monotonic()
    peer.write(mine, writes, b"as")  # which has no pages now, and is not asked
    assert time.monotonic() - began < 0.5
    other.close()


def test_two_that_write_to_one_file_do_not_wait_for_one_another(served: Served, peer: Caller, area: Path) -> None:
    other = served.caller()
    peers, path = (peer, other), area / "shown" / "both" / "file"
    files = [one.walk(path).node for one in peers]
    handles = [one.open(file, os.O_RDWR) for one, file in zip(peers, files, strict=True)]
    for one, file, handle in zip(peers, files, handles, strict=True):
        one.obeys = False  # as a kernel that has locked a page until its write is answered
        one.read(file, handle)
    answered: list[float] = []
    began = time.monotonic()

    def write(one: Caller, file: int, handle: int) -> None:
        one.write(file, handle, b"x")
        answered.append(time.monotonic() - began)

    writers = [threading.Thread(target=write, args=three) for three in zip(peers, files, handles, strict=True)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(10)
    assert min(answered) < 1  # an answered peer has unlocked its page, and could obey
    other.close()


def test_a_peer_with_pages_revalidates_after_a_write_by_a_program_at_home(peer: Caller, area: Path) -> None:
    path = area / "shown" / "mapped" / "file"
    file = peer.walk(path).node
    peer.read(file, peer.open(file))
    with path.open("r+") as held:
        held.write("changed")
    listen(peer, caller.REVALIDATE_SOON, file)


def test_a_peer_still_remembers_what_it_has_changed_itself(served: Served, peer: Caller, area: Path) -> None:
    other = served.caller()
    top, theirs = (one.walk(area / "shown" / "own").node for one in (peer, other))
    remembered(peer, top, "file")
    remembered(other, theirs, "file")
    entry, handle = peer.create(top, "new")
    peer.release(entry.node, handle)
    assert entry.name_valid
    found = peer.lookup(top, "new")
    assert found.name_valid and found.attributes_valid
    assert not peer.notified
    listen(other, INC_EPOCH, 0)
    other.close()


@pytest.mark.parametrize("what", ["chmod", "open", "write"])
def test_promises_of_a_server_hold_after_its_restart(served: Served, area: Path, what: str) -> None:
    """The next server knows nothing of the promise: so nothing is changed before the promise has run out."""
    remembers, changes = served.caller(), served.caller()
    path = area / "shown" / "restart" / "file"
    file = changes.walk(path).node
    if what == "write":
        handle = changes.open(file, os.O_WRONLY)
        theirs = remembers.walk(path).node
        remembers.read(theirs, remembers.open(theirs))  # and has pages of it
    else:
        remembered(remembers, remembers.walk(path.parent).node, path.name)
    promised = time.monotonic()
    served.kill()
    served.start()
    changes.close()
    changes.connect()
    if what == "chmod":
        changes.ask(caller.SETATTR, file, struct.pack("<2I", 1, 0) + bytes(60) + struct.pack("<4I", 0o100600, 0, 0, 0) + bytes(4))
        assert path.stat().st_mode & 0o777 == 0o600
    elif what == "write":
        changes.write(file, handle, b"changed")
    else:
        changes.open(file, os.O_WRONLY)
    assert time.monotonic() - promised > caller.TERM
    for one in (remembers, changes):
        one.close()


def test_a_file_open_for_writing_is_read_after_a_restart_without_a_recall(served: Served, area: Path) -> None:
    peer = served.caller()
    file = remembered(peer, peer.walk(area / "shown" / "open again").node, "file").node
    handle = peer.open(file, os.O_RDWR)
    served.kill()
    served.start()
    peer.close()
    peer.connect()
    peer.attributes(file)  # nothing is promised: by that handle it is about to be opened for writing
    assert peer.read(file, handle) == b"as it was"
    assert (INVAL_INODE, file) not in peer.notified
    peer.close()


@pytest.mark.soak
def test_leases_are_released_when_no_peer_remembers(served: Served, area: Path, peer: Caller) -> None:
    def leases() -> int:
        return sum(int(one["leases"]) for one in figures.of_server(served.base / "run" / "server.figures"))

    remembered(peer, peer.walk(area / "shown" / "leases").node, "file")
    assert leases() >= 1
    until(lambda: leases() == 0, "no lease")
