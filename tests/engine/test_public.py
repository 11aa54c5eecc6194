"""Files of the node that a home names: what is opened, seen by the kernel (inotify, and a file system that is a program)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files.files import MappedFile
from engine.files.public import find_public, open_public
from engine.files.store import FileStore

OPENED, READ = 0x20, 0x1
CONTENT = b"what it holds"
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches some files and directories for opens and reads by any process."""

    def __init__(self, *paths: Path) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK)
        self._paths = {_libc.inotify_add_watch(self._fd, os.fsencode(path), OPENED | READ): path for path in paths}
        assert -1 not in self._paths

    def seen(self) -> set[Path]:
        found = set()
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return set()
        at = 0
        while at < len(data):
            number, _, _, length = struct.unpack_from("iIII", data, at)
            name = data[at + 16 : at + 16 + length].rstrip(b"\0")
            found.add(self._paths[number] / os.fsdecode(name) if name else self._paths[number])
            at += 16 + length
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path / "mounted"], check=False, stderr=subprocess.DEVNULL, timeout=60)


def asked(path: Path) -> list[MappedFile]:
    """Asks as a home does: by a guess that is right, and one that is wrong."""
    size = path.stat().st_size if path.exists() else 0
    right = path.read_bytes() if path.is_file() else b""
    return [MappedFile(str(path), len(right), hashlib.sha256(right).hexdigest()), MappedFile(str(path), size, "0" * 64)]


def test_only_files_that_all_users_may_read_are_opened(place: Path) -> None:
    modes = {"everybody": 0o644, "owner": 0o600, "group": 0o640, "nobody": 0o000}
    for name, mode in modes.items():
        (place / name).write_bytes(CONTENT)
        (place / name).chmod(mode)
    (place / "shut").mkdir(mode=0o700)
    (place / "shut" / "file").write_bytes(CONTENT)
    (place / "link").symlink_to("everybody")
    os.mkfifo(place / "pipe", 0o666)
    os.mknod(place / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    paths = [place / name for name in (*modes, "shut", "shut/file", "pipe", "null")]
    questions = {path: asked(path) for path in (*paths, place / "link", place / "absent")}
    watch = Watch(*paths)
    for path, files in questions.items():
        for file in files:
            store = FileStore(place / "cache")
            assert (store.find(file) is not None) == (path.name == "everybody" and file is files[0]), path
            store.close()
    assert watch.seen() == {place / "everybody"}


def test_a_file_system_of_another_kind_is_not_even_entered(place: Path) -> None:
    for kind, options in (("proc", ""), ("sysfs", ""), ("tmpfs", "size=1m")):
        (place / "mounted").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", kind, *(["-o", options] if options else []), kind, place / "mounted"], check=True, timeout=60)
        if kind == "tmpfs":
            (place / "mounted" / "file").write_bytes(CONTENT)
        file = place / "mounted" / {"proc": "version", "sysfs": "kernel/profiling", "tmpfs": "file"}[kind]
        if kind == "tmpfs":
            found = find_public(str(file))
            opened = open_public(found)
            assert os.read(opened, 100) == CONTENT
            os.close(opened)
            os.close(found)
        else:
            with pytest.raises(PermissionError, match="another kind"):
                find_public(str(file))
        subprocess.run(["umount", place / "mounted"], check=True, timeout=60)


FUSE = """
import os, struct, sys
fuse = os.open("/dev/fuse", os.O_RDWR)
import ctypes
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if ctypes.CDLL(None).mount(b"asking", sys.argv[1].encode(), b"fuse", 0, options): raise OSError
print("ready", flush=True)
while True:
    request = os.read(fuse, 1 << 20)
    size, opcode, unique = struct.unpack_from("IIQ", request)
    print(opcode, flush=True)
    if opcode == 26:
        os.write(fuse, struct.pack("IiQ IIII HHIIHHI", 16 + 40, 0, unique, 7, 31, 65536, 0, 0, 0, 65536, 0, 0, 0, 0))
    else:
        os.write(fuse, struct.pack("IiQ", 16, -5, unique))
"""


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here")
def test_a_file_system_that_is_a_program_is_asked_nothing(place: Path) -> None:
    (place / "mounted").mkdir()
    with subprocess.Popen(["python3", "-c", FUSE, place / "mounted"], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        (place / "link").symlink_to("mounted/file")
        for path in (place / "mounted" / "file", place / "mounted" / "in" / "file", place / "mounted", place / "link"):
            assert FileStore(place / "cache").find(MappedFile(str(path), 5, "0" * 64)) is None
        program.kill()
        said = program.stdout.read().split()
    assert set(said) <= {"26"}, said  # FUSE_INIT, which mount has asked


def test_the_asking_process_has_its_own_identity_again(place: Path) -> None:
    (place / "file").write_bytes(CONTENT)
    before = os.getgroups(), len(os.listdir("/proc/self/fd"))
    for name in ("file", "absent", "cache"):
        try:
            os.close(find_public(str(place / name)))
        except OSError:
            pass
    assert (os.getgroups(), len(os.listdir("/proc/self/fd"))) == before
    assert (place / "file").stat().st_uid == os.geteuid()
    (place / "own").write_text("still root's")
    assert (place / "own").stat().st_uid == os.geteuid()
