"""Out and hop by images, without link: real programs go on in a sandbox as if nothing had happened."""

from __future__ import annotations

import os
import select
import struct
from pathlib import Path

import pytest

from engine.context import capture
from engine.criu import criu, images
from engine.criu.forkcopy import fork_copy
from engine.pour.arrival import drop_capabilities, install_filter
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process import seizing
from kernel_helpers.process.injection import native
from kernel_helpers.process.syscalls import SYS
from remote.sandbox.sandbox import Sandbox
from tests.engine.support import (
    PYTHON_COUNTER,
    counts_on,
    descendants,
    images_of,
    restored,
    running,
    shown_files,
)
from tests.remote.ids import own_ids

NOTIFY_GETPPID = b"".join(
    struct.pack("<HBBI", *row) for row in [(0x20, 0, 0, 0), (0x15, 0, 1, SYS.getppid), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000)]
)


def _status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def who(pid: int) -> tuple[object, ...]:
    found = capture.identity(pid)
    return found.uids, found.gids, found.groups


def _inner_threads(pid: int) -> list[int]:
    return sorted(criu.innermost(int(tid)) for tid in os.listdir(f"/proc/{pid}/task"))


@pytest.mark.parametrize("user", [None, "farhome-a"])
@pytest.mark.parametrize("kind", ["counter", "threads", "python"])
def test_process_goes_on_in_a_sandbox_with_its_own_ids(kind: str, user: str | None, counter: str, tmp_path: Path) -> None:
    argv = {"counter": [counter], "threads": [counter, "4"], "python": ["/usr/bin/python3", "-c", PYTHON_COUNTER]}[kind]
    threads = 4 if kind == "threads" else 1
    before = descendants()
    with running(argv, user) as program:
        counts_on(program, threads=threads)
        images_of(program.pid, tmp_path / "images")
        counts_on(program, threads=threads)
        with restored(program.pid, shown_files(program.pid), tmp_path / "images") as (_, guest):
            at_freeze = list(program.report(guest.pid).count)
            assert all(at_freeze[i] > 0 for i in range(threads))
            assert _inner_threads(guest.pid) == sorted(int(tid) for tid in os.listdir(f"/proc/{program.pid}/task"))
            assert os.listdir(f"/proc/{guest.pid}/fd") == []
            drop_capabilities(guest)
            home, away = _status(program.pid), _status(guest.pid)
            for key in ("SigCgt", "SigIgn", "NoNewPrivs", "Name"):
                assert away[key] == home[key], key
            assert who(guest.pid) == who(program.pid)
            assert set(away["Uid"].split()).isdisjoint(home["Uid"].split()), "its ids are in use here"
            assert int(away["CapEff"], 16) == int(away["CapPrm"], 16) == 0
            assert list(program.report(guest.pid).count) == at_freeze, "it ran before it was let go"
            guest.detach()
            counts_on(program, guest_pid := guest.pid, threads=threads)
            assert _status(guest_pid)["SigBlk"] == home["SigBlk"]
            assert program.report(guest_pid).signals == 0
        counts_on(program, threads=threads)
    assert descendants() == before


@pytest.mark.parametrize("user", [None, "farhome-a"])
def test_hop_takes_a_guest_and_leaves_its_filter(user: str | None, counter: str, tmp_path: Path) -> None:
    with running([counter, "3"], user) as program:
        counts_on(program, threads=3)
        shown = shown_files(program.pid)
        images_of(program.pid, tmp_path / "first")
        with restored(program.pid, shown, tmp_path / "first") as (here, guest):
            listener = install_filter(guest, NOTIFY_GETPPID)
            drop_capabilities(guest)
            for thread in guest.threads:
                assert _status(thread)["Seccomp_filters"] == "1" and _status(thread)["NoNewPrivs"] == "0"
            guest.detach()
            counts_on(program, guest.pid, threads=3)
            images_of(guest.pid, tmp_path / "second", here, native.PTRACE_O_SUSPEND_SECCOMP)
            counts_on(program, guest.pid, threads=3)
            assert _status(guest.pid)["Seccomp_filters"] == "1"
            with restored(program.pid, shown, tmp_path / "second") as (_, again):
                assert _inner_threads(again.pid) == sorted(int(tid) for tid in os.listdir(f"/proc/{program.pid}/task"))
                assert _status(again.pid)["Seccomp"] == "0"
                assert all(a > 0 for a in list(program.report(again.pid).count)[:3])
                again.detach()
                counts_on(program, again.pid, threads=3)
            os.close(listener)


def test_the_listener_is_notified_of_the_guests_calls(tmp_path: Path) -> None:
    source = """
import ctypes, os
count = (ctypes.c_long * 16)()
print(hex(ctypes.addressof(count)), flush=True)
while True: os.getppid() if count[0] > 5 else None; count[0] += 1
"""
    with running(["/usr/bin/python3", "-c", source]) as program:
        images_of(program.pid, tmp_path / "images")
        with restored(program.pid, shown_files(program.pid), tmp_path / "images") as (_, guest):
            listener = install_filter(guest, NOTIFY_GETPPID)
            assert not select.select([listener], [], [], 0)[0], "injected calls went through the filter"
            guest.detach()
            assert select.select([listener], [], [], 10)[0]
            os.close(listener)


def test_changed_file_is_refused_by_name(counter: str, tmp_path: Path) -> None:
    with running([counter]) as program:
        images_of(program.pid, tmp_path / "images")
        shown = [(path, local if path != counter else "/bin/true") for path, local in shown_files(program.pid)]
        with pytest.raises(FarhomeError, match="bad size"), restored(program.pid, shown, tmp_path / "images"):
            pass
        counts_on(program)


def test_failing_dump_says_why_and_leaves_the_process(counter: str, tmp_path: Path) -> None:
    before = descendants()
    with running([counter]) as program:
        with seizing.seize(program.pid) as frozen:
            copy = fork_copy(frozen)
            try:
                with pytest.raises(FarhomeError, match="CRIU"):
                    criu.dump(copy, tmp_path / "nowhere")
            finally:
                copy.discard()
        counts_on(program)
    assert descendants() == before


def test_damaged_images_are_refused(counter: str, tmp_path: Path) -> None:
    with running([counter]) as program:
        images_of(program.pid, tmp_path / "images")
        (tmp_path / "images" / f"mm-{program.pid}.img").write_bytes(b"garbage")
        with pytest.raises(FarhomeError), restored(program.pid, shown_files(program.pid), tmp_path / "images"):
            pass
        (tmp_path / "images" / "pstree.img").write_bytes(b"\0" * 40)
        with pytest.raises(FarhomeError, match="no image"):
            images.thread_ids(tmp_path / "images")


def test_renumbering_swaps_ids_that_overlap(counter: str, tmp_path: Path) -> None:
    with running([counter, "3"]) as program:
        images_of(program.pid, tmp_path / "images")
        ids = sorted(set(images.thread_ids(tmp_path / "images")))
        turned = dict(zip(ids, ids[1:] + ids[:1], strict=True))
        contents = {tid: (tmp_path / "images" / f"core-{tid}.img").read_bytes() for tid in ids}
        images.renumber(tmp_path / "images", (program.pid, turned[program.pid]), turned)
        for old, new in turned.items():
            assert (tmp_path / "images" / f"core-{new}.img").read_bytes() == contents[old]
        assert sorted(set(images.thread_ids(tmp_path / "images"))) == ids


def test_telling_line() -> None:
    log = "(00.01) Error (criu/tun.c:85): tun: Unable to create tun: x\n(00.02)  12: Error (criu/files-reg.c:1): File x has bad size\n"
    log += "(00.03) Error (criu/cr.c:2): Restoring FAILED.\n"
    assert criu.telling_line(log) == "File x has bad size"
    assert criu.telling_line("just words\n") == "just words"
    assert criu.telling_line("") == ""


def test_sandbox_of_pid_that_is_taken_by_criu_itself(counter: str, tmp_path: Path) -> None:
    """Small pids (of a fresh pid namespace) are those that CRIU and its helpers would get."""
    with running([counter, "4"]) as program:
        images_of(program.pid, tmp_path / "images")
        ids = sorted(set(images.thread_ids(tmp_path / "images")))
        small = {tid: 2 + index for index, tid in enumerate(ids)}
        images.renumber(tmp_path / "images", (program.pid, small[program.pid]), small)
        sandbox = Sandbox.create("small", shown_files(program.pid), images=tmp_path / "images", identities=own_ids())
        try:
            guest = criu.restore(tmp_path / "images", sandbox, small[program.pid])
            assert _inner_threads(guest) == sorted(small.values())
        finally:
            sandbox.destroy()
