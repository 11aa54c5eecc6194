"""Connections that have a MAC and are not encrypted: large and small data, in pieces of every size, with every failure on the way."""

from __future__ import annotations

import errno
import hashlib
import random
from collections.abc import Iterator

import pytest

from tests.mfs.nodes import Pair
from tests.sanitizers.slower import bound

SHADOW = r"""
import os, random, sys
rng, path = random.Random(int(sys.argv[2])), sys.argv[1]
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
end = os.open(path, os.O_WRONLY | os.O_APPEND)
shadow = bytearray()
def size():
    return rng.choice([rng.randrange(1, 5000), rng.randrange(60_000, 70_000), rng.randrange(1, 2_500_000), 65536, 1 << 20])
for step in range(120):
    what, count = rng.choice(["write", "write", "read", "read", "cold", "append", "cut", "both"]), size()
    place = rng.randrange(0, len(shadow) + 100_000) if rng.random() < 0.7 else rng.randrange(0, len(shadow) // 4096 + 1) * 4096
    data = rng.randbytes(count)
    if what == "write":
        shadow.extend(bytes(max(0, place + count - len(shadow))))
        shadow[place:place + count] = data
        assert os.pwrite(file, data, place) == count
    elif what == "append":
        shadow += data
        assert os.write(end, data) == count
    elif what == "cut":
        place = min(place, len(shadow))
        del shadow[place:]
        os.ftruncate(file, place)
    elif what == "both":
        place = min(place, len(shadow))
        shadow[place:place + count] = data
        assert os.pwritev(file, [data[:1000], data[1000:]], place) == count
    else:
        if what == "cold":
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file, count, place) == shadow[place:place + count], (step, what, place, count)
    if len(shadow) > 12_000_000:
        del shadow[5000:]
        os.ftruncate(file, 5000)
assert os.fstat(file).st_size == len(shadow)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(file, len(shadow) + 1, 0) == shadow
import hashlib
print(hashlib.sha256(shadow).hexdigest())
"""
RECORD = 300_000
APPEND = f"""
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for number in range(20):
    assert os.write(file, (sys.argv[2] * {RECORD}).encode()) == {RECORD}
"""
FILL = """
import errno, os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o644)
done, end = 0, None
while end is None:
    try:
        done += os.write(file, bytes([done // 1000 % 251]) * 700_000)
    except OSError as error:
        end = error.errno
os.close(file)
os.unlink(sys.argv[1])
with open(sys.argv[1], "wb") as file:
    file.write(b"x" * 500_000)
print(end, done)
"""
OBSERVE = """
import os, sys, time
file, end, seen = os.open(sys.argv[1], os.O_RDONLY), time.monotonic() + float(sys.argv[2]), set()
while time.monotonic() < end and len(seen) < 40:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    data = os.pread(file, 1 << 20, 0)
    pages = [data[at:at + 4096] for at in range(0, len(data), 4096)]
    assert all(len(set(page)) <= 4 for page in pages), "natively too a page may be of one write and the next"
    seen |= {page[0] for page in pages}
print(len(seen))
"""
CHANGE = """
import os, sys, time
file, end, number = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644), time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    number += 1
    os.ftruncate(file, number % 256 * 4096)
    os.pwrite(file, bytes([number % 255 + 1]) * (1 << 20), 0)
"""
COPY = """
import errno, os, random, sys
rng = random.Random(9)
with open(sys.argv[1], "wb", buffering=0) as file:
    for number in range(150):
        data, done = rng.randbytes(1 << 20), 0
        while done < 1 << 20:
            try:
                done += os.pwrite(file.fileno(), data[done:], (number << 20) + done)
            except OSError as error:
                assert error.errno == errno.EIO  # the server was killed in the middle of it, and whether it was written is unknown
        if number % 10 == 0:
            print(number, flush=True)
"""

READ = """
import hashlib, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
for count in range(int(sys.argv[2])):
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    digest, place, step = hashlib.sha256(), 0, (1 << 20) - count % 3 * 5000
    while data := os.pread(file, step, place):
        digest.update(data)
        place += len(data)
    print(digest.hexdigest(), flush=True)
"""

WRITE = """
import hashlib, os, random, sys, time
rng, end, digest, place = random.Random(3), time.monotonic() + float(sys.argv[2]), hashlib.sha256(), 0
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
while time.monotonic() < end and place < 200 << 20:
    data = rng.randbytes(rng.choice([1 << 20, (1 << 20) - 5000, 70_001, 3000]))
    assert os.pwrite(file, data, place) == len(data)
    digest.update(data)
    place += len(data)
print(digest.hexdigest())
"""
MAPPED = """
import mmap, os, sys
path, writes_first = sys.argv[1], sys.argv[2] == "before"
def writer():
    return os.open(path, os.O_WRONLY)
def reader():
    file = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(file, 1 << 20, prot=mmap.PROT_READ)
    finally:
        os.close(file)    # so that no process has it open when a round begins
for number in range(1, 41):
    file, pages = (writer(), reader()) if writes_first else (reader(), writer())[::-1]
    for step in (1, 2, 3):
        pages[:: 4096]
        at = number * 5 % 180 * 4096
        assert os.pwrite(file, bytes([number + step]) * 300_000, at) == 300_000
        assert pages[at : at + 300_000] == bytes([number + step]) * 300_000, (number, step)
    os.close(file)
    pages.close()
print("the same")
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    pair = Pair(encryption=False, timeout=round(bound(10)))  # links are cut, and TCP takes its time afterwards
    yield pair
    pair.lab.down()


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    yield shared
    for node in shared.nodes:
        node.run("umount /tmp/small; rm -rf /tmp/*")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_files_hold_the_written_data_and_are_read_unchanged(pair: Pair, seed: int) -> None:
    printed = pair.python(1, SHADOW, "/mfs/n2/tmp/file", str(seed), timeout=60).strip()
    assert hashlib.sha256((pair[2].root / "tmp/file").read_bytes()).hexdigest() == printed


def test_records_appended_by_both_nodes_stay_whole(pair: Pair) -> None:
    both = [pair.start(1, APPEND, "/mfs/n2/tmp/file", "a"), pair.start(2, APPEND, "/tmp/file", "b")]
    assert [process.wait(30) for process in both] == [0, 0]
    data = (pair[2].root / "tmp/file").read_bytes()
    records = sorted({data[at : at + RECORD] for at in range(0, len(data), RECORD)})
    assert (len(data), records) == (40 * RECORD, [b"a" * RECORD, b"b" * RECORD])


def test_a_disk_that_is_full_is_an_error_and_nothing_is_left_on_the_way(pair: Pair) -> None:
    pair.sh(2, "mkdir /tmp/small && mount -t tmpfs -o size=5m none /tmp/small")
    error, done = map(int, pair.python(1, FILL, "/mfs/n2/tmp/small/file").split())
    assert (error, done) == (errno.ENOSPC, 5 << 20)
    assert (pair[2].root / "tmp/small/file").read_bytes() == b"x" * 500_000


def test_reads_during_truncations_and_writes_give_no_error(pair: Pair) -> None:
    pair.sh(2, "truncate -s 0 /tmp/file")
    changes = pair.start(2, CHANGE, "/tmp/file", "100")
    try:
        assert int(pair.python(1, OBSERVE, "/mfs/n2/tmp/file", "25")) >= 40, "so many writes it has seen"
        assert changes.poll() is None
    finally:
        changes.kill()
        changes.wait(20)


@pytest.mark.parametrize("what", ["server", "link"])
def test_a_break_in_the_middle_of_a_copy_loses_nothing(pair: Pair, what: str) -> None:
    copies = pair.start(1, COPY, "/mfs/n2/tmp/file")
    assert copies.stdout is not None
    for number, _ in enumerate(iter(copies.stdout.readline, "")):
        if what == "link" and number in (3, 9):
            pair.lab.cut("n1", "n2", 0.3)
        elif what == "server" and number in (3, 9):
            pair.kill(pair[2], "server")
    assert copies.wait(30) == 0
    expected, rng = hashlib.sha256(), random.Random(9)
    for _ in range(150):
        expected.update(rng.randbytes(1 << 20))
    assert hashlib.sha256((pair[2].root / "tmp/file").read_bytes()).digest() == expected.digest()


@pytest.fixture
def large(pair: Pair) -> str:
    """Returns the checksum of the file that n2 shows."""
    data = random.Random(5).randbytes(20_000_001)
    (pair[2].root / "tmp/file").write_bytes(data)
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [1500, pytest.param(3000, marks=pytest.mark.soak), 65536])
def test_data_in_packets_of_any_size_is_read_correctly(pair: Pair, large: str, size: int) -> None:
    pair.sh(2, f"ip link set eth0 gso_max_size {size}")
    try:
        assert set(pair.python(1, READ, "/mfs/n2/tmp/file", "12").split()) == {large}
    finally:
        pair.sh(2, "ip link set eth0 gso_max_size 65536")


@pytest.mark.parametrize("size", [1500, pytest.param(3000, marks=pytest.mark.soak), 65536])
def test_written_data_arrives_in_pieces_of_every_size(pair: Pair, size: int) -> None:
    pair.sh(1, f"ip link set eth0 gso_max_size {size}")
    try:
        printed = pair.python(1, WRITE, "/mfs/n2/tmp/file", "1").strip()
    finally:
        pair.sh(1, "ip link set eth0 gso_max_size 65536")
    assert hashlib.sha256((pair[2].root / "tmp/file").read_bytes()).hexdigest() == printed


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_mapping_shows_writes_through_a_descriptor(pair: Pair, when: str) -> None:
    pair.sh(2, "truncate -s 2M /tmp/file")
    assert pair.python(1, MAPPED, "/mfs/n2/tmp/file", when, timeout=60) == "the same\n"


@pytest.mark.parametrize("what", ["server", "link"])
@pytest.mark.parametrize(
    ("count", "breaks"), [(24, (3, 10, 17)), pytest.param(60, (5, 20, 40), marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_reads_during_breaks_return_the_files_content(pair: Pair, large: str, count: int, breaks: tuple[int, ...], what: str) -> None:
    reads = pair.start(1, READ, "/mfs/n2/tmp/file", str(count))
    assert reads.stdout is not None
    printed = []
    for number, line in enumerate(iter(reads.stdout.readline, "")):
        printed.append(line.strip())
        if number in breaks:
            if what == "link":
                pair.lab.cut("n1", "n2", 0.2)
            else:
                pair.kill(pair[2], "server")
    assert reads.wait(30) == 0
    assert printed == [large] * count
