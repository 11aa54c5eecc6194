"""The away process of a Pair (bench/calls/link_pair.py) whose guest has direct files: it opens them itself, on the same machine."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

from bench.calls.link_pair import _Away, serve
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import READ, Event, Kind
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import ERESTARTNOINTR
from wire.control import Control

EAGER = 3
PLACE = struct.Struct("<QQq")
"""Layout of POSITION and POSITIONED here: number, serial, position."""


class Away(_Away):
    """See the module."""

    def __init__(self, is_shared: bool, *arguments: str) -> None:
        """is_shared: home says of all positions that others have them, too."""
        self.is_shared = is_shared
        super().__init__(arguments[0], int(arguments[1]), int(arguments[2]), arguments[3], arguments[4])
        status = Path(f"/proc/{self.guest}/status").read_text()
        self.stub = int(status.split("PPid:")[1].split()[0])
        self.waiting: dict[int, int] = {}

    def connect(self) -> None:
        assert isinstance(self.link, AwayLink)
        self.table = self.link.direct or self.link.allow_direct(EAGER)
        super().connect()

    def handle(self, event: Event) -> None:
        assert isinstance(self.link, AwayLink)
        if event.kind == Kind.READS:
            number, serial, _, is_placed = READ.unpack(event.data)
            try:
                file = os.open(f"/proc/{self.stub}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                print(f"descriptor {number} of {self.stub} is not opened here: {error}", file=sys.stderr, flush=True)
                self.table.refuse(number, serial)
                return
            if self.is_shared and not is_placed:
                os.close(file)
                self.table.refuse(number, serial)
            else:
                self.table.opened(number, serial, file, self.is_shared)
        elif event.kind == Kind.READS_OPEN:
            number, serial, *_ = READ.unpack(event.data)
            self.waiting[serial] = event.tid
            self.link.send(Control.POSITION, event.tid, PLACE.pack(number, serial, 0))
        elif event.kind == Control.POSITIONED:
            number, serial, position = PLACE.unpack(event.data)
            tid = self.waiting.pop(serial)
            self.link.make_direct(tid, number, serial, position)
            tracing.interrupt(tid)
            assert self.link.answer(tid, error=ERESTARTNOINTR)
        else:
            super().handle(event)


if __name__ == "__main__":
    serve(Away(sys.argv[1] == "shared", *sys.argv[-5:]))
