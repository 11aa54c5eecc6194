"""prodder.py: companion of mixed.py, never moved. Does what it reads from the fifo `requests`, in that order."""

from __future__ import annotations

import os
import signal
import time


def main() -> None:
    requests = open("requests")  # noqa: SIM115
    feed = open("feed", "wb", buffering=0)  # noqa: SIM115
    for line in requests:
        match line.split():
            case ["signal", pid]:
                os.kill(int(pid), signal.SIGUSR1)
            case ["signal-then-feed", pid, number]:
                time.sleep(0.01)  # so that the reader is most likely blocked in read()
                os.kill(int(pid), signal.SIGUSR1)
                time.sleep(0.01)
                feed.write(f"fed {number}\n".encode())
            case ["end"]:
                return


main()
