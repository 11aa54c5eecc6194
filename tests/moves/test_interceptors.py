"""The reference interceptor (ptrace) passes the same storms as the default one (notify): one of each kind, with --all every one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_helpers.pages.pages import knows_guards
from tests.faults import stops
from tests.moves import (
    test_core,
    test_cpu_time,
    test_directed,
    test_exec,
    test_filters,
    test_halves,
    test_itself,
    test_limits,
    test_marks,
    test_masks,
    test_rights,
    test_signals,
    test_stopped,
    test_unchanged,
    test_waits,
)  # fmt: skip
from tests.moves.cluster import HOME, Cluster
from tests.moves.storm import storm
from tests.moves.workloads import BY_NAME, scale

NAMES = ("signals",)


@pytest.fixture(scope="module")
def reference() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*stops.ENVIRONMENT)
        cluster = Cluster(configuration='interception = "ptrace"\n')
    stops.prepare(cluster)
    yield cluster
    cluster.down()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(name, marks=pytest.mark.soak) for name in ("python", "counter", "quiet", "sqlite3", "threads"))]
)
def test_reference_interceptor(reference: Cluster, name: str) -> None:
    workload = BY_NAME[name]
    verdict = storm(reference, workload, user=workload.user, scale=0.8 * scale(), slack=60, every=(0.2, 0.6))
    print(verdict)
    assert not verdict.wrong, str(verdict)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [pytest.param("wait", marks=pytest.mark.soak), "ppoll"])
def test_blocked_signals_with_the_reference_interceptor(reference: Cluster, how: str) -> None:
    test_signals.test_a_blocked_signal_comes_when_it_is_wanted(reference, how, early=True)
    test_signals.test_a_blocked_signal_comes_when_it_is_wanted(reference, how, early=False)


@pytest.mark.timeout(240)
def test_a_process_sees_itself_with_the_reference_interceptor(reference: Cluster) -> None:
    test_itself.sees_itself_wherever_it_is(reference, "", "0 50 plain")  # files are mapped at home then
    test_itself.test_a_path_that_begins_in_proc_takes_it_home(reference)


@pytest.mark.timeout(120)
def test_the_reference_interceptor_has_programs_executed_at_home(reference: Cluster) -> None:
    natively = test_exec.output(reference, "signals", None)
    assert test_exec.output(reference, "signals", "n2", stays=True) == natively


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_processor_time_with_the_reference_interceptor(reference: Cluster) -> None:
    test_cpu_time.test_processor_time_adds_up_over_out_and_hop(reference)
    test_cpu_time.test_back_at_home_the_kernel_counts_only_time_used_at_home(reference)


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_stack_limit_with_the_reference_interceptor(reference: Cluster) -> None:
    test_limits.test_a_stack_limit_is_set_away_and_the_process_stays_there(reference)


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_signal_to_itself_with_the_reference_interceptor(reference: Cluster) -> None:
    test_signals.test_a_signal_to_itself_is_there_before_the_call_has_ended(reference)


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_trap_and_a_stop_with_the_reference_interceptor(reference: Cluster) -> None:
    test_signals.test_a_trap_and_a_stop_that_come_at_once_are_both_had(reference, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("rounds", [200, pytest.param(500, marks=pytest.mark.soak)])
def test_a_stopped_timer_with_the_reference_interceptor(reference: Cluster, rounds: int) -> None:
    test_signals.test_a_timer_that_is_stopped_sends_nothing_more(reference, rounds)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", ["timer", *(pytest.param(what, marks=pytest.mark.soak) for what in ("queue", "pipe"))])
def test_signals_for_a_thread_with_the_reference_interceptor(reference: Cluster, what: str, tmp_path: Path) -> None:
    test_directed.test_a_signal_for_a_thread_comes_to_that_thread(reference, what, tmp_path)


@pytest.mark.timeout(120)
def test_a_terminal_with_the_reference_interceptor(reference: Cluster, tmp_path: Path) -> None:
    test_directed.test_a_terminal_decides_by_what_its_caller_blocks(reference, tmp_path)


@pytest.mark.timeout(120)
def test_masks_with_the_reference_interceptor(reference: Cluster) -> None:
    test_masks.stays_and_keeps_promises(reference, "alone")  # threads and children are born at home then


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_calls_that_change_nothing_with_the_reference_interceptor(reference: Cluster) -> None:
    test_unchanged.stays(reference, "unchanged")


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_stopped_process_with_the_reference_interceptor(reference: Cluster) -> None:
    test_stopped.test_a_process_stopped_in_a_call_continues_in_that_call(reference, "waits")


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_core_with_the_reference_interceptor(reference: Cluster) -> None:
    test_core.leaves_the_same(reference, "segv")


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_marks_of_memory_with_the_reference_interceptor(reference: Cluster) -> None:
    if knows_guards():
        test_marks.test_guards_are_no_reason_to_come_home(reference)
    test_marks.test_later_mappings_are_locked(reference, "n2")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("trap", "status 159"),
        *(
            pytest.param(how, words, marks=pytest.mark.soak)
            for how, words in (("many", "trapped: 77, signal 31"), ("thread", "status 159"))
        ),
    ],
)
def test_filters_with_the_reference_interceptor(reference: Cluster, how: str, words: str) -> None:
    test_filters.is_the_same(reference, how, words, ("moved",))


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_rights_with_the_reference_interceptor(reference: Cluster) -> None:
    natively = test_rights.drops(reference)
    assert test_rights.drops(reference, "n2", "n3", stays=False) == natively  # threads and children are born at home then


@pytest.mark.soak
@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_write_without_a_reader_with_the_reference_interceptor(reference: Cluster) -> None:
    test_waits.is_written_whole(reference, "writev", test_waits.ON)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["jumps", *(pytest.param(how, marks=pytest.mark.soak) for how in ("waits", "none"))])
def test_a_signal_ends_a_write_with_the_reference_interceptor(reference: Cluster, how: str, tmp_path: Path) -> None:
    test_halves.ends_with_its_part(reference, how, ("n2",), test_halves.SENT, (HOME,) if how == "waits" else (), tmp_path)
