"""What is said to who sits before a program."""

from __future__ import annotations

import os


def say_on_terminal(pid: int, sentence: str) -> None:
    """One line on a process's standard error, if that is a terminal."""
    try:
        descriptor = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.isatty(descriptor):
            os.write(descriptor, f"\r\n{sentence}\r\n".encode())
    except OSError:
        pass
    finally:
        os.close(descriptor)
