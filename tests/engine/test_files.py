"""Mapped files by content."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from engine.files import HashCache, MappedFile, mapped_files
from kernel_helpers.errors import FarhomeError

CONTENT = b"content of a library " * 5000


def described(path: str, content: bytes = CONTENT) -> MappedFile:
    return MappedFile(path, len(content), hashlib.sha256(content).hexdigest())


def test_all_mapped_files_and_the_program_are_found() -> None:
    process = subprocess.Popen(["/usr/bin/python3", "-c", "print(1,flush=True); input()"], stdin=-1, stdout=-1)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found = {file.path: file for file in mapped_files(process.pid)}
        assert os.path.realpath("/usr/bin/python3") in found
        assert any("libc.so" in path for path in found)
        for file in found.values():
            data = Path(file.path).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
            with file.open() as source:
                assert source.read(64) == data[:64]
        wire = found[os.path.realpath("/usr/bin/python3")].to_wire()
        assert MappedFile.from_wire(wire) == found[os.path.realpath("/usr/bin/python3")]
    finally:
        process.kill()
        process.communicate()


def test_what_was_hashed_is_sent_whatever_becomes_of_the_name(tmp_path: Path) -> None:
    """The process unmaps the file, and its user puts a link to another in its place: neither that nor anything by name is opened."""
    path, secret = tmp_path / "mapped", tmp_path / "secret"
    path.write_bytes(CONTENT)
    secret.write_bytes(b"of root alone".ljust(len(CONTENT)))
    source = (
        f"import mmap,os\nf=open({str(path)!r},'rb');m=mmap.mmap(f.fileno(),0,prot=1,flags=2);f.close()\nprint(1,flush=True);input()\n"
        f"m.close();os.rename({str(path)!r},{str(path)!r}+'.old');os.symlink({str(secret)!r},{str(path)!r});print(1,flush=True);input()"
    )
    process = subprocess.Popen(["/usr/bin/python3", "-c", source], stdin=-1, stdout=-1)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        found = next(file for file in mapped_files(process.pid) if file.path == str(path))
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        with found.open() as sent:
            assert sent.read() == CONTENT
        assert str(path) not in [file.path for file in mapped_files(process.pid)]
        found.let_go()
        with pytest.raises(FileNotFoundError):
            found.open()
        with pytest.raises(FileNotFoundError):
            MappedFile.from_wire(found.to_wire()).open()
    finally:
        process.kill()
        process.communicate()


def test_replaced_file_is_hashed_as_it_is_mapped(tmp_path: Path) -> None:
    """What is mapped counts, not what has come to that path since; a deleted one travels in the images instead."""
    path = tmp_path / "mapped"
    path.write_bytes(CONTENT)
    source = f"import mmap\nf=open({str(path)!r},'rb');m=mmap.mmap(f.fileno(),0,prot=1,flags=2)\nprint(1,flush=True);input()"
    process = subprocess.Popen(["/usr/bin/python3", "-c", source], stdin=-1, stdout=-1)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert described(str(path)) in mapped_files(process.pid)
        path.rename(tmp_path / "moved")
        path.write_bytes(b"another")
        assert described(str(tmp_path / "moved")) in mapped_files(process.pid)
        assert str(path) not in [file.path for file in mapped_files(process.pid)]
    finally:
        process.kill()
        process.communicate()


def test_hash_cache_notices_a_change_and_survives_garbage(tmp_path: Path) -> None:
    (tmp_path / "hashes").write_bytes(b"garbage \xff\n1 2 3\n")
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    os.utime(path, (1, 1))
    for content in (CONTENT, CONTENT[::-1]):
        path.write_bytes(content)
        for _ in range(2):
            with path.open("rb", buffering=0) as file:
                assert HashCache(tmp_path / "hashes").hash(file) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "change",
    [{"path": "relative"}, {"path": b"/a/../b"}, {"path": "/a\0b"}, {"path": 3}, {"size": -1}, {"size": "1"}, {"size": 1 << 60},
     {"sha256": "../../etc/passwd"}, {"sha256": "A" * 64}, {"sha256": None}],
)  # fmt: skip
def test_unsound_description_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FarhomeError):
        MappedFile.from_wire({**described("/x").to_wire(), **change})
