"""The deputy of one process: what hears mosd, the link, and the stops of the stub, and starts moves, in the loop of its tree
(deputy/tree.py).

All ptrace requests come from its thread. What may take long and needs no ptrace (asking the target to prepare, sending it
files) runs in a worker while the process goes on; what happens while it is frozen is done here, in one go.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from dataclasses import replace

from deputy.away import Away
from deputy.link.farewells import Farewells
from deputy.link.guestlink import GuestLink, LinkLost, Target
from deputy.link.trips import Trips
from deputy.mosd import Mosd
from deputy.moves.departure import Departure
from deputy.moves.memory_late import LateMemory
from deputy.moves.move import Move
from deputy.moves.preparation import Preparation
from deputy.moves.programs import execution
from deputy.moves.programs.execution import Replacement
from deputy.moves.returning import Returning
from deputy.options import Options
from deputy.process import Loop, Process
from deputy.requests.dispatch import Requests
from deputy.requests.mapping import Mappings
from deputy.requests.trace import TraceFile
from deputy.signals.signals import StubSignals
from deputy.stub.stub import Stub
from deputy.stub.terminal import say_on_terminal
from engine.leaving.permission import Owner
from kernel_helpers.usage import children
from wire.frames import Message
from wire.local import LocalServer
from wire.tree import TICK, Tree

log = logging.getLogger("deputy")

SETTLE_AFTER = 0.05
"""Seconds for which a program that has just begun away keeps the little memory that it has at home: many end before."""
SETTLE_PATIENCE = 2.0
"""Seconds that interrupted calls may take to show up from the guest."""
IDLE = 15.0
"""Seconds at home without a wish to move after which a deputy goes."""


class Deputy:
    """See the module. Errors: ProcessLookupError."""

    def __init__(self, options: Options, tree: Tree[Deputy], trips: Trips, farewells: Farewells, is_born: bool = False) -> None:
        """is_born: of a child that was born away."""
        self._tree = tree
        self._trips = trips
        self._farewells = farewells
        self._options = options
        self._selector = tree.selector
        self._trace = TraceFile(options.pid, options.trace)
        self._move: Move | None = None
        """under way"""
        self._requests: Requests | None = None
        """of the process, if it is away"""
        self._later: list[Message] = []
        self._pidfd = os.pidfd_open(options.pid)
        self.server = LocalServer(options.socket, self._selector, self._on_message, waits=is_born)
        self._mosd = Mosd(self.server)
        loop = Loop(self._selector, tree.waker.wake, tree.thread, farewells)
        self.process = Process(options, self._mosd, loop, self._begin_away)
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._process_ended)

    @property
    def finished(self) -> bool:
        """Whether nothing is to be done any more."""
        return self.process.finished

    @property
    def lives_on(self) -> bool:
        """See Newborn; one that has ended at home counts as well: mosd finds out."""
        return self.process.away is None

    def _begin_away(self, stub: Stub, link: GuestLink, mappings: Mappings) -> Away:
        def answering(away: Away) -> Requests:
            self._requests = Requests(self.process, away, self, self._trace)
            return self._requests

        return Away(stub, link, mappings, StubSignals(stub, link, self.process.ended), self._selector, answering, self._trips)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Once in each turn of the loop."""
        process = self.process
        if self._is_free:
            self._do_later()
            move, self._move = self._move, None
            if move is not None and (move := move.step()) is not None:  # it may be over by now, and what is reported then stays
                self._move = move
                self._mosd.progress(move.progress)
        process.look_at_rests()
        away = process.away
        if away is not None:
            away.signals.poll()
            if away.stub.executed is not None:
                process.is_whole()
                away.lives_on()
                if self._is_free:
                    self._move = execution.go_on(process, away, self._move)
                return
            if not process.finished and not self._look_after(away):
                return
        if process.late_memory is not None:
            self._look_at_late_memory(process.late_memory)
        elif process.away is None and self._move is None and time.monotonic() - process.used_at > IDLE:
            process.finish()  # nobody asked for a move

    def _look_after(self, away: Away) -> bool:
        """What the link to the guest has brought, and what it needs. False: it is lost, or the stub has ended or executed a program."""
        process, requests = self.process, self._requests
        assert requests is not None
        used, is_little = time.monotonic() - process.used_at, away.stub.memory.is_little
        if not is_little or used > SETTLE_AFTER:
            process.settle(force=used > SETTLE_PATIENCE and not is_little)
        try:
            away.link.look_after()
        except LinkLost as lost:
            process.lost(str(lost))
            return False
        self._mosd.cut(away.link.cut)
        for event in away.link.control_events():
            requests.handle(event)
        away.signals.have_heard()
        # Events were taken, and with them the word that threads wait for signals: those that came since tick() asked are found only here.
        away.signals.poll()
        has_changed = process.finished or away.stub.executed is not None
        if has_changed or away.signals.is_asking:
            away.link.wake()
        if has_changed:
            return False
        requests.poll()
        may_go = self._move is None and not process.follows and self._is_free
        if not away.go_home_reason and away.mappings.is_about_to_be_written():
            away.go_home_reason = "a file that it has mapped is about to be written"
        if away.go_home_reason and may_go and time.monotonic() >= away.retry_home_at:
            self._move = Returning(process, away, away.go_home_reason, None, self._options.memory).start()
        elif may_go and requests.signalfds.is_asked:
            requests.signalfds.grow()
        return True

    @property
    def is_at_rest(self) -> bool:
        """Whether its process is away, and nothing is to be done for it but what it asks for."""
        process, away, requests = self.process, self.process.away, self._requests
        if away is None or requests is None or process.finished:
            return False
        moves = self._move or self._later or process.late_memory or process.giver or away.go_home_reason or process.follows
        is_calm = away.link.is_whole and away.stub.executed is None and not moves and requests.is_at_rest
        return is_calm and time.monotonic() - process.used_at > SETTLE_PATIENCE + TICK

    def end(self) -> None:
        """Takes away what was made for the process, which is home or has ended."""
        self.process.rests.end()
        children.forget(self.process.pid)
        self.server.close()
        self._trace.close()
        self.process.end()
        if self._move is not None:
            self._move.abandon()
        if self._pidfd in self._selector.get_map():
            self._selector.unregister(self._pidfd)
        os.close(self._pidfd)

    def _look_at_late_memory(self, late: LateMemory) -> None:
        """The process is at home. When all its memory is there, too, nothing keeps us."""
        if not late.is_over:
            return
        self.process.late_memory = None
        if late.failure:
            self._lose(late)
        else:
            late.forgo()
        self.process.finish()

    def _lose(self, late: LateMemory) -> None:
        """Memory of the process, which is at home, does not come any more."""
        pid, where = self.process.pid, self.process.where
        sentence = f"farhome: process {pid} is lost: {late.failure}; ended {time.strftime('%Y-%m-%d %H:%M:%S')}"
        log.critical("%s", sentence)
        say_on_terminal(pid, sentence)
        self._mosd.lost(where, late.failure, sentence)
        late.end_process()

    def _process_ended(self) -> None:
        if self.process.finished or self.process.late_memory is not None:
            self._selector.unregister(self._pidfd)  # it is ended soon; or children that it has left behind may lack pages, too
        elif isinstance(self._move, Replacement):
            held, self._move = self._move, None
            held.killed()
        elif self.process.away is None:
            log.info("process %d ended", self.process.pid)
            self._mosd.ended(None)
            self.process.finished = True

    # -- its tree -----------------------------------------------------------------------------------------------------

    @property
    def _is_free(self) -> bool:
        """Whether its guest's remote can be talked to: it serves all guests of the tree, and waits while a program comes in the place of
        another."""
        return not any(other.holds_program for other in self._tree.members if other is not self)

    @property
    def holds_program(self) -> bool:
        """Whether its process is a program that has not begun yet, in the place of another."""
        return isinstance(self._move, Replacement)

    def bear(self, pid: int) -> Process:
        """See deputy/requests/births.py."""
        options = replace(self._options, pid=pid, socket=self._options.socket.with_name(f"{pid}.sock"))
        child = Deputy(options, self._tree, self._trips, self._farewells, is_born=True)
        self._tree.members.append(child)
        return child.process

    def tell_of(self, child: Process) -> None:
        """See deputy/requests/births.py."""
        deputy = next(other for other in self._tree.members if other.process is child)
        self._tree.newborns.add(deputy, {"event": "born", "pid": child.pid, "where": child.where})

    def disown(self, number: int) -> Stub | None:
        """See deputy/requests/births.py."""
        for process in (other.process for other in self._tree.members if other is not self):
            if process.away is not None and process.away.stub.program_tid(process.pid) == number:
                process.finished = True
                return process.away.stub
        return None

    # -- what mosd asks -----------------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        operation, number, process = message.get("op"), message.get("id"), self.process
        if operation == "status":
            self._report_status(number)
        elif operation in ("move", "home") and self._must_wait:
            self._later.append(message)
        elif operation in ("move", "home") and process.shares_memory:
            self._refuse(number, "it has its parent's memory (vfork)")
        elif operation == "home" and process.away is None:
            self._refuse(number, "it is at home")
        elif operation in ("move", "home") and self._move is not None:
            self._refuse(number, "another move of it is under way")
        elif operation == "move":
            self._depart(number, message)
        elif operation == "home" and process.away is not None:
            memory = str(message.get("memory") or self._options.memory)
            self._move = Returning(process, process.away, str(message.get("reason", "asked")), number, memory).start()
        elif operation == "abort":
            if process.away is None and process.late_memory is None:
                process.finish()
        else:
            self._refuse(number, f"unknown operation {operation!r}")

    def _refuse(self, number: int | None, sentence: str) -> None:
        self._mosd.refuse(number, sentence, self.process.where)

    def _report_status(self, number: int | None) -> None:
        process, link = self.process, self.process.away.link if self.process.away is not None else None
        calls, carried, cut = (link.home.calls[0], link.home.carried_bytes, link.cut) if link is not None else (0, 0, 0.0)
        self._mosd.status(
            number, pid=process.pid, where=process.where, moving=self._move is not None, calls=calls, carried=carried, cut=cut,
            writes=bool(process.rests), trips=self._trips.total,
        )  # fmt: skip

    @property
    def _must_wait(self) -> bool:
        """Whether no move can begin now, and one soon can: a program is held; its memory goes ahead of it for a call, and nobody has asked
        for that; or its memory follows it."""
        goes_home_for_a_call = isinstance(self._move, Returning) and not self._move.is_asked
        return self.holds_program or goes_home_for_a_call or self.process.follows > 0 or not self._is_free

    def _do_later(self) -> None:
        """What was asked for while it had to wait."""
        if self._later and not self._must_wait:
            later, self._later = self._later, []
            for message in later:
                self._on_message(message)

    def _depart(self, number: int | None, message: Message) -> None:
        """Out or hop (deputy/moves/departure.py)."""
        options, away = self._options, self.process.away
        try:
            host, port = message["address"]
            target = Target(str(message["to"]), (str(host), int(port)), bytes(message["secret"]))
            asker = Owner.from_word(str(message["asker"])) if "asker" in message else options.owner
        except (KeyError, TypeError, ValueError):
            self._refuse(number, "the request names no target")
            return
        engine, memory = str(message.get("engine") or options.engine), str(message.get("memory") or options.memory)
        preparation = Preparation(
            options.pid, target, options.node, engine, None if away is None else away.mappings.files(),
            trace=bool(options.trace), left=away.link.target if away is not None else None, memory=memory,
            begins=str(message.get("begins", "")), owners=(options.owner, asker), link_timeout=options.link_timeout,
            says=message.get("says") is True,
        )  # fmt: skip
        self._move = Departure(self.process, preparation, number).start()


__all__ = ["Deputy"]
