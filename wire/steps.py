"""Where a move can be stopped, so that tests can have anything fail at every step of it.

FARHOME_STEPS, in the environment of mosd, names a directory. Anyone who comes to a step (a daemon, a deputy, a remote) for which there is a
file of that name stops himself there, as by SIGSTOP: he goes on at SIGCONT. The file has then the name STEP.PID. Without that variable
nothing is looked for.
"""

from __future__ import annotations

import os
import signal
import threading

VARIABLE = "FARHOME_STEPS"
_DIRECTORY = os.environ.get(VARIABLE)


def reached(step: str) -> None:
    """The move has come to that step. Stops where that is wanted."""
    if _DIRECTORY is not None:
        try:
            os.rename(f"{_DIRECTORY}/{step}", f"{_DIRECTORY}/{step}.{os.getpid()}")
        except FileNotFoundError:
            return
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this very thread goes no further
