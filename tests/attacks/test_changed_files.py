"""An attacker who can change packets between a mount under `/mfs` and the node whose files it shows can only cut its connections, also if
both nodes have given encryption up: every operation is done once, and what is read is what is there."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernel_helpers.common.library import build_directory
from tests.mfs.nodes import until
from tests.mfs.served import Served
from tests.wire.relay import Relay

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(os.geteuid() != 0, reason="to mount needs root")]
BREAKS = 12
SIZE = 1_000_000
#: Appends a line, and reads a file anew, until the test says that it is enough.
PROGRAM = f"""
import os, random, sys
place, end = sys.argv[1:]
expected = random.Random(5).randbytes({SIZE})
lines = os.open(place + "/lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
kept = os.open(place + "/kept", os.O_RDONLY)
number = 0
while not os.path.exists(end):
    line = b"line %d\\n" % number
    assert os.write(lines, line) == len(line)
    number += 1
    if number % 20 == 0:
        os.posix_fadvise(kept, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(kept, len(expected), 0) == expected, "something else was read"
print(number)
"""


class Mount:
    """A mount of n1's files, which passes a relay."""

    def __init__(self, area: Path, served: Served, relay: Relay, *, plain: bool) -> None:
        self.place, self._figures = area / "mounted", area / "figures"
        self.place.mkdir()
        host, port = relay.address
        self.client = subprocess.Popen(
            [build_directory() / "mfs-client", "--mount", self.place, "--peer", "n1", "--address", host, "--port", str(port),
             "--pki", served.others.directory, "--figures", self._figures, "--timeout", "20", *(["--plain"] if plain else [])],
            stdin=subprocess.PIPE,
        )  # fmt: skip
        until(self.place.is_mount, "the mount")

    def figures(self) -> tuple[int, int]:
        """Returns how often it has connected, and how many bytes have come."""
        figures = struct.unpack_from("<4Q", self._figures.read_bytes())
        return figures[3], figures[1]

    def close(self) -> None:
        assert self.client.stdin is not None
        self.client.stdin.close()
        try:
            self.client.wait(10)
        finally:
            subprocess.run(["umount", "-l", self.place], check=False, stderr=subprocess.DEVNULL, timeout=10)
            self.client.kill()
            self.client.wait(10)


@contextmanager
def mounted(area: Path, *, plain: bool) -> Iterator[tuple[Mount, Relay]]:
    (area / "keys").mkdir()
    shown = area / "shown"
    served = Served(area / "keys", [shown])
    try:
        served.kill()
        served.start(*(["--plain"] if plain else []))
        relay = Relay(("127.0.0.1", served.port))
        try:
            mount = Mount(area, served, relay, plain=plain)
            try:
                yield mount, relay
            finally:
                mount.close()
        finally:
            relay.close()
    finally:
        served.kill()


@pytest.fixture
def area(tmp_path: Path) -> Path:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "kept").write_bytes(random.Random(5).randbytes(SIZE))
    return tmp_path


@pytest.mark.parametrize("plain", [pytest.param(True, marks=pytest.mark.soak), False], ids=["both have given encryption up", "as shipped"])
def test_a_changed_byte_ends_the_connection_and_each_operation_is_done_once(area: Path, plain: bool) -> None:
    chance, shown, end = random.Random(24), area / "shown", area / "end"
    with mounted(area, plain=plain) as (mount, relay):
        place = f"{mount.place}{shown}"
        with subprocess.Popen([sys.executable, "-c", PROGRAM, place, end], stdout=subprocess.PIPE, text=True) as program:
            try:
                for number in range(BREAKS):
                    connections, came = mount.figures()
                    until(lambda came=came: mount.figures()[1] > came + 2 * SIZE or program.poll() is not None, "work goes on", 30)
                    relay.flipped.clear()
                    relay.flips[number % 2] = chance.randrange(50_000)
                    until(lambda: relay.flipped.is_set() or program.poll() is not None, "a byte is changed", 30)
                    until(lambda count=connections: mount.figures()[0] > count or program.poll() is not None, "the change is noticed", 30)
                    assert program.poll() is None, "the program got an error"
                end.touch()
                printed, _ = program.communicate(timeout=30)
            finally:
                program.kill()
        assert program.returncode == 0
        assert (shown / "lines").read_bytes() == b"".join(b"line %d\n" % number for number in range(int(printed)))
        assert (b"line 7\n" in relay.seen[0]) == plain
