"""Mapped files by content, and the store: nothing wrong gets in, nothing half is left."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files import FileStore, HashCache, MappedFile, mapped_files
from kernel_helpers.errors import FarhomeError

CONTENT = b"content of a library " * 5000


def described(path: str, content: bytes = CONTENT) -> MappedFile:
    return MappedFile(path, len(content), hashlib.sha256(content).hexdigest())


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


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


def test_store_receives_finds_and_opens(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    file = described("/no/such/path")
    assert store.find(file) is None
    entry = store.receive(file, [CONTENT[:100], CONTENT[100:]])
    assert store.find(file) == entry and entry.read_bytes() == CONTENT
    assert entry.stat().st_mode & 0o777 == 0o555 and (tmp_path / "cache").stat().st_mode & 0o077 == 0
    with store.open(file) as stored:
        assert stored.read(10) == CONTENT[:10]


def test_wrong_short_long_and_broken_content_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    file = described("/x")

    def broken() -> Iterator[bytes]:
        yield CONTENT[:10]
        raise ConnectionResetError

    for chunks in ([CONTENT[:-1]], [CONTENT, b"x"], [b"y" * len(CONTENT)]):
        with pytest.raises(FarhomeError):
            store.receive(file, chunks)
    with pytest.raises(ConnectionResetError):
        store.receive(file, broken())
    assert leftovers(tmp_path / "cache") == []


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True, timeout=10)
    try:
        store = FileStore(small / "cache")
        with pytest.raises(OSError) as caught:
            store.receive(described("/x"), [CONTENT])
        assert caught.value.errno == errno.ENOSPC
        assert leftovers(small / "cache") == []
    finally:
        subprocess.run(["umount", str(small)], check=True, timeout=10)


def test_own_file_is_used_only_if_nobody_else_can_change_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    mine = tmp_path / "same"
    mine.write_bytes(CONTENT)
    mine.chmod(0o644)
    assert store.find(described(str(mine))) == mine
    assert store.find(described(str(mine), CONTENT + b"!")) is None
    mine.chmod(0o666)
    found = store.find(described(str(mine)))
    assert found is not None and found.parent == tmp_path / "cache" and found.read_bytes() == CONTENT
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert store.find(MappedFile(str(fifo), 0, "0" * 64)) is None


def test_trim_removes_what_was_not_used_longest(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    files = [described(f"/{n}", bytes([n]) * 1000) for n in range(4)]
    for n, file in enumerate(files):
        os.utime(store.receive(file, [bytes([n]) * 1000]), (n, n))
    store.find(files[0])  # is the latest now
    assert store.trim(2000) == 2000
    assert [store.find(file) is not None for file in files] == [True, False, False, True]


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
