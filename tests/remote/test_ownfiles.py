"""Files of the node itself that a home names: what is shown to other nodes, and the very file that was meant."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from kernel_helpers.common.acting import NOBODY
from remote.requests.own_files import open_own

ANNA, BERT = (pwd.getpwnam(f"farhome-{letter}") for letter in "ab")


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    shown = tmp_path / "shown"
    (shown / "in").mkdir(parents=True)
    (shown / "in" / "file").write_text("what it holds")
    (tmp_path / "secret").write_text("not to be seen")
    return shown


def test_the_file_that_is_meant_is_opened_for_reading(shown: Path) -> None:
    number = open_own(shown, b"in/file", (shown / "in/file").stat().st_ino, 0, True)
    try:
        assert os.read(number, 100) == b"what it holds"
        assert os.get_blocking(number)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(number, b"x")
    finally:
        os.close(number)


@pytest.mark.parametrize(
    "path", [b"../secret", b"in/../../secret", b"/etc/passwd", b"way/secret", b"in/link", b"in/absent", b"in", b"in/pipe", b""]
)
def test_nothing_else_is(shown: Path, path: bytes) -> None:
    (shown / "way").symlink_to(shown.parent)
    (shown / "in" / "link").symlink_to("../../secret")
    os.mkfifo(shown / "in" / "pipe")
    secret = (shown.parent / "secret").stat().st_ino
    for inode in (secret, (shown / "in").stat().st_ino, (shown / "in" / "pipe").stat().st_ino, os.stat("/etc/passwd").st_ino):
        with pytest.raises(OSError, match=r"secret|passwd|link|absent|in|pipe|symbolic|directory|file"):
            open_own(shown, path, inode, 0, True)


def test_another_file_of_that_name_is_not(shown: Path) -> None:
    inode = (shown / "in" / "file").stat().st_ino
    (shown / "in" / "new").write_text("another")
    (shown / "in" / "new").replace(shown / "in" / "file")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        open_own(shown, b"in/file", inode, 0, True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_file_is_opened_if_nothing_is_exported() -> None:
    with pytest.raises(FileNotFoundError):
        open_own(None, b"etc/passwd", os.stat("/etc/passwd").st_ino, 0, True)


@pytest.mark.parametrize(
    ("owner", "group", "mode", "may"),
    [
        (ANNA.pw_uid, 0, 0o600, {"anna", "root"}), (0, 0, 0o644, {"anna", "bert", "nobody", "root"}), (0, 0, 0o640, {"root"}),
        (0, BERT.pw_gid, 0o640, {"bert", "root"}), (NOBODY, 0, 0o600, {"nobody", "root"}),
    ],
)  # fmt: skip
def test_a_file_is_opened_with_the_rights_of_the_guests_user(shown: Path, owner: int, group: int, mode: int, may: set[str]) -> None:
    """Root of the home is uid nobody here, unless this node's owner says otherwise; afterwards the opening process has its own identity."""
    for parent in (shown, *shown.parents):
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    file = shown / "in" / "file"
    os.chown(file, owner, group)
    file.chmod(mode)
    opened = set()
    for who, uid, root_counts in (("anna", ANNA.pw_uid, False), ("bert", BERT.pw_uid, True), ("nobody", 0, False), ("root", 0, True)):
        try:
            os.close(open_own(shown, b"in/file", file.stat().st_ino, uid, root_counts))
            opened.add(who)
        except PermissionError:
            pass
    assert opened == may
    assert os.getgroups() == groups_of_this_thread()
    (shown / "in" / "by-root").write_text("still")
    assert (shown / "in" / "by-root").stat().st_uid == os.geteuid()


def groups_of_this_thread() -> list[int]:
    status = Path("/proc/thread-self/status").read_text().splitlines()
    assert next(line for line in status if line.startswith("Uid:")).split()[4] == str(os.geteuid())
    return [int(word) for word in next(line for line in status if line.startswith("Groups:")).split()[1:]]
