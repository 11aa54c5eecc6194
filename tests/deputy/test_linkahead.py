"""A link that is made before its process stands still."""

from __future__ import annotations

import os

from deputy.link.linkahead import LinkAhead


def _open() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_link_that_was_foreseen_is_taken() -> None:
    ahead = LinkAhead(os.getpid())
    ahead.foresee()
    before = _open()
    link = ahead.take(sorted(map(int, os.listdir("/proc/self/task")), key=lambda tid: tid != os.getpid()))
    assert _open() == before
    ahead.close()
    assert _open() == before
    link.close()


def test_other_threads_than_were_foreseen_have_a_link_of_their_own() -> None:
    before = _open()
    ahead = LinkAhead(os.getpid())
    ahead.foresee()
    link = ahead.take([7, 8])
    assert link.threads == [7, 8]
    link.close()
    assert _open() == before


def test_unused_connections_are_closed() -> None:
    before = _open()
    ahead = LinkAhead(os.getpid())
    ahead.foresee()
    ahead.foresee()
    assert _open() != before
    ahead.close()
    ahead.close()
    assert _open() == before
