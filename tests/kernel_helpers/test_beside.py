"""A traced thread is bound to its tracer's processor as long as it makes calls, and to none afterwards."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from kernel_helpers.process import seizing
from kernel_helpers.process.injection.beside import beside
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

ALL = os.sched_getaffinity(0)

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="there is one processor")


@pytest.fixture
def stopped() -> Iterator[Frozen]:
    with subprocess.Popen(["sleep", "60"]) as process:
        with seizing.seize(process.pid) as frozen:
            yield frozen
        process.kill()


def processors(pid: int) -> set[int]:
    return os.sched_getaffinity(pid)


def test_both_are_on_one_processor_inside_and_anywhere_afterwards(stopped: Frozen) -> None:
    with beside(stopped.pid) as place:
        assert processors(stopped.pid) == processors(0) == {place.processor}
        assert stopped.call(SYS.getpid) == stopped.pid
    assert processors(stopped.pid) == processors(0) == ALL


def test_so_it_is_after_an_error_and_when_the_thread_has_ended(stopped: Frozen) -> None:
    with pytest.raises(ValueError, match="wrong"), beside(stopped.pid):
        raise ValueError("wrong")
    assert processors(stopped.pid) == processors(0) == ALL
    with subprocess.Popen(["true"]) as ended, beside(ended.pid):
        ended.wait()
    assert processors(0) == ALL


def test_one_that_is_bound_to_some_is_left_there(stopped: Frozen) -> None:
    for some in ({min(ALL)}, {max(ALL)}):
        os.sched_setaffinity(stopped.pid, some)
        with beside(stopped.pid):
            assert processors(stopped.pid) == some
        assert processors(stopped.pid) == some


def test_what_somebody_binds_it_to_meanwhile_stays(stopped: Frozen) -> None:
    with beside(stopped.pid) as place:
        other = {next(iter(ALL - {place.processor}))}
        os.sched_setaffinity(stopped.pid, other)
    assert processors(stopped.pid) == other


def test_threads_that_the_tracer_begins_inside_run_anywhere_afterwards(stopped: Frozen) -> None:
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        over.wait(60)

    thread = threading.Thread(target=wait)
    with beside(stopped.pid) as place:
        thread.start()
        assert begun.wait(60)
        assert thread.native_id is not None
        assert processors(thread.native_id) == {place.processor}
    assert processors(thread.native_id) == ALL
    over.set()
    thread.join(60)


def test_what_a_bound_thread_has_made_runs_anywhere_afterwards() -> None:
    with subprocess.Popen(["sleep", "60"]) as maker, subprocess.Popen(["sleep", "60"]) as born, subprocess.Popen(["sleep", "60"]) as none:
        with beside(maker.pid) as place:
            for child, parent in ((born, maker), (none, none)):
                os.sched_setaffinity(child.pid, {place.processor})  # as a child has what its parent had
                place.born(child.pid, parent.pid)
        assert [processors(one.pid) for one in (maker, born, none)] == [ALL, ALL, {place.processor}]
        for process in (maker, born, none):
            process.kill()
