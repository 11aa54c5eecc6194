"""Random programs find the same natively and away: calls, results, errors, signals, memory."""

from __future__ import annotations

import pytest

from kernel_helpers.calls.table import Class
from kernel_helpers.calls.table import rows as table_rows
from tests.moves.storm import new_seed
from tests.referee import rows
from tests.referee.compare import Court, step_name
from tests.referee.explained import explain
from tests.referee.found import found as found_before
from tests.referee.program import HANDLERS, HELPER, LENGTH, Episode, Step, episode, program

SEED = 25
"""Seed of the short run, which is the same each time."""
SHORT, LONG = 12 * LENGTH, 100_000


def check(court: Court, seed: int, calls: int, way: str, unsteady_most: float) -> None:
    """Errors: AssertionError with the shortest programs that show what is not explained."""
    episodes = program(seed, calls)
    found, unsteady = court.judge(episodes, way)
    unexplained = [one for one in found if explain(one) is None]
    shown: dict[str, str] = {}
    for one in unexplained:
        if step_name(one) not in shown and len(shown) < 5:
            short = court.shorten(one)
            shown[step_name(one)] = "\n".join([str(one), *(f"    {step.text}" for step in short.episode.steps), short.episode.script()])
    assert not unexplained, f"seed {seed}: {len(unexplained)} differences:\n" + "\n".join(shown.values())
    assert len(unsteady) <= unsteady_most * len(episodes), f"seed {seed}: differ natively: {[str(one) for one in unsteady]}"


@pytest.mark.timeout(240)
def test_random_programs_away(court: Court) -> None:
    check(court, SEED, SHORT, "away", 0.1)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", ["native", "away"])
def test_a_helper_dies_at_once_of_a_fatal_signal(court: Court, way: str) -> None:
    steps = [Step(["C 3e @h f 0 0 0 0 w"], "kill(@h, f)"), Step(["X 0 0"], "ends")]
    records = court.run([Episode(number, flags=HELPER | HANDLERS, steps=steps) for number in range(20)], way)
    assert [record.lines for record in records] == [["1 0 !17,2,@h,f", "ended 0"]] * 20


def test_sigcont_is_delivered_to_the_first_thread(court: Court) -> None:
    """The kernel wakes all threads of a process that is traced for SIGCONT: the first one to run would take it."""
    sends = Step(["T 1", "C 3e @s 12 0 0 0 0 -"], "kill(@s, 12) in thread 1")
    steps = [*(sends, Step(["T 0", "C 27 0 0 0 0 0 0 -"], "getpid() in thread 0")) * 20, Step(["X 0 0"], "ends")]
    native, away = (court.run([Episode(1, 2, HANDLERS, steps)], way)[0].lines for way in ("native", "away"))
    assert away == native
    assert sum("!18,0,@s," in line for line in native[1:40:2]) == 20


@pytest.mark.timeout(240)
def test_differences_found_before_are_fixed(court: Court) -> None:
    found, unsteady = court.judge(found_before(), "away")
    assert not found + unsteady, "\n".join(map(str, found + unsteady))


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("way", ["away", "moved"])
def test_many_random_programs(court: Court, way: str) -> None:
    seed = new_seed() % 1_000_000
    for part in range(LONG // 10_000):
        check(court, seed + part, 10_000, way, 0.1)


def test_a_seed_is_a_program() -> None:
    assert [episode(seed).script() for seed in (1, 2)] == [episode(seed).script() for seed in (1, 2)]
    assert episode(1).script() != episode(2).script()


def test_every_row_is_made_or_left_out_with_a_reason() -> None:
    names = {row.name for row in table_rows()}
    assert rows.left_out() <= names
    made = {entry[0].name for entry in rows.entries()}
    assert made | rows.left_out() == names
    described = {name for name in made if any(entry[0].name == name and entry[3] for entry in rows.entries())}
    without = {row.name for row in table_rows() if row.class_ in (Class.LOCAL, Class.KEYS, Class.GO_HOME)} & made - described
    assert without <= {*_WITHOUT_ARGUMENTS}, without


_WITHOUT_ARGUMENTS = frozenset({
    "munlockall", "sched_yield", "gettid", "getpid", "getuid", "getgid", "geteuid", "getegid", "uretprobe", "uprobe", "uselib", "_sysctl",
    "create_module", "get_kernel_syms", "query_module", "nfsservctl", "getpmsg", "putpmsg", "afs_syscall", "tuxcall", "security",
    "lookup_dcookie",
    "epoll_ctl_old", "epoll_wait_old", "vserver",
})  # fmt: skip


def test_a_program_s_calls_are_of_all_kinds() -> None:
    made = {step.text.split("(")[0] for one in program(SEED, 200 * LENGTH) for step in one.steps}
    assert len({entry[0].name for entry in rows.entries()} - made) < 12
