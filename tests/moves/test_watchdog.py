"""The watchdog sees an answer that is lost, and only that."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster, until
from tests.moves.test_slow_answer import feed, finisher, held, in_read
from tests.moves.watchdog import Hang, Thread, Wait, Watchdog, waits, why_it_waits

IN_READ = Thread("S", "0 0x3 0x7f00 0x10 0x0 0x0 0x0 0x7ffe 0x7f11", "pipe_read", 10)
IDLE = Thread("S", "202 0x3a0000003004 0x0 0x5 0x0 0x0 0x0 0x3a00 0x3a01", "futex_do_wait", 10)
WAIT = Wait(7, 7, "n2", Thread("S", IN_READ.call, "seccomp_do_user_notification", 10))


@pytest.mark.parametrize(
    ("stub", "has_reason"),
    [
        (IN_READ, True),
        (replace(IN_READ, state="R", call="running"), True),
        (replace(IDLE, state="T"), True),
        (replace(IN_READ, call="202 0x7f00 0x80 0x1 0x0 0x0 0x0 0x7ffe 0x7f11"), True),
        (IDLE, False),
        (replace(IN_READ, state="t"), False),
        (replace(IN_READ, call="-1 0x7ffe 0x7f11"), False),
        (None, False),
    ],
)
def test_a_wait_has_a_reason_when_its_call_waits_at_home(stub: Thread | None, has_reason: bool) -> None:
    assert bool(why_it_waits(stub)) == has_reason


def test_a_wait_is_reported_once_if_it_never_had_a_reason(cluster: Cluster) -> None:
    watchdog = Watchdog(cluster, patience=30)
    answered = replace(WAIT, thread=replace(WAIT.thread, switches=11))
    for now, seen in ((0, {WAIT: ""}), (29, {WAIT: "", answered: ""}), (29.5, {answered: ""}), (58, {answered: "it is on its way"})):
        assert watchdog.overdue(seen, now) == []
    assert watchdog.overdue({answered: ""}, 60) == []
    assert watchdog.overdue({answered: "", WAIT: ""}, 90) == [answered]
    assert watchdog.overdue({answered: ""}, 120) == []


@pytest.mark.timeout(120)
def test_a_lost_answer_is_detected_and_a_waiting_call_is_not_reported(cluster: Cluster) -> None:
    with Running(cluster, "copier", "", mosrun="mkfifo feed && mosrun -L") as copier, feed(copier) as descriptor, ExitStack() as stack:
        copier.moved("n2")
        os.write(descriptor, b"first\n")
        until("it waits for the second line", lambda: copier.lines() == ["first"] and in_read(copier))
        until("the wait is seen, with its reason", lambda: set(dict(waits(cluster)).values()) == {"its call waits at home"})
        patient = Watchdog(cluster, patience=1, every=0.1)
        patient.start()
        stack.callback(patient.over.set)
        with pytest.raises(TimeoutError):
            until("a hang", lambda: patient.hangs, seconds=3)
        with held(finisher(copier)):
            os.write(descriptor, b"second\n")
            until("the answer is missed", lambda: patient.hangs)
        until("the second line", lambda: copier.lines() == ["first", "second"])
        with pytest.raises(Hang, match=f"process {copier.pid}, thread {copier.pid}, on n2: no answer for 1 s"):
            patient.stop()
        assert len(patient.hangs) == 1
