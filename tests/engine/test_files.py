"""Mapped files by content."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.files import files
from engine.files.files import HashCache, MappedFile, mapped_files
from engine.mappings.mappings import SPECIAL
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.inspection import places

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


def test_the_hashed_file_is_sent_even_if_its_name_changes(tmp_path: Path) -> None:
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
    """The mapped file counts, not a later file of that path; a deleted one travels in the images instead."""
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


@pytest.mark.parametrize("kernel_selects", [True, False])
def test_mappings_that_have_files_are_those_of_proc(kernel_selects: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the kernel returns only these or all mappings: shared ones, without a name, with a strange one, executable, and none."""
    strange = tmp_path / "a b\nc (deleted)"
    strange.write_bytes(bytes(3 * 4096))
    lost = tmp_path / "lost"
    lost.write_bytes(bytes(4096))
    with ExitStack() as opened:
        file, gone = (opened.enter_context(path.open("r+b")) for path in (strange, lost))
        for made in (
            mmap.mmap(-1, 8192), mmap.mmap(-1, 4096, 0x22), mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=8192),
            mmap.mmap(gone.fileno(), 4096),
        ):  # fmt: skip
            opened.enter_context(made)
        lost.unlink()
        if not kernel_selects:
            monkeypatch.setattr(places, "of_files", lambda pid: None)
        wanted = [m for m in files.mappings(os.getpid()) if m.inode]
        assert files.named_mappings(os.getpid()) == wanted
        found = {m.path: m for m in wanted}
        assert (found[str(strange)].offset, found[str(strange)].permissions) == (8192, "r--p")
        assert found[f"{lost} (deleted)"].permissions == "rw-s"


def test_executable_mappings_are_those_of_proc() -> None:
    listed = places.of_instructions(os.getpid())
    wanted = [(m.start, m.end) for m in files.mappings(os.getpid()) if "x" in m.permissions and m.path != "[vsyscall]"]
    if listed is None:
        pytest.skip("this kernel cannot list them by itself (before Linux 6.11)")
    assert [(m.start, m.end) for m in listed] == wanted


def test_an_ended_process_has_no_mappings() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert files.mappings(pid) == files.named_mappings(pid) == []
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        files.named_mappings(pid)


def test_memory_without_a_file_is_that_of_maps(tmp_path: Path) -> None:
    (tmp_path / "a name  with spaces 0").write_bytes(bytes(8192))
    with (
        (tmp_path / "a name  with spaces 0").open("rb") as file,
        mmap.mmap(file.fileno(), 8192, access=mmap.ACCESS_READ),
        mmap.mmap(-1, 8192),
    ):
        listed = files.mappings(os.getpid())
        assert files.anonymous_spans(os.getpid()) == [(m.start, m.end) for m in listed if not m.inode and m.path not in SPECIAL]
