"""mfs-server by itself: the files it shows, the user it acts as, and what it remembers after a restart."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import signal
import struct
from pathlib import Path

import pytest

from tests.mfs import caller
from tests.mfs.nodes import until
from tests.mfs.served import Served

USER = pwd.getpwnam("farhome-a")


def test_the_way_to_exports_and_nothing_beside_it(served: Served, area: Path) -> None:
    peer = served.caller()
    parent = peer.walk(area)
    assert peer.names(parent.node) == {"shown", "fixed"}
    with pytest.raises(FileNotFoundError):
        peer.lookup(parent.node, "secret")
    assert peer.walk(area / "shown" / "file").attributes.size == len("shown\n")
    with pytest.raises(OSError) as caught:
        peer.create(parent.node, "new")
    assert caught.value.errno == errno.EROFS


def test_files_are_made_read_written_and_renamed(served: Served, area: Path) -> None:
    peer = served.caller()
    top = peer.walk(area / "shown").node
    entry, handle = peer.create(top, "new", mode=0o666, umask=0o27)
    assert peer.write(entry.node, handle, b"0123456789") == 10
    assert peer.write(entry.node, handle, b"ab", 4) == 2
    assert peer.read(entry.node, handle, 100, 2) == b"23ab6789"
    peer.ask(caller.RENAME, top, struct.pack("<Q", top) + b"new\0newer\0")
    assert (area / "shown" / "newer").read_bytes() == b"0123ab6789"
    assert (area / "shown" / "newer").stat().st_mode & 0o777 == 0o640
    peer.ask(caller.UNLINK, top, b"newer\0")
    assert peer.read(entry.node, handle) == b"0123ab6789"
    assert peer.attributes(entry.node).links == 0


def test_an_unlinked_file_is_opened_only_by_a_peer_that_has_it_open(served: Served, area: Path) -> None:
    peer = served.caller()
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file)
    os.unlink(area / "shown" / "file")
    peer.release(file, peer.open(file, os.O_RDWR))
    peer.release(file, handle)
    with pytest.raises(OSError) as caught:  # a name led there, and the peer does not know yet that it is gone
        peer.open(file)
    assert caught.value.errno == errno.ESTALE


def test_a_read_only_export_stays_unchanged(served: Served, area: Path) -> None:
    peer = served.caller()
    top = peer.walk(area / "fixed")
    file = peer.lookup(top.node, "file")
    assert peer.read(file.node, peer.open(file.node)) == b"fixed\n"
    attempts = [
        (caller.OPEN, file.node, struct.pack("<2I", os.O_RDWR, 0)),
        (caller.OPEN, file.node, struct.pack("<2I", os.O_RDONLY | os.O_TRUNC, 0)),
        (caller.UNLINK, top.node, b"file\0"),
        (caller.MKDIR, top.node, struct.pack("<2I", 0o755, 0) + b"new\0"),
        (caller.SETATTR, file.node, struct.pack("<2I", 1, 0) + bytes(60) + struct.pack("<I", 0o777) + bytes(16)),
        (caller.SYMLINK, top.node, b"new\0file\0"),
        (caller.SETXATTR, file.node, struct.pack("<2I", 1, 0) + b"user.a\0" + b"x"),
        (caller.RENAME, top.node, struct.pack("<Q", peer.walk(area / "shown").node) + b"file\0taken\0"),
    ]
    for opcode, node, body in attempts:
        with pytest.raises(OSError) as caught:
            peer.ask(opcode, node, body)
        assert caught.value.errno == errno.EROFS, opcode
    assert (area / "fixed" / "file").read_text() == "fixed\n"
    assert [entry.name for entry in (area / "fixed").iterdir()] == ["file"]


def test_the_server_acts_as_the_asking_user(served: Served, area: Path) -> None:
    peer = served.caller()
    top = peer.walk(area / "shown").node
    (area / "shown" / "private").write_text("root's")
    (area / "shown" / "private").chmod(0o600)
    (area / "shown").chmod(0o777)
    peer.uid, peer.gid = USER.pw_uid, USER.pw_gid
    private = peer.lookup(top, "private").node
    with pytest.raises(PermissionError):
        peer.open(private)
    with pytest.raises(PermissionError):
        peer.ask(caller.SETATTR, private, struct.pack("<2I", 1, 0) + bytes(60) + struct.pack("<I", 0o777) + bytes(16))
    entry, _ = peer.create(top, "own")
    assert (entry.attributes.uid, entry.attributes.gid) == (USER.pw_uid, USER.pw_gid)
    assert (area / "shown" / "own").owner() == "farhome-a"
    peer.uid, peer.gid = 0, 0
    assert peer.read(private, peer.open(private)) == b"root's"


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"../secret", b"/etc", b""])
def test_names_are_single_steps(served: Served, area: Path, name: bytes) -> None:
    peer = served.caller()
    top = peer.walk(area / "shown").node
    with pytest.raises(OSError) as caught:
        peer.lookup(top, name)
    assert caught.value.errno == errno.EINVAL


def test_symbolic_links_are_returned_and_not_followed(served: Served, area: Path) -> None:
    peer = served.caller()
    (area / "shown" / "way").symlink_to(area / "secret")
    link = peer.walk(area / "shown" / "way")
    assert peer.ask(caller.READLINK, link.node) == os.fsencode(area / "secret")
    with pytest.raises(NotADirectoryError):
        peer.lookup(link.node, "file")
    with pytest.raises(OSError):
        peer.open(link.node)


def test_a_directory_that_was_moved_out_is_closed(served: Served, area: Path) -> None:
    peer = served.caller()
    (area / "shown" / "inner").mkdir()
    (area / "shown" / "inner" / "file").write_text("x")
    inner = peer.walk(area / "shown" / "inner").node
    file = peer.lookup(inner, "file").node
    (area / "shown" / "inner").rename(area / "secret" / "inner")
    for attempt in (lambda: peer.lookup(inner, "file"), lambda: peer.open(file), lambda: peer.names(inner)):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.ESTALE


def test_devices_are_seen_and_neither_made_nor_opened(served: Served, area: Path) -> None:
    peer = served.caller()
    os.mknod(area / "shown" / "null", 0o20666, os.makedev(1, 3))
    os.mkfifo(area / "shown" / "fifo")
    top = peer.walk(area / "shown").node
    null = peer.lookup(top, "null")
    assert null.attributes.mode == 0o20666 & ~0o022 or null.attributes.mode == 0o20666
    for node in (null.node, peer.lookup(top, "fifo").node):
        with pytest.raises(PermissionError):
            peer.open(node)
    with pytest.raises(PermissionError):
        peer.ask(caller.MKNOD, top, struct.pack("<4I", 0o20666, os.makedev(1, 3), 0, 0) + b"zero\0")


def test_numbers_that_were_never_given_lead_nowhere(served: Served) -> None:
    peer, other = served.caller(), served.caller()
    node, handle = peer.create(peer.walk(served.base.parent / "shown").node, "mine")
    for number in (0, 2, 1 << 20, 1 << 33 | 1, 2**64 - 1, node.node + 1):
        for attempt in (lambda n=number: other.attributes(n), lambda n=number: other.open(n), lambda n=number: other.lookup(n, "file")):
            with pytest.raises(OSError) as caught:
                attempt()
            assert caught.value.errno == errno.ESTALE
    with pytest.raises(OSError) as caught:
        other.read(node.node, handle)
    assert caught.value.errno == errno.ESTALE


def test_nodes_and_open_files_outlive_the_server(served: Served, area: Path) -> None:
    peer = served.caller()
    top = peer.walk(area / "shown").node
    entry, handle = peer.create(top, "kept")
    peer.write(entry.node, handle, b"before")
    os.rename(area / "shown" / "kept", area / "shown" / "renamed")
    served.kill()
    served.start()
    peer.connect()
    assert peer.resumed
    assert peer.read(entry.node, handle) == b"before"
    assert peer.write(entry.node, handle, b"-after", 6) == 6
    assert (area / "shown" / "renamed").read_bytes() == b"before-after"
    assert peer.lookup(top, "renamed").node == entry.node


def test_a_repeated_request_gets_the_answer_of_the_one_under_way(served: Served, area: Path) -> None:
    peer = served.caller()
    file = peer.walk(area / "shown" / "file").node
    before = signal.signal(signal.SIGIO, lambda *_: None)
    held = os.open(area / "shown" / "file", os.O_RDONLY)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        sent = peer.send(caller.OPEN, file, struct.pack("<2I", os.O_WRONLY, 0))
        until(lambda: fcntl.fcntl(held, fcntl.F_GETLEASE) == fcntl.F_UNLCK, "the server waits")
        peer.send(caller.OPEN, file, struct.pack("<2I", os.O_WRONLY, 0), sent | caller.AGAIN)
        peer.ask(caller.GETATTR, file, bytes(16))  # that has come, too
    finally:
        os.close(held)
        signal.signal(signal.SIGIO, before)
    assert peer.receive()[:2] == (sent | caller.AGAIN, 0)


def test_a_delayed_read_is_complete(served: Served, area: Path) -> None:
    (area / "shown" / "file").write_bytes(bytes(range(250)) * 400)
    peer = served.caller()
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file)
    served.kill()
    served.start()  # which has to open it again
    peer.close()
    peer.connect()
    before = signal.signal(signal.SIGIO, lambda *_: None)
    held = os.open(area / "shown" / "file", os.O_WRONLY)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        peer.send(caller.READ, file, struct.pack("<QQIIQII", handle, 0, 100_000, 0, 0, 0, 0))
        until(lambda: fcntl.fcntl(held, fcntl.F_GETLEASE) != fcntl.F_WRLCK, "the server waits")
    finally:
        os.close(held)
        signal.signal(signal.SIGIO, before)
    assert peer.receive()[2] == bytes(range(250)) * 400


def test_a_repeated_request_is_not_executed_again(served: Served, area: Path) -> None:
    peer = served.caller()
    top = peer.walk(area / "shown").node
    sent = peer.send(caller.UNLINK, top, b"file\0")
    assert peer.receive()[1] == 0
    (area / "shown" / "file").write_text("another")
    for restart in (False, True):
        if restart:
            served.kill()
            served.start()
        peer.close()
        peer.connect()
        assert peer.ask(caller.UNLINK, top, b"file\0", sent | caller.AGAIN) == b""
        assert (area / "shown" / "file").read_text() == "another"
    fresh = peer.send(caller.MKDIR, top, struct.pack("<2I", 0o755, 0) + b"d\0", 1000 | caller.AGAIN)
    assert peer.receive()[:2] == (fresh, 0)
    assert (area / "shown" / "d").is_dir()


def test_locks_exclude_processes_of_both_nodes(served: Served, area: Path) -> None:
    peer = served.caller()
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file, os.O_RDWR)
    peer.lock(file, handle, fcntl.F_WRLCK)
    assert peer.receive()[1] == 0
    with (area / "shown" / "file").open("r+") as here:
        with pytest.raises(BlockingIOError):
            fcntl.lockf(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
        peer.lock(file, handle, fcntl.F_UNLCK)
        assert peer.receive()[1] == 0
        fcntl.lockf(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
        peer.lock(file, handle, fcntl.F_WRLCK)
        assert peer.receive()[1] == -errno.EAGAIN
        waits = peer.lock(file, handle, fcntl.F_WRLCK, wait=True)
        peer.send(caller.INTERRUPT, 0, struct.pack("<Q", waits))
        assert peer.receive()[:2] == (waits, -errno.EINTR)
        waits = peer.lock(file, handle, fcntl.F_WRLCK, wait=True)
        assert peer.attributes(file).size
        fcntl.lockf(here, fcntl.LOCK_UN)
        assert peer.receive()[:2] == (waits, 0)


def test_a_stranger_to_the_cluster_is_rejected(served: Served, area: Path) -> None:
    from node.cluster.keys.pki import KeyStore

    stranger = KeyStore(area / "stranger")
    stranger.init("test", "n2")
    with pytest.raises((OSError, ConnectionError)):
        caller.Caller(stranger, served.port)


@pytest.mark.parametrize(("ours", "theirs"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_connection_is_unencrypted_only_if_both_sides_want_it(served: Served, area: Path, ours: bool, theirs: bool) -> None:
    served.kill()
    served.start(*([] if ours else ["--plain"]))
    peer = served.caller(encrypted=theirs)
    assert peer.encrypted == (ours or theirs)
    assert peer.walk(area / "shown" / "file").attributes.size == 6


@pytest.mark.parametrize("plain", [True, False])
def test_a_large_write_is_bounded_by_its_data_and_its_stated_size(served: Served, area: Path, plain: bool) -> None:
    served.kill()
    served.start(*(["--plain"] if plain else []))
    peer = served.caller(encrypted=not plain)
    file = peer.walk(area / "shown" / "file").node
    handle, data = peer.open(file, os.O_WRONLY), os.urandom(300_000)
    assert peer.write(file, handle, data[:250_000]) == 250_000
    less, more = (struct.pack("<QQIIQII", handle, 100_001, size, 0, 0, 0, 0) for size in (100_000, 300_000))
    assert int.from_bytes(peer.ask(caller.WRITE, file, less + data[100_000:])[:4], "little") == 100_000
    with pytest.raises(OSError) as caught:
        peer.ask(caller.WRITE, file, more + data[:200_000])
    assert caught.value.errno == errno.EINVAL
    expected = data[:100_001] + data[100_000:200_000] + data[200_001:250_000]
    assert (area / "shown" / "file").read_bytes() == expected
    appended = peer.open(file, os.O_WRONLY | os.O_APPEND)
    assert peer.write(file, appended, data) == len(data)
    assert (area / "shown" / "file").read_bytes() == expected + data


@pytest.mark.parametrize("kind", ["fcntl", pytest.param("flock", marks=pytest.mark.soak)])
def test_a_silent_peer_loses_its_locks(served: Served, area: Path, kind: str) -> None:
    peer = served.caller()
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file, os.O_RDWR)
    body = struct.pack("<QQQQIIII", handle, 1, 0, (1 << 63) - 1, fcntl.F_WRLCK, 1, int(kind == "flock"), 0)
    peer.ask(caller.SETLK, file, body)
    take = {"fcntl": fcntl.lockf, "flock": fcntl.flock}[kind]
    with (area / "shown" / "file").open("r+") as here:
        with pytest.raises(BlockingIOError):
            take(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
        take(here, fcntl.LOCK_EX)  # as long as the peer is given
    with pytest.raises(OSError) as caught:
        peer.read(file, handle)
    assert caught.value.errno == errno.EIO
    assert peer.read(file, peer.open(file)) == b"shown\n"


def test_after_a_restart_a_user_is_still_that_user(served: Served, area: Path) -> None:
    peer = served.caller()
    (area / "shown").chmod(0o777)
    (area / "shown" / "file").chmod(0o666)
    peer.uid, peer.gid = USER.pw_uid, USER.pw_gid
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file, os.O_RDWR)
    served.kill()
    served.start()
    peer.connect()
    size_and_mode_by_handle = struct.pack("<2I2Q", 1 | 8 | 64, 0, handle, 3) + bytes(44) + struct.pack("<I", 0o777) + bytes(16)
    with pytest.raises(PermissionError):
        peer.ask(caller.SETATTR, file, size_and_mode_by_handle)
    assert (area / "shown" / "file").stat().st_mode & 0o777 == 0o666
    assert (area / "shown" / "file").read_text() == "sho"
