"""Connections to neighbours are not paced: in a network of their own, of which the kernel's choice of congestion control is ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CHOICE = "/proc/sys/net/ipv4/tcp_congestion_control"
#: A queue that what is sent meets, where it is far: at 256 kbit/s the 8 KB that its sender may have in it take a quarter of a second. He
#: fills it up as it empties, so that it is there however long the others take.
AFAR = """
subprocess.run(["ip", "link", "set", "lo", "mtu", "1500"], check=True)
subprocess.run("tc qdisc add dev lo root tbf rate 256kbit burst 1600 limit 100000".split(), check=True)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
def fill():
    while True:
        sender.sendto(bytes(400), ("127.0.0.1", 9))
threading.Thread(target=fill, daemon=True).start()
while not int.from_bytes(fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)), sys.byteorder) > 4096:
    time.sleep(0.01)
"""
MEET = """
import fcntl, os, socket, subprocess, sys, termios, threading, time
from pathlib import Path
from wire import channel
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
Path("{choice}").write_text(sys.argv[1])
{far}
listener, accepted = channel.listen("127.0.0.1"), []
def serve():
    connection = listener.accept()[0]
    accepted.append(channel.greet(connection, b"secret"))
serving = threading.Thread(target=serve, daemon=True)
serving.start()
called = channel.connect(listener.getsockname(), "move", b"secret")
serving.join(10)
for connection in (called, *accepted):
    again = socket.socket(fileno=os.dup(connection.fileno()))
    print(again.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
"""


def _chosen(choice: str, afar: bool) -> list[str]:
    """Both ends' congestion control, of a data connection on a machine with that choice."""
    if choice not in Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split():
        pytest.skip(f"this kernel has no {choice}, or does not let a network of its own choose it")
    code = MEET.format(choice=CHOICE, far=AFAR if afar else "")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code, choice],
        check=False, cwd=ROOT, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
@pytest.mark.parametrize(("choice", "near", "afar"), [("bbr", "cubic", "bbr"), ("reno", "reno", "reno"), ("cubic", "cubic", "cubic")])
def test_near_peers_are_not_paced_and_far_ones_as_the_machine_is_set(choice: str, near: str, afar: str) -> None:
    assert _chosen(choice, False) == [near, near]
    assert _chosen(choice, True) == [afar, afar]
