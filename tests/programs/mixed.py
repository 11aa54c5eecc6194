"""mixed.py ROUNDS: computes, appends, seeks and reads files, reads a pipe, sleeps, and handles SIGUSR1 and SIGALRM.

A companion (prodder.py) writes the fifo `feed` and sends the signals, on request through the fifo `requests`; so what
happens in which order is the same in every run, while signals still arrive in the middle of computing, sleeping and
reading. Exit status: 0; an exception and 1 when anything is not as it was written.
"""

from __future__ import annotations

import hashlib
import os
import random
import select
import signal
import sys
import time

counts = {signal.SIGUSR1: 0, signal.SIGALRM: 0}


def on_signal(number: int, frame: object) -> None:
    counts[signal.Signals(number)] += 1


def compute(seed: bytes, rounds: int) -> bytes:
    for _ in range(rounds):
        seed = hashlib.sha256(seed).digest()
    return seed


def until(number: signal.Signals, wanted: int, how: str) -> None:
    """Computes, sleeps or waits until the signal was handled `wanted` times."""
    digest = b""
    while counts[number] < wanted:
        if how == "compute":
            digest = compute(digest, 100)
        elif how == "sleep":
            time.sleep(0.05)
        else:
            select.select([], [], [], 0.05)
    assert counts[number] == wanted, (counts, wanted)


def main() -> None:
    rounds = int(sys.argv[1])
    chance = random.Random(rounds)
    signal.signal(signal.SIGUSR1, on_signal)
    signal.signal(signal.SIGALRM, on_signal)
    requests = open("requests", "w", buffering=1)  # noqa: SIM115
    feed = open("feed", "rb", buffering=0)  # noqa: SIM115
    log = open("log", "a")  # noqa: SIM115
    model = bytearray(chance.randbytes(200_000))
    with open("data", "wb") as file:
        file.write(model)
    data = open("data", "r+b", buffering=0)  # noqa: SIM115
    digest = b"seed"
    usr1 = alarms = 0
    for number in range(rounds):
        digest = compute(digest, 4000)

        place, length = chance.randrange(150_000), chance.randrange(1, 40_000)
        data.seek(place)
        assert data.read(length) == model[place : place + length], "the file is not what was written"
        written = chance.randbytes(chance.randrange(1, 5000))
        data.seek(place)
        assert data.write(written) == len(written)
        model[place : place + len(written)] = written
        assert data.tell() == place + len(written)

        how = ("compute", "sleep", "wait")[number % 3]
        requests.write(f"signal {os.getpid()}\n")
        usr1 += 1
        until(signal.SIGUSR1, usr1, how)

        requests.write(f"signal-then-feed {os.getpid()} {number}\n")  # the handler runs while read() blocks, which then goes on
        usr1 += 1
        line = b""
        while not line.endswith(b"\n"):
            line += feed.read(100)
        assert line == b"fed %d\n" % number, line
        until(signal.SIGUSR1, usr1, "sleep")

        signal.setitimer(signal.ITIMER_REAL, 0.03)
        alarms += 1  # noqa: SIM113
        until(signal.SIGALRM, alarms, how)
        before = time.monotonic()
        time.sleep(0.03)
        assert time.monotonic() - before >= 0.03, "slept too short"

        os.makedirs(f"scratch/{number % 4}", exist_ok=True)
        with open(f"scratch/{number % 4}/file", "w") as file:
            print(number, file=file)
        os.rename(f"scratch/{number % 4}/file", f"scratch/{number % 4}/kept")
        log.write(f"{number} {digest.hex()} {sorted(os.listdir('scratch'))} {os.path.getsize('data')}\n")
        log.flush()
        print(number, digest.hex()[:16], usr1, alarms, flush=True)
    requests.write("end\n")
    data.seek(0)
    print("data", hashlib.sha256(data.read()).hexdigest(), hashlib.sha256(model).hexdigest())


main()
