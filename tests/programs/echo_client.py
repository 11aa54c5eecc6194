"""echo_client.py PORT ROUNDS: talks to echo_server over one connection that stays and ten that come and go.

The one that stays sends ROUNDS messages of random length (seeded) and checks each answered byte; ten times a second
connection is made, used and closed. Sends and waits alternate, and sometimes much is sent before anything is read.
Exit status: 0; 3 a byte of an answer was wrong or missing.
"""

from __future__ import annotations

import random
import socket
import sys
import time


class Connection:
    """One connection; counts the bytes sent, on which the answers depend."""

    def __init__(self, port: int) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.sent = 0
        self.expected = bytearray()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.expected += bytes(byte ^ ((self.sent + at) * 31 + 7) & 0xFF for at, byte in enumerate(data))
        self.sent += len(data)

    def check(self) -> None:
        while self.expected:
            answer = self.socket.recv(len(self.expected))
            if answer != self.expected[: len(answer)] or not answer:
                print(f"after {self.sent} bytes: an answer of {len(answer)} bytes is wrong, {len(self.expected)} expected")
                sys.exit(3)
            del self.expected[: len(answer)]


def main() -> None:
    port, rounds = int(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(rounds)
    stays = Connection(port)
    total = 0
    visits = {rounds * visit // 10 for visit in range(10)}
    for number in range(rounds):
        stays.send(chance.randbytes(chance.choice((1, 20, 300, 4000))))
        if chance.random() < 0.7:
            stays.check()
        if number % 10 == 9:
            time.sleep(0.02)
        if number in visits:
            guest = Connection(port)
            guest.send(chance.randbytes(2000))
            guest.check()
            total += guest.sent
            guest.socket.close()
    stays.check()
    total += stays.sent
    stays.socket.close()
    print(f"{total} bytes sent, every one answered")


main()
