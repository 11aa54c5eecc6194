"""What the guest's side asks of home, or reports, for one process that is away: each frame goes to the one that answers it."""

from __future__ import annotations

import logging
import os

from deputy.away import Away
from deputy.link.guestlink import Announced
from deputy.process import Process
from deputy.requests import births, mapping
from deputy.requests.births import Family
from deputy.requests.direct_files import DirectFiles
from deputy.requests.own_proc import OwnProc
from deputy.requests.signalfds import Signalfds
from deputy.requests.trace import TraceFile
from kernel_helpers.link.ends.events import DESCRIPTOR, Event, Kind
from wire.control import Control, unpack

log = logging.getLogger("deputy")


class Requests:
    """Of one process, as long as it is away."""

    def __init__(self, process: Process, away: Away, family: Family, trace: TraceFile) -> None:
        options = process.options
        self._process = process
        self._away = away
        self._family = family
        self._trace = trace
        self._own_proc = OwnProc(away, options.socket.parent.parent / "proc")
        self._direct = DirectFiles(away, options.files_port, options.deposits, process.loop.wake)
        self.signalfds = Signalfds(away, process.lost)
        away.signals.holds = self.signalfds.holds

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way for what was asked."""
        return self._own_proc.is_tidy and not self.signalfds.is_asked

    def poll(self) -> None:
        """Once in each turn of the loop."""
        self._own_proc.tidy()
        self._direct.poll()

    def close(self) -> None:
        """Nothing is asked any more."""
        self._own_proc.close()

    def handle(self, event: Event) -> None:
        """One frame from the remote. Errors: WireError."""
        away = self._away
        if away.stub.executed is not None:
            away.link.home.release()
            return  # of a guest that is over
        if births.handle(away, self._family, event) or self._own_proc.handle(event) or self._direct.handle(event):
            return
        if self.signalfds.handle(event) or self._handle_signal(event):
            return
        if event.kind == Control.TRACED:
            self._write_trace(event)
        elif event.kind == Control.ALL_HERE:
            self._process.is_whole()
        elif event.kind == Control.GO_HOME:
            away.go_home_reason = str(unpack(event.data).get("name", "a call that only home can make"))
        elif event.kind == Control.EXPEL:
            away.go_home_reason = str(unpack(event.data).get("reason", "the node wants it gone"))
        elif event.kind == Control.CANCEL:
            away.stub.cancel(event.tid)
        elif event.kind in (Control.MAP, Control.FETCH):
            mapping.serve(away.mappings, away.stub, away.link, event)
        elif event.kind == Control.EXECUTE:
            self._announce(event)
        elif event.kind == Kind.WRITE_FAILED:
            (descriptor,), why = DESCRIPTOR.unpack(event.data), os.strerror(event.code)
            log.error("process %d: a write to its descriptor %d failed after it was answered: %s", away.pid, descriptor, why)
        else:
            log.debug("event %s ignored", event.kind)

    def _handle_signal(self, event: Event) -> bool:
        """Whether a frame is about signals of the guest, or its end by one, and has been dealt with."""
        away = self._away
        if event.kind == Control.STOP_BY_DEFAULT:
            fields = unpack(event.data)
            away.signals.stop_by(int(fields["number"]), int(fields["continued"]) if "continued" in fields else None)
        elif event.kind == Control.TAKEN:
            fields = unpack(event.data)
            if fields.get("late"):
                away.link.send(Control.OVERRUNS, event.tid, overruns=away.signals.overruns(int(fields["timer"])))
            else:
                away.signals.taken(int(fields["timer"]))
        elif event.kind == Control.BLOCKS:
            fields = unpack(event.data)
            away.signals.blocks({int(tid): int(mask) for tid, mask in fields["masks"]}, int(fields["ignored"]))
        elif event.kind == Control.DUMPS:
            fields = unpack(event.data)
            away.dumps_core(event.tid, bytes(fields["info"]), away.link.whole(fields))
        elif event.kind == Control.GUEST_DIED:
            fields = unpack(event.data)
            away.guest_died(int(str(fields["number"])), away.link.whole(fields))
        else:
            return False
        return True

    def _announce(self, event: Event) -> None:
        """A thread is about to execute a program."""
        link = self._away.link
        try:
            fields = unpack(event.data)
            link.announced[event.tid] = Announced(int(fields["blocked"]), int(fields["ignored"]))
        finally:
            link.home.release()

    def _write_trace(self, event: Event) -> None:
        fields = unpack(event.data)
        self._trace.write(bytes(fields.get("lines", b"")))
        if fields.get("held"):
            self._away.link.home.release()


__all__ = ["Requests"]
