"""Measurements that a node makes of itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = """
import subprocess, sys, time
from node.common.sampling import RunnableThreads

THREADS = '''
import threading, zlib
data = bytes(1 << 26)
def compute():
    while True:
        zlib.crc32(data)
for _ in range(2):
    threading.Thread(target=compute).start()
'''
subprocess.Popen(["sleep", "60"])
subprocess.Popen([sys.executable, "-c", THREADS])
one = subprocess.Popen(["sh", "-c", "while :; do :; done"])
other = subprocess.Popen(["perl", "-e", "$0 = 'a ) R 1'; 1 while 1"])
counters = RunnableThreads(lambda: []), RunnableThreads(lambda: [one.pid])
for counter in counters:
    counter.start()
end, found = time.monotonic() + 10, [0, 0]
while found != [4, 3] and time.monotonic() < end:
    time.sleep(0.05)
    for number, counter in enumerate(counters):
        for _, found[number] in counter.take():
            pass
for counter in counters:
    counter.stop()
print(*found)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="pid namespaces are made by root")
@pytest.mark.timeout(30)
def test_runnable_threads_of_a_virtual_node_are_its_own() -> None:
    """Two programs that compute, one of which has a name that resembles a state; one with two threads that do; one that sleeps. The
    counter itself counts as nothing."""
    made = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", COUNT],
        capture_output=True, text=True, timeout=25, check=False,
    )  # fmt: skip
    assert made.stdout == "4 3\n", made.stderr
