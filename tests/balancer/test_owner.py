"""The owner's state machine: every step, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancer.lending.owner import SUSPICION, OwnerRules, OwnerState, Sight, Stage, step, why_back

IDLE = Sight(idle=1e6, load=0.0, guests=2)
TYPED = replace(IDLE, idle=0.0)
RULES = OwnerRules(freeze_after=0.1, evict_after=0.5, deadline=10.0)
LENDING = OwnerState(Stage.LENDING)


def run(sights: list[tuple[float, Sight]], rules: OwnerRules = RULES, idle_after: float = 60.0, state: OwnerState = LENDING) -> list[Stage]:
    """The stages after each of (time, sight)."""
    stages = []
    for now, sight in sights:
        state = step(state, sight, rules, idle_after, now)
        stages.append(state.stage)
    return stages


def test_guests_are_throttled_at_once_then_frozen_then_evicted_then_late() -> None:
    times = [0.0, 0.05, 0.1, 0.3, 0.6, 5.0, 10.5, 10.7, 60.0]
    assert run([(now, TYPED) for now in times]) == [
        Stage.THROTTLED, Stage.THROTTLED, Stage.FROZEN, Stage.FROZEN, Stage.EVICTING, Stage.EVICTING, Stage.EVICTING,
        Stage.LATE, Stage.LATE,
    ]  # fmt: skip


def test_the_owner_has_the_node_as_soon_as_no_guest_is_left() -> None:
    gone = replace(TYPED, guests=0)
    assert run([(0.0, TYPED), (0.2, TYPED), (0.8, TYPED), (2.0, gone)])[-1] is Stage.OWNER
    assert run([(0.0, gone)]) == [Stage.OWNER]


@pytest.mark.parametrize(
    ("far", "last"), [("nothing", Stage.OWNER), ("throttle", Stage.THROTTLED), ("freeze", Stage.FROZEN), ("evict", Stage.LATE)]
)
def test_the_owners_return_goes_as_far_as_the_policy_says(far: str, last: Stage) -> None:
    assert run([(float(now), TYPED) for now in range(60)], replace(RULES, on_return=far))[-1] is last


def test_a_reason_that_passes_at_once_freezes_no_guest() -> None:
    rules = replace(RULES, busy_load=0.5, calm=2.0)
    busy, quiet = replace(IDLE, load=0.9), IDLE
    stages = run([(0.0, busy), (0.05, quiet), (0.2, quiet), (1.0, quiet), (2.04, quiet), (2.1, quiet)], rules, idle_after=0.0)
    assert stages == [Stage.THROTTLED] * 5 + [Stage.LENDING]


BUSY = replace(IDLE, load=0.9, surge=1.0)
SURGE = replace(IDLE, load=0.2, surge=1.0)


def test_a_surge_that_may_be_the_owners_holds_guests_back_and_freezes_none() -> None:
    rules = replace(RULES, busy_load=0.5)
    unknown = replace(IDLE, surge=None)
    stages = run([(0.0, SURGE), (0.1, IDLE), (0.15, unknown), (SUSPICION, IDLE), (3.0, SURGE), (3.1, SURGE), (3.5, SURGE)], rules, 0.0)
    assert stages == [Stage.SUSPECTED] * 3 + [Stage.LENDING] + [Stage.SUSPECTED] * 3
    held_back = OwnerState(Stage.SUSPECTED)
    assert (held_back.is_throttled, held_back.is_frozen, held_back.withholds) == (True, False, None)


def test_a_confirmed_suspicion_counts_from_its_beginning() -> None:
    rules = replace(RULES, busy_load=0.5)
    assert run([(0.0, SURGE), (0.04, BUSY), (0.09, BUSY), (0.1, BUSY), (0.59, BUSY), (0.6, BUSY)], rules, 0.0) == [
        Stage.SUSPECTED, Stage.THROTTLED, Stage.THROTTLED, Stage.FROZEN, Stage.FROZEN, Stage.EVICTING,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sight", "rules"),
    [
        (SURGE, RULES), (replace(SURGE, guests=0), replace(RULES, busy_load=0.5)), (SURGE, replace(RULES, busy_load=1.5)),
        (SURGE, replace(RULES, busy_load=0.5, on_return="nothing")), (replace(SURGE, surge=None), replace(RULES, busy_load=0.5)),
    ],
)  # fmt: skip
def test_no_surge_is_suspected_without_guests_or_rules_about_it(sight: Sight, rules: OwnerRules) -> None:
    assert run([(0.0, sight)], rules, 0.0) == [Stage.LENDING]


def test_the_wait_for_calm_restarts_with_every_reason() -> None:
    rules = replace(RULES, busy_load=0.5, calm=2.0)
    busy = replace(IDLE, load=0.9)
    sights = [(0.0, busy), (0.2, busy), (0.3, IDLE), (2.2, IDLE), (2.25, busy), (2.3, IDLE), (4.2, IDLE), (4.3, IDLE)]
    assert run(sights, replace(rules, on_return="freeze"), idle_after=0.0)[2:] == [Stage.FROZEN] * 5 + [Stage.LENDING]


def test_to_lend_again_less_load_is_allowed_than_to_go_on() -> None:
    rules = replace(RULES, busy_load=0.5, idle_load=0.2, calm=0.0)
    middling, quiet = replace(IDLE, load=0.4, guests=0), replace(IDLE, load=0.1, guests=0)
    assert run([(0.0, middling)], rules, 0.0) == [Stage.LENDING]
    assert run([(0.0, middling), (1.0, quiet)], rules, 0.0, OwnerState()) == [Stage.OWNER, Stage.LENDING]


def test_an_owner_who_says_that_he_is_away_is_believed_and_one_whose_load_has_gone_is_waited_for() -> None:
    rules = replace(RULES, busy_load=0.5)
    called, busy = replace(IDLE, is_called=True, guests=0), replace(IDLE, load=0.9, guests=0)
    assert run([(0.0, called), (0.1, IDLE)], rules, 0.0) == [Stage.OWNER, Stage.LENDING]
    assert run([(0.0, busy), (0.1, IDLE)], rules, 0.0) == [Stage.OWNER, Stage.OWNER]
    waiting = step(step(LENDING, busy, rules, 0.0, 0.0), replace(IDLE, guests=0), rules, 0.0, 0.1)
    assert str(waiting.withholds).startswith("the owner has had the node until a moment ago: ")


def test_an_owner_whose_load_becomes_a_little_less_is_still_there() -> None:
    rules = replace(RULES, busy_load=0.5, idle_load=0.2, calm=0.5)
    busy, middling, quiet = (replace(IDLE, load=load) for load in (0.6, 0.4, 0.1))
    sights = [(0.0, busy), (0.2, middling), (0.8, middling), (3.0, middling), (3.1, quiet), (3.5, quiet), (3.7, quiet)]
    assert run(sights, rules, 0.0) == [Stage.THROTTLED, Stage.FROZEN] + [Stage.EVICTING] * 4 + [Stage.LENDING]


def test_guests_that_are_found_when_the_owner_is_there_already_go_like_any_other() -> None:
    assert run([(0.0, TYPED), (0.2, TYPED), (1.0, TYPED)], state=OwnerState()) == [Stage.THROTTLED, Stage.FROZEN, Stage.EVICTING]
    rules = replace(RULES, busy_load=0.5, idle_load=0.2)
    assert run([(0.0, replace(IDLE, load=0.4))], rules, 0.0, OwnerState()) == [Stage.OWNER]


def test_a_node_lends_again_when_its_owner_has_been_away_for_long_enough() -> None:
    sights = [(float(now), replace(IDLE, idle=float(now), guests=0)) for now in (0, 30, 59, 60)]
    assert run(sights) == [Stage.OWNER, Stage.OWNER, Stage.OWNER, Stage.LENDING]


def test_eviction_goes_on_until_the_reason_has_passed() -> None:
    assert run([(0.0, TYPED), (0.2, TYPED), (0.8, TYPED), (3.0, IDLE)])[-2:] == [Stage.EVICTING, Stage.LENDING]


@pytest.mark.parametrize(
    ("sight", "rules", "idle_after", "words"),
    [
        (IDLE, RULES, 60.0, None),
        (TYPED, RULES, 0.0, None),
        (TYPED, RULES, 60.0, "used the node 0 s ago"),
        (replace(IDLE, idle=None), RULES, 60.0, "cannot know"),
        (replace(IDLE, is_called=True), RULES, 0.0, "mosctl owner back"),
        (replace(IDLE, load=1.25), replace(RULES, busy_load=1.0), 0.0, "use 1.2 processors"),
        (replace(IDLE, load=None), replace(RULES, busy_load=1.0), 0.0, None),
        (replace(IDLE, is_pressed=True), RULES, 0.0, None),
        (replace(IDLE, is_pressed=True), replace(RULES, pressure=True), 0.0, "memory or disk"),
        (replace(IDLE, closed="it is night"), RULES, 0.0, "it is night"),
    ],
)
def test_why_the_owner_is_back(sight: Sight, rules: OwnerRules, idle_after: float, words: str | None) -> None:
    reason = why_back(rules, idle_after, sight)
    assert reason is None if words is None else words in str(reason)


def test_a_withheld_node_says_why() -> None:
    state = step(LENDING, TYPED, RULES, 60.0, 0.0)
    assert "used the node" in str(state.withholds)
    assert (state.is_throttled, state.is_frozen) == (True, False)
    assert LENDING.withholds is None
