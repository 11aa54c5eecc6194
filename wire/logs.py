"""Where a program of ours writes what it has to say: on its standard error; of several trees in one program, each in a file of its own."""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

_output: contextvars.ContextVar[TextIO | None] = contextvars.ContextVar("output", default=None)


class Lines(logging.Formatter):
    """A record is a line, whatever is in it that somebody else has said: nobody forges the next one, or commands the terminal that
    shows it. A traceback is our own, and stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """As logging.Formatter has it."""
        if not record.message.isprintable():
            record.message = "".join(c if c.isprintable() else " | " if c == "\n" else "?" for c in record.message)
        return super().formatMessage(record)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what the thread that speaks has chosen."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; under the handler's lock."""
        self.stream = _output.get() or sys.stderr
        super().emit(record)
        self.stream = sys.stderr


def begin(room: str) -> None:
    """Sets logging up for a program of that room. FARHOME_LOG says from which level on."""
    form = f"%(asctime)s {room} %(process)d %(levelname)s %(message)s"
    handler = _Handler()
    handler.setFormatter(Lines(form))
    logging.basicConfig(handlers=[handler], level=os.environ.get("FARHOME_LOG", "INFO"))


def write_to(output: TextIO) -> None:
    """What this thread says goes there from now on, and what the threads say that it starts with start_thread()."""
    _output.set(output)


def start_thread(name: str, work: Callable[..., object], *arguments: object) -> None:
    """Runs work in a thread that does not keep the program alive, and has the log of this one."""
    threading.Thread(target=contextvars.copy_context().run, args=(work, *arguments), name=name, daemon=True).start()
