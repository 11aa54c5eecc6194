"""A thread that reads its answer late, because its processor is busy, after what the answer reports has changed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.mfs.nodes import PYTHON, Pair, until

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing runs while the asking thread must not"),
]
DELAY = 0.2
"""Seconds that a packet takes: the answer is under way for as long, and the thread must not run when it arrives."""
BUSY = 0.8
"""Seconds for which the processor of the asking thread is busy: less than Linux lets a real-time program run at a stretch."""
PROCESSOR = str(max(os.sched_getaffinity(0)))
HOG = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    pass
"""
ASKER = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
directory = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECTORY)
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[3] == "list":
    os.listdir(directory)
elif sys.argv[3] == "stat":
    os.stat("file", dir_fd=directory)
else:
    file = os.open("file", os.O_RDONLY, dir_fd=directory)
print("asked", flush=True)
sys.stdin.readline()
if sys.argv[3] == "open":
    print(os.fstat(file).st_size, os.pread(file, 100, 0), flush=True)
else:
    print(os.stat("file", dir_fd=directory).st_size, flush=True)
"""
APPEND = """
import os, sys
os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND), b"changed at home\\n")
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """With files at n1 that have been quiet for so long that a peer may remember them."""
    made = Pair(delay=DELAY, timeout=10)
    try:
        for how in SEEN:
            made.sh(1, f"mkdir /tmp/{how} && printf before > /tmp/{how}/file")
        until(lambda: made.sh(2, "ls /mfs/n1/tmp"), "files of n1 on n2")
        time.sleep(1.5)
        yield made
    finally:
        made.lab.down()


SEEN = {"open": "22 b'beforechanged at home\\n'", "stat": "22", "list": "22"}


@pytest.mark.parametrize("how", SEEN)
def test_what_has_changed_while_the_answer_was_unread_is_not_remembered(pair: Pair, how: str) -> None:
    # Outside of the node, whose programs may not be real-time ones.
    hog = subprocess.Popen([PYTHON, "-c", HOG, PROCESSOR, str(BUSY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asker = pair.start(2, ASKER, PROCESSOR, f"/mfs/n1/tmp/{how}", how)
    try:
        assert hog.stdout.readline() == asker.stdout.readline() == "ready\n"
        asker.stdin.write("\n")
        asker.stdin.flush()
        time.sleep(DELAY)  # the question has left
        hog.stdin.write("\n")
        hog.stdin.flush()
        time.sleep(DELAY * 1.5)  # the answer has left home
        pair.python(1, APPEND, f"/tmp/{how}/file")
        assert asker.stdout.readline() == "asked\n"
        said, _ = asker.communicate("\n", timeout=30)
        assert said.strip() == SEEN[how]
    finally:
        hog.kill()
        asker.kill()
        hog.wait()
        asker.wait()
