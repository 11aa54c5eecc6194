"""Files of the node itself that a home names: what is shown to other nodes, and the very file that was meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote.ownfiles import open_own


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    shown = tmp_path / "shown"
    (shown / "in").mkdir(parents=True)
    (shown / "in" / "file").write_text("what it holds")
    (tmp_path / "secret").write_text("not to be seen")
    return shown


def test_the_file_that_is_meant_is_opened_for_reading(shown: Path) -> None:
    number = open_own(shown, b"in/file", (shown / "in/file").stat().st_ino)
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
            open_own(shown, path, inode)


def test_another_file_of_that_name_is_not(shown: Path) -> None:
    inode = (shown / "in" / "file").stat().st_ino
    (shown / "in" / "new").write_text("another")
    (shown / "in" / "new").replace(shown / "in" / "file")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        open_own(shown, b"in/file", inode)
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_nothing_is_shown_nothing_is_opened() -> None:
    with pytest.raises(FileNotFoundError):
        open_own(None, b"etc/passwd", os.stat("/etc/passwd").st_ino)
