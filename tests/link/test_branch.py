"""A connection inside that of another session: what its session sends arrives once and in order, however either of them ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Kind
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.link.ends.session import Branch, SessionLink
from remote.reference.intercept_ptrace import PtraceLink
from tests.link.test_session import CONTROL, FRAME, RESUME, collect, connect, control

pytestmark = pytest.mark.timeout(60)
BRANCH, PART, UNREAD_MOST = 7, 65536, 1 << 20


@pytest.fixture
def trunk() -> Iterator[tuple[HomeLink, PtraceLink]]:
    with HomeLink([1]) as home, PtraceLink(os.getpid(), {1: 1}) as away:
        yield home, away


@pytest.fixture
def inner() -> Iterator[tuple[HomeLink, PtraceLink]]:
    with HomeLink([2]) as home, PtraceLink(os.getpid(), {2: 2}) as away:
        yield home, away


def join(trunk: tuple[SessionLink, SessionLink], inner: tuple[SessionLink, SessionLink], number: int = 1) -> None:
    ends = [Branch(outer, number) for outer in trunk]
    for link, end in zip(inner, ends, strict=True):
        link.attach(end)


def exchange(one: SessionLink, two: SessionLink, count: int = 20, size: int = 20_000) -> None:
    sent = [b"%d:" % number + bytes(number * size // count) for number in range(count)]
    for link in (one, two):
        for data in sent:
            link.send(CONTROL, 5, data)
    for link in (one, two):
        assert control(collect(link, lambda events: len(control(events)) >= count)) == sent


def test_frames_cross_it_also_when_it_begins_at_one_side_alone(
    trunk: tuple[HomeLink, PtraceLink], inner: tuple[HomeLink, PtraceLink]
) -> None:
    connect(*trunk)
    waiting = Branch(trunk[1], 7)
    inner[0].attach(Branch(trunk[0], 7))
    inner[0].send(CONTROL, 5, b"early")
    trunk[0].send(CONTROL, 0, b"later")
    collect(trunk[1], lambda events: control(events) == [b"later"])
    inner[1].attach(waiting)
    assert control(collect(inner[1], lambda events: bool(control(events)))) == [b"early"]
    exchange(*inner)
    with pytest.raises(FarhomeError):
        waiting.give()


def test_frames_longer_than_a_part_cross_it(trunk: tuple[HomeLink, PtraceLink], inner: tuple[HomeLink, PtraceLink]) -> None:
    connect(*trunk)
    join(trunk, inner)
    exchange(*inner, count=5, size=3 * PART)


def test_a_branch_survives_a_break_of_its_trunk(trunk: tuple[HomeLink, PtraceLink], inner: tuple[HomeLink, PtraceLink]) -> None:
    copies = connect(*trunk)
    join(trunk, inner)
    exchange(*inner)
    for copy in copies:
        copy.shutdown(socket.SHUT_RDWR)
    collect(trunk[0], lambda events: Kind.CONNECTION_LOST in [event.kind for event in events])
    inner[0].send(CONTROL, 5, b"in between")
    connect(*trunk)
    assert control(collect(inner[1], lambda events: bool(control(events)))) == [b"in between"]
    assert Kind.CONNECTION_LOST not in [event.kind for event in inner[0].events() + inner[1].events()]


def test_a_branch_ends_with_its_session_and_another_connection_delivers_the_rest(inner: tuple[HomeLink, PtraceLink]) -> None:
    with PtraceLink(os.getpid(), {1: 1}) as away:
        with HomeLink([1]) as home:
            connect(home, away)
            join((home, away), inner)
            exchange(*inner)
        collect(inner[0], lambda events: Kind.CONNECTION_LOST in [event.kind for event in events])
        inner[0].send(CONTROL, 5, b"to home's own")
        connect(*inner)
        assert control(collect(inner[1], lambda events: bool(control(events)))) == [b"to home's own"]


def test_one_side_replaces_the_branch_by_a_connection_of_its_own(
    trunk: tuple[HomeLink, PtraceLink], inner: tuple[HomeLink, PtraceLink]
) -> None:
    connect(*trunk)
    join(trunk, inner)
    exchange(*inner)
    for data in (b"before", b"after"):
        inner[0].send(CONTROL, 5, data)
        if data == b"before":
            connect(*inner)
    assert control(collect(inner[1], lambda events: len(control(events)) == 2)) == [b"before", b"after"]
    exchange(*inner)
    exchange(*trunk)


def test_unread_data_is_bounded_and_breaks_its_branch_alone(trunk: tuple[HomeLink, PtraceLink], inner: tuple[HomeLink, PtraceLink]) -> None:
    connect(*trunk)
    unread = Branch(trunk[1], 1)
    inner[0].attach(Branch(trunk[0], 1))
    own = Branch(trunk[1], 2)  # a second one, to be closed without ever having been used
    inner[1].attach(unread)
    inner[1].hold()
    sent = [b"%d" % number + bytes(PART) for number in range(4 * UNREAD_MOST // PART)]
    for data in sent:
        inner[0].send(CONTROL, 5, data)
    inner[1].send(CONTROL, 5, b"it is not read")
    assert inner[0].flush(10) and trunk[0].flush(10)
    exchange(*trunk)  # behind all that
    inner[1].release()
    found = control(collect(inner[1], lambda events: Kind.CONNECTION_LOST in [event.kind for event in events]))
    assert len(found) * PART <= UNREAD_MOST + 2 * PART
    connect(*inner)
    assert found + control(collect(inner[1], lambda events: len(found) + len(control(events)) == len(sent))) == sent
    own.close()
    own.close()
    exchange(*trunk)


def test_an_unknown_number_is_passed_over_and_too_long_a_part_is_nonsense(trunk: tuple[HomeLink, PtraceLink]) -> None:
    one, two = socket.socketpair()
    with one:
        trunk[0].attach(two.detach())
        one.sendall(FRAME.pack(0, RESUME, 0, 0, 0, 0, 0))
        one.sendall(FRAME.pack(3, BRANCH, 0, 99, 0, 1, 0) + b"abc")
        one.sendall(FRAME.pack(5, CONTROL, 0, 0, 0, 2, 0) + b"taken")
        assert control(collect(trunk[0], lambda events: bool(control(events)))) == [b"taken"]
        one.sendall(FRAME.pack(PART + 1, BRANCH, 0, 99, 0, 3, 0))
        collect(trunk[0], lambda events: Kind.CONNECTION_LOST in [event.kind for event in events])
