"""Measurements of a node's owner: input, load, battery, pressure; with real files, pipes and counters."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from balancer.load.load import Pressure
from node.owner import pressure
from node.owner.owner import LEAST_WINDOW, WINDOW, InputWatch, OwnLoad, Programs, battery, logins
from node.owner.pressure import PressureWatch
from tests.node.nodes import wait_for


def test_logins_are_those_that_who_shows(tmp_path: Path) -> None:
    record = struct.Struct("=hxxi32s4s32s256s2h3i16s20x")
    kinds = ((2, 100), (7, 200), (8, 300), (7, 1_700_000_000), (6, 400))  # of boot, users, a user who has logged out, a login prompt
    records = [record.pack(kind, 1, b"pts/0", b"ts/0", b"anna", b"", 0, 0, 0, second, 5, bytes(16)) for kind, second in kinds]
    file = tmp_path / "utmp"
    file.write_bytes(b"".join(records) + b"cut")
    assert logins(file) == [200.0, 1_700_000_000.0]
    assert subprocess.run(["who", file], text=True, capture_output=True, check=True, timeout=60).stdout.count("anna") == 2
    with pytest.raises(OSError):
        logins(tmp_path / "none")


def test_a_file_that_is_touched_is_use_by_the_owner(tmp_path: Path) -> None:
    watch, file = InputWatch(lambda: None), tmp_path / "used"
    watch.configure((str(file),), logins=False)
    assert watch.last_use() is None
    file.touch()
    os.utime(file, (1000.0, 2000.0))
    assert watch.last_use() == 2000.0
    os.utime(file, (3000.0, 2000.0))
    assert watch.last_use() == 3000.0
    file.unlink()
    assert watch.last_use() == 3000.0


def test_a_device_reports_input_at_once(tmp_path: Path) -> None:
    device = tmp_path / "event0"
    os.mkfifo(device)

    async def use() -> tuple[float | None, float | None]:
        used = asyncio.Event()
        watch = InputWatch(used.set, (str(tmp_path), "event*"))
        watch.configure(None, logins=False)
        keyboard = os.open(device, os.O_RDWR)
        try:
            watch.last_use()
            os.write(keyboard, b"a key")
            async with asyncio.timeout(10):
                await used.wait()
            seen = watch.last_use()
        finally:
            os.close(keyboard)
            watch.close()
        return seen, time.time()

    seen, now = asyncio.run(use())
    assert seen is not None and now is not None
    assert abs(now - seen) < 60


def test_the_owners_load_excludes_guests_and_farhome() -> None:
    used = {"node": 100.0, "guests": 10.0, "own": 1.0}
    load = OwnLoad(lambda: used["node"], lambda: used["guests"], lambda: used["own"])
    assert load.sample(0.0) == (None, None)
    used.update(node=100.2, guests=10.1, own=1.05)
    assert load.sample(WINDOW) == pytest.approx((0.5, 0.5))
    used.update(node=100.4, guests=10.3)
    assert load.sample(2 * WINDOW) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert OwnLoad(lambda: None, lambda: 1.0, lambda: 1.0).sample(0.0) == (None, None)


def test_an_owners_new_work_is_seen_before_it_counts() -> None:
    used = [0.0]
    load = OwnLoad(lambda: used[0], lambda: 0.0, lambda: 0.0)
    quarter = WINDOW / 4
    for number in range(5):
        load.sample(number * quarter)
    seen = []
    for number in range(5, 9):
        used[0] += quarter
        seen.append(load.sample(number * quarter))
    assert [round(average or 0.0, 2) for average, _ in seen] == [0.25, 0.5, 0.75, 1.0]
    assert [surge for _, surge in seen] == pytest.approx([1.0] * 4)
    assert load.sample(8 * quarter + LEAST_WINDOW / 2)[1] is None


def test_the_usage_of_programs_is_kept_after_their_end() -> None:
    busy = subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"])
    pids = [busy.pid]
    programs = Programs(lambda: pids)

    def others() -> float:
        return programs.cpu() - time.process_time()

    begun = others()
    try:
        wait_for(lambda: others() - begun > 0.02, message="it computes")
    finally:
        busy.kill()
        busy.wait(10)
    pids.clear()
    assert others() - begun > 0.019


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, (None, None)),
        ({"AC": {"type": "Mains", "online": "1"}}, (None, None)),
        ({"BAT0": {"type": "Battery", "status": "Discharging", "capacity": "80"}}, (True, 0.8)),
        ({"BAT0": {"type": "Battery", "status": "Discharging", "capacity": "80"}, "AC": {"type": "Mains", "online": "1"}}, (False, 0.8)),
        ({"BAT0": {"type": "Battery", "capacity": "20"}, "BAT1": {"type": "Battery", "status": "Full", "capacity": "100"}}, (False, 0.6)),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging", "capacity": "5"}}, (None, None)),
    ],
)  # fmt: skip
def test_battery(tmp_path: Path, supplies: dict[str, dict[str, str]], expected: tuple[bool | None, float | None]) -> None:
    for name, files in supplies.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text + "\n")
    assert battery(tmp_path) == pytest.approx(expected)


def test_without_a_trigger_the_counters_are_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "POLL", 0.0)

    def stalled(total: int) -> None:
        for resource in pressure.RESOURCES:
            text = f"some avg10=12.50 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
            (tmp_path / f"{resource}.pressure").write_text(text)

    async def watch() -> list[bool]:
        seen = PressureWatch(tmp_path)
        seen.start()
        assert not seen.is_armed
        stalled(1000)
        found = [seen.is_pressed()]
        stalled(1000 + pressure.STALL_US)
        found.append(seen.is_pressed())
        seen.close()
        return found

    assert asyncio.run(watch()) == [False, True]
    assert pressure.figures(tmp_path / "io.pressure") == (0.125, 1000 + pressure.STALL_US)


def test_processor_waits_are_those_since_the_last_sample_and_memory_waits_an_average(tmp_path: Path) -> None:
    now = [10.0]
    waits = pressure.Waits(tmp_path, lambda: now[0])
    assert waits.poll() == Pressure()

    def write_pressure(cpu_us: int) -> None:
        (tmp_path / "cpu.pressure").write_text(f"some avg10=50.00 avg60=1.00 avg300=0.00 total={cpu_us}\n")

    for name in ("memory", "io"):
        lines = "some avg10=40.00 avg60=1.00 avg300=0.00 total=7\nfull avg10=12.50 avg60=1.00 avg300=0.00 total=5\n"
        (tmp_path / f"{name}.pressure").write_text(lines)
    write_pressure(1_000_000)
    assert waits.poll() == Pressure(cpu=0.5, memory=0.4, memory_full=0.125, io_full=0.125)
    now[0] += 2
    write_pressure(1_500_000)
    assert waits.poll().cpu == 0.25
    now[0] += 2
    assert waits.poll().cpu == 0.0
    (tmp_path / "memory.pressure").write_text("nonsense\n")
    assert waits.poll().memory_full is None


def test_the_kernel_here_arms_triggers_over_two_seconds() -> None:
    async def armed() -> bool:
        seen = PressureWatch()
        seen.start()
        found = seen.is_armed
        assert seen.is_pressed() in (True, False)
        seen.close()
        return found

    if not pressure.file_of("memory", pressure.directory()).exists():
        pytest.skip("the kernel does not report pressure")
    assert asyncio.run(armed())
