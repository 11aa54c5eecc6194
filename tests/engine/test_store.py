"""The store of files of other nodes: nothing wrong gets in, nothing half is left, and nothing more than there is room for."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files import store as room
from engine.files.files import MappedFile
from engine.files.store import FileStore, in_use, lent
from kernel_helpers.common.errors import FarhomeError

CONTENT = b"content of a library " * 5000


def described(path: str, content: bytes = CONTENT) -> MappedFile:
    return MappedFile(path, len(content), hashlib.sha256(content).hexdigest())


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def public(path: Path) -> Path:
    """Makes the directory accessible to all users."""
    for parent in path.parents:
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    return path


def test_the_store_receives_finds_and_opens_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    file = described("/no/such/path")
    assert store.find(file) is None
    entry = store.receive(file, [CONTENT[:100], CONTENT[100:]])
    assert store.find(file) == entry
    assert entry.read_bytes() == CONTENT
    assert entry.stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
    with store.open(file) as stored:
        assert stored.read(10) == CONTENT[:10]
    with pytest.raises(OSError, match="Exec format error"):  # and not ETXTBSY: no process has it open for writing
        subprocess.run([entry], check=False, timeout=60)


def test_parts_come_in_any_order(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    incoming = store.expect(described("/x"))
    incoming.write(CONTENT[1000:], 1000)
    incoming.write(CONTENT[:1000], 0)
    with pytest.raises(FarhomeError):
        incoming.write(b"x", len(CONTENT))
    assert incoming.complete().read_bytes() == CONTENT


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


@pytest.mark.parametrize("size", ["64k", "100k", "104k"])
def test_a_full_disk_is_said_in_a_sentence_and_leaves_nothing(tmp_path: Path, size: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)], check=True, timeout=10)
    try:
        with pytest.raises(FarhomeError, match="has no room for a file of 105,000 bytes: its disk is full"):
            FileStore(small / "cache").receive(described("/x"), [CONTENT])
        assert leftovers(small / "cache") == []
    finally:
        subprocess.run(["umount", str(small)], check=True, timeout=10)


def test_an_own_file_is_used_only_if_all_may_read_it_and_no_other_user_can_change_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    mine = public(tmp_path / "same")
    mine.write_bytes(CONTENT)
    mine.chmod(0o644)
    found = store.find(described(str(mine)))
    assert found is not None
    (tmp_path / "other").write_bytes(b"another")
    (tmp_path / "other").replace(mine)
    assert found.read_bytes() == CONTENT, "although another file has its name by now"
    store.settle()
    assert not found.exists()
    mine.write_bytes(CONTENT)
    assert store.find(described(str(mine), CONTENT + b"!")) is None
    mine.chmod(0o600)
    assert store.find(described(str(mine))) is None
    mine.chmod(0o666)
    found = store.find(described(str(mine)))
    assert found is not None
    assert found.parent == tmp_path / "cache"
    assert found.read_bytes() == CONTENT


def test_unused_files_are_evicted_and_used_files_are_not(tmp_path: Path) -> None:
    contents = [bytes([n]) * 1000 for n in range(6)]
    files = [described(f"/{n}", content) for n, content in enumerate(contents)]
    stores = [FileStore(tmp_path, 3000) for _ in files]
    for n in range(3):
        os.utime(stores[n].receive(files[n], [contents[n]]), (n + 1, n + 1))
    with pytest.raises(FarhomeError, match="of 3,000 that it lends for that, 3,000 are in use"):
        stores[3].receive(files[3], [contents[3]])
    assert in_use(tmp_path) == sum((tmp_path / file.sha256).stat().st_blocks * 512 for file in files[:3])
    stores[1].close()
    stores[2].close()
    stores[3].receive(files[3], [contents[3]])  # instead of 1, which was used before 2
    assert leftovers(tmp_path) == sorted(files[n].sha256 for n in (0, 2, 3))
    assert stores[4].find(files[2]) is not None  # which it holds from now on
    with pytest.raises(FarhomeError):
        stores[5].receive(files[5], [contents[5]])
    for store in stores:
        store.close()
    assert in_use(tmp_path) == 0
    assert len(leftovers(tmp_path)) == 3


def test_the_guests_of_one_tree_cannot_have_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path, 10_000)
    store.receive(described("/1", b"1" * 3000), [b"1" * 3000])
    with pytest.raises(FarhomeError, match="larger than the 5,000 bytes"):
        store.expect(described("/2", b"2" * 3000))
    FileStore(tmp_path, 10_000).receive(described("/2", b"2" * 3000), [b"2" * 3000])
    monkeypatch.setattr(room, "MOST_FILES", 3)
    other = FileStore(tmp_path, 10_000)
    for content in (b"a", b"b", b"c"):
        other.receive(described("/x", content), [content])
    with pytest.raises(FarhomeError, match="more than 3 files"):
        other.expect(described("/x", b"d"))
    monkeypatch.setattr(room, "MOST_KEPT", 4)
    with pytest.raises(FarhomeError, match="no room"):
        FileStore(tmp_path, 10_000).expect(described("/x", b"d"))


def test_an_arrival_whose_remote_was_killed_takes_no_room(tmp_path: Path) -> None:
    program = f"""
import os, signal
from engine.files.files import MappedFile
from engine.files.store import FileStore
FileStore({str(tmp_path)!r}, 4000).expect(MappedFile("/x", 2000, "0" * 64))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run(["python3", "-c", program], cwd=Path(__file__).resolve().parents[2], check=False, timeout=60)
    assert len(leftovers(tmp_path)) == 1
    for content in (b"1" * 1500, b"2" * 1500):
        FileStore(tmp_path, 4000).receive(described("/x", content), [content])
    assert not any(name.startswith(".incoming") for name in leftovers(tmp_path))


def test_two_processes_that_bring_the_same_file_share_one_entry(tmp_path: Path) -> None:
    one, two = FileStore(tmp_path), FileStore(tmp_path)
    file = described("/x")
    first, second = one.expect(file), two.expect(file)
    for incoming in (first, second):
        incoming.write(CONTENT, 0)
    assert first.complete() == second.complete()
    assert leftovers(tmp_path) == [file.sha256]
    one.close()
    assert in_use(tmp_path) > 0
    two.close()
    assert in_use(tmp_path) == 0


def test_trim_removes_the_least_recently_used_files_that_are_not_in_use(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    files = [described(f"/{n}", bytes([n]) * 1000) for n in range(4)]
    for n, file in enumerate(files):
        os.utime(store.receive(file, [bytes([n]) * 1000]), (n, n))
    assert store.trim(2000) == 0
    store.close()
    store.find(files[0])  # is the latest now
    assert store.trim(2000) == 2000
    assert [store.find(file) is not None for file in files] == [True, False, False, True]


def test_a_user_of_an_entry_being_evicted_does_without_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    entry = store.receive(described("/x"), [CONTENT])
    store.close()
    with entry.open("rb") as evictor:
        fcntl.flock(evictor, fcntl.LOCK_EX)
        entry.unlink()
    assert store.find(described("/x")) is None


def test_a_share_of_the_disk_is_lent(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    assert lent(tmp_path / "not" / "there", 0.25) == disk.f_blocks * disk.f_frsize // 4


def test_a_content_that_was_guessed_is_not_confirmed(tmp_path: Path) -> None:
    """For a file that not all users may read, the answer is the same whether the guess is right or wrong."""
    shut = public(tmp_path / "shut")
    shut.mkdir(mode=0o700)
    secrets = [tmp_path / "secret", shut / "open", tmp_path / "group", tmp_path / "pipe"]
    for path in secrets[:3]:
        path.write_bytes(CONTENT)
    secrets[0].chmod(0o600)
    secrets[1].chmod(0o644)
    secrets[2].chmod(0o640)
    os.mkfifo(secrets[3])
    linked = tmp_path / "linked"
    linked.symlink_to(secrets[0])
    for path in (*secrets, linked, Path("/etc/shadow"), Path("/proc/self/environ"), Path("/dev/null"), Path("/sys/kernel/mm/ksm/run")):
        for content in (CONTENT, path.read_bytes() if path.is_file() else b"", b"wrong"):
            store = FileStore(tmp_path / "cache")
            assert store.find(described(str(path), content)) is None, path
            assert leftovers(tmp_path / "cache") == []
