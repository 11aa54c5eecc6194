"""What moving a process by hand takes: `criu dump`, its images over the network, `criu restore`; inside two nodes.

    python plain_criu.py start PID PROGRAM [ARGUMENT...]     the program gets that process id, which is free on the other node
    python plain_criu.py target DIRECTORY ADDRESS CRIU...    prints the port, takes the images, restores, says so
    python plain_criu.py source PID DIRECTORY ADDRESS PORT CRIU...
                                       dumps, sends, waits for the word; prints {"dump": ms, "copy": ms, "restore": ms, "frozen": ms}

Both sides run, and are connected, before the dump begins; the images lie in memory: no disk is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

_HEAD = struct.Struct("!HQ")
COMMON = ("-v1", "--manage-cgroups=ignore", "--file-validation", "filesize")


def start(pid: int, argv: list[str]) -> None:
    """Starts the program in a session of its own, with no descriptor that is not /dev/null. Errors: RuntimeError."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/"
    )
    if child.pid != pid:
        child.kill()
        raise RuntimeError(f"process id {pid} is taken")
    child.returncode = 0  # it outlives us


def criu(words: list[str], directory: Path) -> None:
    """Runs CRIU with its images in `directory`. Errors: RuntimeError."""
    done = subprocess.run([*words, *COMMON, "-D", str(directory)], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr).strip() or f"criu ended with {done.returncode}")


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. Errors: EOFError."""
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) != size:
        raise EOFError("the other side has gone")
    return data


def target(directory: Path, address: str, words: list[str]) -> None:
    """The side that the process comes to."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    listener = socket.create_server((address, 0))
    listener.settimeout(60)
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.settimeout(120)
    buffer = memoryview(bytearray(1 << 20))
    while (head := _HEAD.unpack(receive(connection, _HEAD.size)))[0]:
        length, left = head
        with open(directory / os.fsdecode(receive(connection, length)), "wb", buffering=0) as file:
            while left:
                count = connection.recv_into(buffer[: min(left, len(buffer))])
                if not count:
                    raise EOFError("the other side has gone")
                file.write(buffer[:count])
                left -= count
    connection.sendall(b"c")
    criu([*words, "restore", "-d"], directory)
    connection.sendall(b"r")
    shutil.rmtree(directory)


def source(pid: int, directory: Path, address: str, port: int, words: list[str]) -> None:
    """The side that the process leaves."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    connection = socket.create_connection((address, port), 10)
    connection.settimeout(120)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = [time.monotonic()]
    criu([*words, "dump", "-t", str(pid)], directory)
    times.append(time.monotonic())
    for path in directory.iterdir():
        name, size = os.fsencode(path.name), path.stat().st_size
        connection.sendall(_HEAD.pack(len(name), size) + name)
        with open(path, "rb") as file:
            connection.sendfile(file, 0, size)
    connection.sendall(_HEAD.pack(0, 0))
    for _ in range(2):
        receive(connection, 1)
        times.append(time.monotonic())
    shutil.rmtree(directory)
    dump, copy, restore = ((after - before) * 1e3 for before, after in pairwise(times))
    print(json.dumps({"dump": dump, "copy": copy, "restore": restore, "frozen": (times[-1] - times[0]) * 1e3}))


def main(words: list[str]) -> None:
    """See the module."""
    if words[0] == "start":
        start(int(words[1]), words[2:])
    elif words[0] == "target":
        target(Path(words[1]), words[2], words[3:])
    else:
        source(int(words[1]), Path(words[2]), words[3], int(words[4]), words[5:])


if __name__ == "__main__":
    main(sys.argv[1:])
