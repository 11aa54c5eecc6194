"""Looking on ends in time, is given up for a while where it does not pay, and comes back where it does."""

from __future__ import annotations

import ctypes

from kernel_helpers.common import library


class Looking(ctypes.Structure):
    _fields_ = [("rest", ctypes.c_uint32), ("next_rest", ctypes.c_uint32), ("begun", ctypes.c_uint64)]


class Looker:
    """The struct looking of one who waits, and what it is asked."""

    def __init__(self) -> None:
        self.native = library.load()
        self.state = Looking()
        self.at = ctypes.byref(self.state)

    def look(self, *, finds: bool) -> bool:
        """A wait: whether it began with a look."""
        if not self.native.looking_begins(self.at):
            return False
        while not finds and self.native.looking_goes_on(self.at):
            pass
        self.native.looking_ends(self.at)
        return True

    def look_that_is_too_late(self) -> None:
        """One whose processor somebody else had for long."""
        assert self.native.looking_begins(self.at)
        self.state.begun = 0
        self.native.looking_ends(self.at)

    def waits_without(self, *, finds: bool) -> int:
        """How many waits go by before one with a look."""
        count = 0
        while not self.look(finds=finds):
            count += 1
        return count


def test_more_waits_go_by_each_time_that_nothing_comes() -> None:
    looker = Looker()
    assert looker.look(finds=False)
    before = 0
    for _ in range(4):
        waits = looker.waits_without(finds=False)
        assert waits > before
        before = waits


def test_it_is_given_up_for_long_where_somebody_else_computes_but_not_for_ever() -> None:
    looker = Looker()
    looker.look_that_is_too_late()
    assert looker.waits_without(finds=False) >= 256
    for _ in range(10):
        assert looker.waits_without(finds=False) <= 4096


def test_looks_that_find_something_make_the_next_disappointment_cheap_again() -> None:
    looker = Looker()
    for _ in range(5):
        looker.waits_without(finds=False)
    for _ in range(100_000):  # one during which the machine was busy counts the other way
        looker.look(finds=True)
        if looker.state.next_rest == 0:
            break
    else:
        raise AssertionError("it forgets nothing")
    assert looker.look(finds=False)
    assert looker.state.rest == 1 or looker.state.rest >= 256  # the latter: somebody else computed meanwhile
