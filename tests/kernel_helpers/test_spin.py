"""Spinning ends in time, is given up for a while where it does not pay, and comes back where it does."""

from __future__ import annotations

import ctypes

from kernel_helpers.common import library


class Spin(ctypes.Structure):
    _fields_ = [("rest", ctypes.c_uint32), ("next_rest", ctypes.c_uint32), ("begun", ctypes.c_uint64)]


class Spinner:
    """The struct spin of a waiting thread, and its use by the three calls."""

    def __init__(self) -> None:
        self.native = library.load()
        self.state = Spin()
        self.at = ctypes.byref(self.state)

    def wait(self, *, finds: bool) -> bool:
        """Makes one wait; returns whether it began with spinning."""
        if not self.native.spin_begins(self.at):
            return False
        while not finds and self.native.spin_goes_on(self.at):
            pass
        self.native.spin_ends(self.at)
        return True

    def spin_that_is_too_late(self) -> None:
        """Spins once, with another thread on its processor for a long time."""
        assert self.native.spin_begins(self.at)
        self.state.begun = 0
        self.native.spin_ends(self.at)

    def waits_without(self, *, finds: bool) -> int:
        """Returns how many waits go by before one that spins."""
        count = 0
        while not self.wait(finds=finds):
            count += 1
        return count


def test_more_waits_go_by_each_time_that_nothing_comes() -> None:
    spinner = Spinner()
    assert spinner.wait(finds=False)
    before = 0
    for _ in range(4):
        waits = spinner.waits_without(finds=False)
        assert waits > before
        before = waits


def test_spinning_stops_for_long_where_another_process_computes_but_not_for_ever() -> None:
    spinner = Spinner()
    spinner.spin_that_is_too_late()
    assert spinner.waits_without(finds=False) >= 256
    for _ in range(10):
        assert spinner.waits_without(finds=False) <= 4096


def test_successful_spins_make_the_next_failure_cheap_again() -> None:
    spinner = Spinner()
    for _ in range(5):
        spinner.waits_without(finds=False)
    for _ in range(100_000):  # one during which the machine was busy counts the other way
        spinner.wait(finds=True)
        if spinner.state.next_rest == 0:
            break
    else:
        raise AssertionError("it forgets nothing")
    assert spinner.wait(finds=False)
    assert spinner.state.rest == 1 or spinner.state.rest >= 256  # the latter: another process computed meanwhile
