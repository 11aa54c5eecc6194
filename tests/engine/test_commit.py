"""The end of a move, in every order and with everything failing that can: at most one copy runs, and none is lost but with a node.

The model: a decider, a candidate, and conversations between them, each of them two queues. What may happen next, happens, in every order:
a message arrives, one side takes its next step, a conversation breaks (what is under way in it is gone, each side learns of it later), a
commit is repeated although nothing was lost, one side has waited too long, one side dies. All states are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from engine.commit import Candidate, Decider, Do, Word, decide, follow

FAULTS = 2
"""At most so many happen in one story."""


@dataclass(frozen=True)
class Talk:
    """One conversation. Messages are words, oldest first."""

    to_candidate: tuple[Word, ...] = ()
    to_decider: tuple[Word, ...] = ()
    broken: bool = False
    decider_knows: bool = False
    candidate_knows: bool = False


@dataclass(frozen=True)
class World:
    decider: Decider = Decider.MOVING
    candidate: Candidate = Candidate.BUILDING
    talks: tuple[Talk, ...] = (Talk(),)
    """the decider speaks in the newest"""
    holder_runs: bool = False
    holder_gone: bool = False
    copy_runs: bool = False
    decider_dead: bool = False
    candidate_dead: bool = False
    heard_prepared: bool = False
    said: int = 0
    """commits that were handed to the network"""
    faults: int = 0
    killed: bool = False
    silence: bool = False
    """one side gave up waiting: only when the other side cannot speak"""

    def talk(self, index: int, **changes: object) -> World:
        talks = list(self.talks)
        talks[index] = replace(talks[index], **changes)  # type: ignore[arg-type]
        return replace(self, talks=tuple(talks))


def decider_does(world: World, word: Word) -> World:
    state, action = decide(world.decider, word)
    world = replace(world, decider=state)
    newest = len(world.talks) - 1
    if action is Do.GO_ON:
        world = replace(world, holder_runs=True)
        talk = world.talks[newest]
        return world if talk.broken else world.talk(newest, to_candidate=(*talk.to_candidate, Word.ABORT))
    if action is Do.GIVE_UP:
        return replace(world, holder_gone=True)
    if action is Do.AGAIN:
        return replace(world, talks=(*world.talks, Talk((Word.COMMIT,))), said=world.said + 1)
    return world


def candidate_does(world: World, word: Word, index: int) -> World:
    state, action = follow(world.candidate, word)
    world = replace(world, candidate=state)
    if action is Do.RUN:
        world = replace(world, copy_runs=True)
    answer = {Do.RUN: Word.RUNNING, Do.ANSWER: Word.RUNNING, Do.SAY_PREPARED: Word.PREPARED}.get(action)
    if answer is not None and not world.talks[index].broken:
        return world.talk(index, to_decider=(*world.talks[index].to_decider, answer))
    return world


def nexts(world: World) -> Iterator[World]:
    newest = len(world.talks) - 1
    talk = world.talks[newest]
    if not world.candidate_dead and world.candidate is Candidate.BUILDING:
        yield candidate_does(world, Word.PREPARED, 0)
    if not world.decider_dead:
        if world.decider is Decider.MOVING:
            yield decider_does(world, Word.ABORT)  # something of its own fails
            if world.heard_prepared:
                if talk.broken:
                    yield decider_does(world, Word.UNSAID)  # the network takes nothing, or still does, and loses it
                said = world if talk.broken else world.talk(newest, to_candidate=(*talk.to_candidate, Word.COMMIT))
                yield decider_does(replace(said, said=world.said + 1), Word.COMMIT)
        for index, one in enumerate(world.talks):
            if one.to_decider:
                word, *rest = one.to_decider
                heard = world.talk(index, to_decider=tuple(rest))
                yield replace(heard, heard_prepared=True) if word is Word.PREPARED else decider_does(heard, word)
            if one.broken and not one.decider_knows and index == newest:
                yield decider_does(world.talk(index, decider_knows=True), Word.BROKEN)
        if world.decider is Decider.DECIDED and world.candidate_dead:
            yield decider_does(replace(world, silence=True), Word.SILENCE)
        if world.decider is Decider.DECIDED and not talk.broken and world.said < 3 and not world.candidate_dead:
            yield decider_does(world, Word.BROKEN)  # it is only late: said again all the same
    if not world.candidate_dead:
        for index, one in enumerate(world.talks):
            if one.to_candidate:
                word, *rest = one.to_candidate
                yield candidate_does(world.talk(index, to_candidate=tuple(rest)), word, index)
            if one.broken and not one.candidate_knows:
                yield candidate_does(world.talk(index, candidate_knows=True), Word.BROKEN, index)
        alone = world.decider_dead or world.decider in (Decider.ABORTED, Decider.LOST)
        if world.candidate is Candidate.READY and alone:
            yield candidate_does(replace(world, silence=True), Word.SILENCE, newest)
    if world.faults < FAULTS:
        faulty = replace(world, faults=world.faults + 1)
        for index, one in enumerate(world.talks):
            if not one.broken:
                for lost_there in range(len(one.to_candidate) + 1):  # the newest are lost, from somewhere on
                    for lost_here in range(len(one.to_decider) + 1):
                        yield faulty.talk(
                            index, broken=True, to_candidate=one.to_candidate[:lost_there], to_decider=one.to_decider[:lost_here]
                        )
        if not world.decider_dead:
            # The kernel ends what a dead deputy traces, a stub; a process that is merely parked goes on.
            yield replace(faulty, decider_dead=True, killed=True, holder_runs=world.holder_runs or not world.holder_gone,
                          talks=tuple(replace(one, broken=True) for one in world.talks))  # fmt: skip
        if not world.candidate_dead:
            yield replace(faulty, candidate_dead=True, killed=True, copy_runs=False,
                          talks=tuple(replace(one, broken=True) for one in world.talks))  # fmt: skip


def every_world() -> tuple[set[World], set[World]]:
    """All that can be reached, and those of them in which nothing happens any more but faults."""
    found, ends, waiting = {World()}, set(), [World()]
    while waiting:
        world = waiting.pop()
        following = list(nexts(world))
        if all(one.faults > world.faults for one in following):
            ends.add(world)
        for one in following:
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found, ends


@pytest.fixture(scope="module")
def worlds() -> tuple[set[World], set[World]]:
    return every_world()


def test_at_most_one_copy_runs_in_every_state(worlds: tuple[set[World], set[World]]) -> None:
    found, _ = worlds
    assert len(found) > 1000
    both = [world for world in found if world.holder_runs and world.copy_runs]
    assert not both, both[0]


def test_the_copy_runs_only_when_it_was_decided(worlds: tuple[set[World], set[World]]) -> None:
    found, _ = worlds
    assert not [world for world in found if world.copy_runs and not world.said]
    assert not [world for world in found if world.holder_runs and world.holder_gone]


def test_nothing_is_lost_unless_one_side_dies(worlds: tuple[set[World], set[World]]) -> None:
    """Conversations may break any number of times."""
    _, ends = worlds
    alive = [world for world in ends if not world.killed]
    assert alive
    for world in alive:
        assert world.holder_runs != world.copy_runs, world
        assert world.copy_runs == (world.decider in (Decider.DECIDED, Decider.OVER)), world


def test_a_death_loses_only_the_dead_sides_own_process(worlds: tuple[set[World], set[World]]) -> None:
    """Before the decision the process runs where it was, if that is there still; no copy stays for ever."""
    _, ends = worlds
    for world in ends:
        if not world.said and not world.decider_dead:
            assert world.holder_runs, world
        if not world.candidate_dead:
            assert world.candidate in (Candidate.RUNNING, Candidate.ENDED), world
        if world.said and not world.candidate_dead and not world.decider_dead:
            assert world.copy_runs, world


def test_without_saying_it_again_a_break_would_lose_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model sees what it is for."""
    from engine import commit

    monkeypatch.setitem(commit._DECIDER, (Decider.DECIDED, Word.BROKEN), (Decider.LOST, Do.END))
    _, ends = every_world()
    assert [world for world in ends if not world.killed and not world.holder_runs and not world.copy_runs]


def test_a_candidate_that_takes_a_break_for_the_end_would_lose_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine import commit

    monkeypatch.setitem(commit._CANDIDATE, (Candidate.READY, Word.BROKEN), (Candidate.ENDED, Do.END))
    _, ends = every_world()
    assert [world for world in ends if not world.killed and not world.holder_runs and not world.copy_runs]


def test_a_candidate_that_runs_by_itself_would_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine import commit

    monkeypatch.setitem(commit._CANDIDATE, (Candidate.READY, Word.SILENCE), (Candidate.RUNNING, Do.RUN))
    found, _ = every_world()
    assert [world for world in found if world.holder_runs and world.copy_runs]
