"""farhome's own files are never shown, for any export and any path."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mfs import caller
from tests.mfs.caller import Caller
from tests.mfs.nodes import Pair
from tests.mfs.served import Served

KEY = "the key of the cluster\n"


@pytest.fixture
def state(area: Path) -> Path:
    """A node's state within an export."""
    (area / "shown" / "state" / "pki" / "in").mkdir(parents=True)
    (area / "shown" / "state" / "pki" / "key").write_text(KEY)
    (area / "shown" / "state" / "pki" / "in" / "key").write_text(KEY)
    return area / "shown" / "state"


@pytest.fixture
def keeper(area: Path, state: Path) -> Iterator[Served]:
    """A server for which that is hidden, root of n2 being root."""
    (area / "keys").mkdir()
    served = Served(area / "keys", [area / "shown"], hide=[state])
    yield served
    served.kill()


@pytest.fixture
def bound(area: Path) -> Iterator[list[Path]]:
    """Directories of another name for what is hidden: wherever they are mounted, they are unmounted at the end."""
    made: list[Path] = []
    yield made
    for point in made:
        subprocess.run(["umount", "-l", point], check=True, timeout=60)


def bind(bound: list[Path], source: Path, point: Path) -> None:
    point.mkdir() if source.is_dir() else point.touch()
    subprocess.run(["mount", "--bind", source, point], check=True, timeout=60)
    bound.append(point)


def gone(peer: Caller, node: int, name: str) -> None:
    with pytest.raises(OSError) as caught:
        peer.lookup(node, name)
    assert caught.value.errno == errno.ENOENT


def test_hidden_files_are_neither_found_nor_listed_nor_replaced(keeper: Served, area: Path, state: Path) -> None:
    peer = keeper.caller()
    top = peer.walk(area / "shown").node
    gone(peer, top, "state")
    assert peer.names(top) == {"file"}
    (area / "shown" / "way").symlink_to("state")
    assert peer.ask(caller.READLINK, peer.lookup(top, "way").node) == b"state"  # followed by the peer, in its own tree
    attempts = [
        (caller.MKDIR, struct.pack("<2I", 0o755, 0) + b"state\0"),
        (caller.RMDIR, b"state\0"),
        (caller.RENAME, struct.pack("<Q", top) + b"state\0other\0"),
        (caller.RENAME, struct.pack("<Q", top) + b"file\0state\0"),
        (caller.RENAME2, struct.pack("<Q2I", top, 2, 0) + b"state\0file\0"),  # RENAME_EXCHANGE
        (caller.CREATE, struct.pack("<4I", os.O_RDWR | os.O_CREAT, 0o100644, 0, 0) + b"state\0"),
    ]
    for opcode, body in attempts:
        with pytest.raises(OSError):
            peer.ask(opcode, top, body)
    assert (state / "pki" / "key").read_text() == KEY


def test_a_directory_above_it_takes_it_along_unseen(area: Path) -> None:
    inner = area / "shown" / "var" / "lib" / "state"
    inner.mkdir(parents=True)
    (inner / "key").write_text(KEY)
    (area / "keys").mkdir()
    served = Served(area / "keys", [area / "shown"], hide=[inner])
    try:
        peer = served.caller()
        top = peer.walk(area / "shown").node
        peer.ask(caller.RENAME, peer.lookup(top, "var").node, struct.pack("<Q", top) + b"lib\0moved\0")
        moved = peer.lookup(top, "moved").node
        gone(peer, moved, "state")
        assert peer.names(moved) == set()
    finally:
        served.kill()


@pytest.mark.parametrize("what", [".", "pki", "pki/in", "pki/key"])
def test_hidden_files_are_not_shown_through_a_bind_mount_either(
    keeper: Served, area: Path, state: Path, bound: list[Path], what: str
) -> None:
    peer = keeper.caller()
    top = peer.walk(area / "shown").node
    bind(bound, state / what, area / "shown" / "elsewhere")
    gone(peer, top, "elsewhere")


def test_nor_is_a_link_to_where_it_really_lies(area: Path, bound: list[Path]) -> None:
    real = area / "shown" / "disk"
    real.mkdir()
    (real / "key").write_text(KEY)
    (area / "state").symlink_to(real)
    (area / "keys").mkdir()
    served = Served(area / "keys", [area / "shown"], hide=[area / "state"])
    try:
        peer = served.caller()
        top = peer.walk(area / "shown").node
        gone(peer, top, "disk")
        assert peer.names(top) == {"file"}
    finally:
        served.kill()


def test_nor_is_a_key_by_another_name_of_its_own(area: Path) -> None:
    (area / "shown" / "keys").mkdir()
    served = Served(area / "shown" / "keys", [area / "shown"])
    try:
        peer = served.caller()
        top = peer.walk(area / "shown").node
        os.link(served.own.directory / "authority.key", area / "shown" / "linked")
        os.link(area / "shown" / "file", area / "shown" / "again")
        gone(peer, top, "linked")
        assert peer.lookup(top, "again").attributes.size == len("shown\n")
    finally:
        served.kill()


def test_files_moved_into_a_hidden_place_are_no_longer_served(keeper: Served, area: Path, state: Path) -> None:
    peer = keeper.caller()
    (area / "shown" / "new").mkdir()
    (area / "shown" / "new" / "key").write_text(KEY)
    new = peer.walk(area / "shown" / "new").node
    file = peer.lookup(new, "key").node
    (area / "shown" / "new").rename(state / "new")
    for again in (False, True):
        if again:
            keeper.kill()
            keeper.start()
            peer = keeper.caller(peer.session)
            assert peer.resumed
        for opcode, node, body in (
            (caller.OPEN, file, struct.pack("<2I", os.O_RDONLY, 0)), (caller.LOOKUP, new, b"key\0"), (caller.OPENDIR, new, bytes(8)),
            (caller.MKDIR, new, struct.pack("<2I", 0o755, 0) + b"made\0"), (caller.READLINK, new, b""),
            (caller.GETXATTR, file, bytes(8) + b"user.a\0"),
        ):  # fmt: skip
            with pytest.raises(OSError) as caught:
                peer.ask(opcode, node, body)
            assert caught.value.errno == errno.ESTALE, opcode
    assert sorted(entry.name for entry in (state / "new").iterdir()) == ["key"]


@pytest.mark.parametrize("what", [".", "pki", "pki/in"])
@pytest.mark.parametrize("bind_first", [False, True])
def test_no_export_shows_it(area: Path, state: Path, bound: list[Path], what: str, bind_first: bool) -> None:
    export = state / what
    if bind_first:
        export = area / "by-another-name"
        bind(bound, state / what, export)
    (area / "keys").mkdir()
    with pytest.raises(AssertionError):  # it does not come up
        Served(area / "keys", [export], hide=[state])


def test_root_of_a_node_gets_at_no_key_of_another_even_where_everything_is_exported_to_it() -> None:
    pair = Pair(2, shown='exports = ["/"]\nroot = "root"\n')
    try:
        pair.sh(1, "mkdir /tmp/bound && mount --bind /var/lib/farhome/pki /tmp/bound && mkdir /tmp/up && mount --bind /var/lib /tmp/up")
        for way in ("/var/lib/farhome/pki/authority.key", "/etc/farhome/node.toml", "/run/farhome/mosd.sock", "/tmp/bound/authority.key",
                    "/tmp/up/farhome/pki/node.key", "/var/lib/farhome", "/etc/farhome", "/run/farhome", "/tmp/bound",
                    "/proc/self/root/var/lib/farhome", "/usr/../var/lib/farhome", "/mfs/n1/var/lib/farhome"):  # fmt: skip
            done = pair[2].run(f"cat /mfs/n1{way}; ls /mfs/n1{way}; echo x >/mfs/n1{way}/x", text=True)
            assert done.returncode, way
            assert done.stdout == "", way
        assert pair.sh(2, "ls /mfs/n1/var/lib /mfs/n1/tmp/up /mfs/n1/etc /mfs/n1/run | grep -cx farhome || true") == "0\n"
        assert pair.sh(1, "ls -A /mfs/n1/var/lib/farhome /mfs/n1/etc/farhome") == "/mfs/n1/etc/farhome:\n\n/mfs/n1/var/lib/farhome:\n"
        assert pair.sh(1, "ls /etc/farhome /var/lib/farhome/pki | grep -c .") != "0\n"
        assert pair.sh(2, "cat /mfs/n1/etc/hostname /etc/hostname >/dev/null; ls /mfs/n1/etc | grep -c .") != "0\n"
    finally:
        pair.lab.down()
