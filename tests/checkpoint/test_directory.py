"""The directory of a checkpoint is the old one or the new one, whole; what was in a file when a process stood still is known or not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from checkpoint.directory import CUT, NewCheckpoint, Opened
from checkpoint.errors import BadCheckpoint
from checkpoint.prefix import Prefix, sha256
from checkpoint.record import NAME
from checkpoint.rights import User, rights_of
from kernel_helpers.common.errors import FarhomeError

NOBODY = User(65534, 65534, ())


def written(directory: Path, content: bytes) -> None:
    new = NewCheckpoint(directory)
    try:
        new.write("pages-1.img", content)
        new.write(NAME, b"{}")
        new.finish()
    finally:
        new.close()


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_checkpoint_takes_the_place_of_the_one_before_at_once(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    written(saved, b"first")
    (saved / CUT).mkdir()
    (saved / CUT / "log").write_bytes(b"what was cut off")
    new = NewCheckpoint(saved)
    new.write("pages-1.img", b"half")
    assert content(saved) == {"pages-1.img": b"first", NAME: b"{}"}
    with pytest.raises(FarhomeError, match="just being written"):
        NewCheckpoint(saved)
    new.close()
    assert os.listdir(tmp_path) == ["saved"]
    written(saved, b"second")
    assert content(saved) == {"pages-1.img": b"second", NAME: b"{}"}
    assert (saved / CUT / "log").read_bytes() == b"what was cut off"
    assert os.listdir(tmp_path) == ["saved"]


def test_leftovers_of_an_interrupted_checkpoint_are_removed_by_the_next(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    left = tmp_path / ".saved.new"
    left.mkdir()
    (left / "pages-1.img").write_bytes(b"half")
    (left / "below").mkdir()
    (left / "below/link").symlink_to("/etc")
    written(saved, b"first")
    assert os.listdir(tmp_path) == ["saved"]
    assert os.path.exists("/etc/passwd")


def test_nothing_else_is_put_out_of_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/file").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    written(tmp_path / "empty", b"first")
    (tmp_path / "link").symlink_to("empty")
    for name in ("file", "directory", "link"):
        with pytest.raises(FarhomeError, match="is no checkpoint"):
            NewCheckpoint(tmp_path / name)
    with pytest.raises(OSError, match="No such file"):
        NewCheckpoint(tmp_path / "nowhere" / "saved")
    (tmp_path / ".other.new").symlink_to("empty")
    with pytest.raises(OSError, match=r"ot a directory|symbolic links"):
        NewCheckpoint(tmp_path / "other")
    assert content(tmp_path / "empty") == {"pages-1.img": b"first", NAME: b"{}"}


def test_a_user_gets_no_more_than_their_own_rights(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with rights_of(NOBODY), pytest.raises(PermissionError):
        NewCheckpoint(saved)
    assert os.geteuid() == 0
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, NOBODY.uid, NOBODY.gid)
    with rights_of(NOBODY):
        written(own / "saved", b"first")
    assert {path.stat().st_uid for path in (own / "saved", *(own / "saved").iterdir())} == {NOBODY.uid}
    (own / "saved/core-5.img").symlink_to("/etc/shadow")
    with rights_of(NOBODY), pytest.raises(BadCheckpoint, match=r"core-5\.img cannot be read"):
        Opened(own / "saved", NOBODY.uid)
    (own / "saved/core-5.img").unlink()
    os.mkfifo(own / "saved/core-5.img")
    with pytest.raises(BadCheckpoint, match="no file of the user's alone"):
        Opened(own / "saved", NOBODY.uid)


@pytest.mark.parametrize(
    ("meanwhile", "later", "is_known"),
    [("", "", True), ("more", "and more", True), ("BEGIN", "", False), ("more", "BEGIN", False), ("shorter", "", False)],
)
def test_a_file_is_restored_with_its_content_at_the_freeze(tmp_path: Path, meanwhile: str, later: str, is_known: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"begin" * 1000)

    def change(what: str) -> None:
        with open(path, "r+b") as file:
            if what == "shorter":
                file.truncate(10)
            elif what != "BEGIN":
                file.seek(0, 2)
            file.write(what.encode())

    prefix = Prefix(str(path))
    try:
        change(meanwhile)
        held = path.read_bytes()
        prefix.freeze(len(held))
        change(later)
        assert prefix.settle() == (hashlib.sha256(held).hexdigest() if is_known else "")
    finally:
        prefix.close()
    with open(path, "rb") as file:
        assert sha256(file.fileno(), 5) == hashlib.sha256(path.read_bytes()[:5]).hexdigest()
        assert sha256(file.fileno(), 1 << 20) is None
