"""Root of another node is nobody here, unless the owner says otherwise."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mfs import caller
from tests.mfs.nodes import Pair
from tests.mfs.served import Served

NOBODY = 65534
USER = pwd.getpwnam("farhome-a")
SHADOW = grp.getgrnam("shadow").gr_gid


@pytest.fixture
def distant(area: Path) -> Iterator[Served]:
    """A server for whom n2's root is nobody."""
    (area / "keys").mkdir()
    (area / "shown").chmod(0o777)
    served = Served(area / "keys", [area / "shown"], root=False)
    yield served
    served.kill()


def refused(peer: caller.Caller, opcode: int, node: int, body: bytes) -> int:
    with pytest.raises(OSError) as caught:
        peer.ask(opcode, node, body)
    return caught.value.errno or 0


def setattr_body(valid: int, mode: int = 0, uid: int = 0, gid: int = 0) -> bytes:
    return struct.pack("<2I6Q3II4I", valid, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mode, 0, uid, gid, 0)


def test_mapped_root_reads_and_changes_only_what_all_users_may(distant: Served, area: Path) -> None:
    peer = distant.caller()
    for name, mode in (("open", 0o644), ("roots", 0o600), ("groups", 0o660), ("everybodys", 0o666)):
        (area / "shown" / name).write_text(name)
        (area / "shown" / name).chmod(mode)
    os.mkdir(area / "shown" / "closed", 0o700)
    top = peer.walk(area / "shown").node
    for uid, gid in ((0, 0), (0, USER.pw_gid), (USER.pw_uid, 0)):
        peer.uid, peer.gid = uid, gid
        found = peer.lookup(top, "open").node
        assert peer.read(found, peer.open(found)) == b"open"
        for name, flags in (("open", os.O_RDWR), ("roots", os.O_RDONLY), ("groups", os.O_RDONLY), ("groups", os.O_WRONLY)):
            assert refused(peer, caller.OPEN, peer.lookup(top, name).node, struct.pack("<2I", flags, 0)) == errno.EACCES, (uid, gid, name)
        everybodys = peer.lookup(top, "everybodys").node
        peer.write(everybodys, peer.open(everybodys, os.O_RDWR), b"x")
        assert refused(peer, caller.LOOKUP, peer.lookup(top, "closed").node, b"x\0") == errno.EACCES
        assert refused(peer, caller.OPENDIR, peer.lookup(top, "closed").node, bytes(8)) == errno.EACCES
        for mask in (2, 4):
            assert refused(peer, 34, peer.lookup(top, "roots").node, struct.pack("<2I", mask, 0)) == errno.EACCES
        for body in (setattr_body(1, 0o777), setattr_body(2, uid=uid), setattr_body(4, gid=gid)):
            assert refused(peer, caller.SETATTR, peer.lookup(top, "roots").node, body) == errno.EPERM


def test_files_that_it_makes_belong_to_nobody_and_are_not_setuid(distant: Served, area: Path) -> None:
    peer = distant.caller()
    peer.uid = peer.gid = 0
    top = peer.walk(area / "shown").node
    entry, _ = peer.create(top, "made", mode=0o6755, umask=0)
    peer.ask(caller.SETATTR, entry.node, setattr_body(1, 0o6777))
    peer.ask(caller.MKNOD, top, struct.pack("<4I", 0o104755, 0, 0, 0) + b"node\0")
    peer.ask(caller.MKDIR, top, struct.pack("<2I", 0o2777, 0) + b"directory\0")
    peer.ask(caller.SYMLINK, top, b"link\0/etc\0")
    for name in ("made", "node", "directory", "link"):
        about = (area / "shown" / name).lstat()
        assert (about.st_uid, about.st_gid) == (NOBODY, NOBODY), name
        assert not about.st_mode & (stat.S_ISUID | stat.S_ISGID), name
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        assert refused(peer, caller.MKNOD, top, struct.pack("<4I", kind | 0o666, 0x103, 0, 0) + b"device\0") == errno.EPERM
    assert refused(peer, caller.SETATTR, entry.node, setattr_body(2, uid=0)) == errno.EPERM
    for name in (b"security.capability", b"trusted.x"):
        value = struct.pack("<5I", 0x02000001, 1, 0, 0, 0)
        assert refused(peer, caller.SETXATTR, entry.node, struct.pack("<2I", len(value), 0) + name + b"\0" + value) == errno.EPERM


def test_system_groups_count_only_for_their_local_members(distant: Served, area: Path) -> None:
    peer = distant.caller()
    (area / "shown" / "shadow").write_text("hashes")
    os.chown(area / "shown" / "shadow", 0, SHADOW)
    (area / "shown" / "shadow").chmod(0o640)
    (area / "shown" / "users").write_text("own")
    os.chown(area / "shown" / "users", 0, USER.pw_gid)
    (area / "shown" / "users").chmod(0o640)
    top = peer.walk(area / "shown").node
    peer.uid, peer.gid = USER.pw_uid, SHADOW
    assert refused(peer, caller.OPEN, peer.lookup(top, "shadow").node, bytes(8)) == errno.EACCES
    own = peer.lookup(top, "users").node  # by the groups that the user has on this node
    assert peer.read(own, peer.open(own)) == b"own"


def test_a_server_that_is_started_again_trusts_no_more_than_before(distant: Served, area: Path) -> None:
    peer = distant.caller()
    peer.uid = peer.gid = 0
    (area / "shown" / "roots").write_text("roots")
    (area / "shown" / "roots").chmod(0o600)
    node = peer.walk(area / "shown" / "roots").node
    distant.kill()
    distant.start()
    again = distant.caller(peer.session)
    again.uid = again.gid = 0
    assert again.resumed
    assert refused(again, caller.OPEN, node, bytes(8)) == errno.EACCES


def test_nodes_as_they_are_installed_show_homes_alone() -> None:
    pair = Pair(2, shown="")
    try:
        pair.sh(1, "echo x >/tmp/x")
        assert pair.sh(2, "ls /mfs/n1") == "home\n"
        assert pair.sh(2, "ls /mfs/n1/home") == pair.sh(1, "ls /home")
        for command in ("cat /mfs/n1/tmp/x", "cat /mfs/n1/etc/passwd", "cat /mfs/n1/var/lib/farhome/pki/authority.key", "mkdir /mfs/n1/new",
                        "mkdir /mfs/n1/home/new"):  # fmt: skip
            assert pair[2].run(command).returncode, command
    finally:
        pair.lab.down()


def test_one_administration_may_say_so_for_some_nodes_and_others_root_is_nobody() -> None:
    pair = Pair(3, shown='exports = ["/tmp"]\nroot = ["n2"]\n')
    try:
        pair.sh(1, "install -m 600 /dev/null /tmp/roots && mkdir -m 700 /tmp/closed && echo x >/tmp/closed/x && mkdir /tmp/anna")
        pair.sh(1, "chown farhome-a /tmp/anna && install -m 600 -o farhome-a /dev/null /tmp/anna/private")
        pair.sh(2, "cat /mfs/n1/tmp/roots && chown 12:34 /mfs/n1/tmp/roots")
        assert pair.sh(1, "stat -c %u:%g /tmp/roots") == "12:34\n"
        for command in ("cat /mfs/n1/tmp/roots", "cat /mfs/n1/tmp/closed/x", "ls /mfs/n1/tmp/closed", "echo y >/mfs/n1/tmp/anna/new",
                        "cat /mfs/n1/tmp/anna/private", "chmod 777 /mfs/n1/tmp/roots", "chown 0 /mfs/n1/tmp/anna",
                        "rm -rf /mfs/n1/tmp/anna",
                        "ln /mfs/n1/tmp/roots /mfs/n1/tmp/linked", "mv /mfs/n1/tmp/closed /mfs/n1/tmp/anna/in"):  # fmt: skip
            assert pair[3].run(command).returncode, command
        pair.sh(3, "cat /mfs/n1/tmp/anna/private && echo mine >/mfs/n1/tmp/anna/new", user="farhome-a")
        pair.sh(1, "chmod 1777 /tmp")
        pair.sh(3, "echo own >/mfs/n1/tmp/own && chmod 6755 /mfs/n1/tmp/own; cat /mfs/n1/tmp/own")
        assert pair.sh(1, "stat -c %U:%a /tmp/anna/new /tmp/own") == "farhome-a:644\nnobody:755\n"
    finally:
        pair.lab.down()
