"""A pseudo terminal of a node with a user at it, and a small expect loop."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType

from tests.moves.outcome import Place, descendants

TIOCSPTLCK, TIOCGPTPEER = 0x40045431, 0x5441  # asm-generic/ioctls.h, not in termios. The second opens the other end
# without its path, which may lie in another mount namespace.
READ = "0 "
"""Beginning of /proc/PID/syscall for a process that waits in read(2)."""


class Terminal:
    """A session with a controlling terminal, made from the place's own devpts, so that its name means something there.

    `transcript` is every byte that the terminal has shown. Errors: TimeoutError with what was shown instead of what was awaited.
    """

    def __init__(self, place: Place, argv: list[str], user: str = "", rows: int = 24, columns: int = 80) -> None:
        self.master = os.open(place.root / "dev" / "pts" / "ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        fcntl.ioctl(self.master, TIOCSPTLCK, struct.pack("i", 0))
        slave = fcntl.ioctl(self.master, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        if user:
            os.fchown(slave, pwd.getpwnam(user).pw_uid, -1)
        self.transcript = b""
        self.seen = 0
        self.resize(rows, columns)
        # setsid runs inside, since session and process group numbers must be known in the programs' own pid namespace
        command = ["setsid", "--ctty", "--wait", *argv]
        self.process: subprocess.Popen[bytes] = place.popen(command, user, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def enter(self, text: str) -> None:
        os.write(self.master, text.encode())

    def await_reader(self, seconds: float = 60) -> None:
        """Waits until the program in front waits in read(2), here or in its stub. Errors: TimeoutError, OSError if it ends."""
        end = time.monotonic() + seconds
        while not Path(f"/proc/{os.tcgetpgrp(self.master)}/syscall").read_text().startswith(READ):
            if time.monotonic() > end:
                raise TimeoutError("the program in front of the terminal reads nothing")
            self.read(0.02)

    def expect(self, pattern: str, seconds: float = 30) -> str:
        """Waits until what was shown after the last expect() matches the regular expression; returns that much of it."""
        end = time.monotonic() + seconds
        while True:
            match = re.search(pattern.encode(), self.transcript[self.seen :], re.DOTALL)
            if match:
                text = self.transcript[self.seen : self.seen + match.end()]
                self.seen += match.end()
                return text.decode(errors="replace")
            left = end - time.monotonic()
            if left <= 0 or not self.read(left):
                shown = self.transcript[self.seen :]
                raise TimeoutError(f"awaited {pattern!r}, shown was {shown!r} after {self.transcript[: self.seen][-300:]!r}")

    def read(self, seconds: float) -> bool:
        """Takes what is shown next, within `seconds`. Returns False at the end of the session or when nothing came."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            shown = os.read(self.master, 65536)
        except OSError:  # EIO: the other end has been closed
            return False
        self.transcript += shown
        return bool(shown)

    def end(self, seconds: float = 20) -> int:
        """Waits until the session is over, reads what is left and returns its exit status."""
        status = self.process.wait(seconds)
        while self.read(0):
            pass
        return status

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            for pid in reversed(descendants(self.process.pid)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.wait(10)
        os.close(self.master)
