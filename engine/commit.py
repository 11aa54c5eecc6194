"""The end of a move: who decides where the process runs, and what each side does when it hears, or does not hear, of it. Pure.

    decider     the deputy at home: it alone decides, once, by saying `commit`
    candidate   the remote where the process is to be: it has the process ready, standing still, and lets it run at `commit` alone
    holder      where the process was, standing still: at home the process itself, which the decider holds; on another node the guest's
                remote, which does nothing by itself

A commit that could not be handed to the network has not been said. One that could may have been lost: the decider says it again, on a
connection of its own, until the candidate answers `running` (to every commit, also one that it has heard before) or its node has been
silent for link_timeout. A candidate whose conversation breaks when it is ready does not know, and waits as long.
"""

from __future__ import annotations

from enum import Enum


class Word(Enum):
    """What happens to a side."""

    PREPARED = "prepared"
    """decider: the candidate has the process ready; candidate: it has"""
    COMMIT = "commit"
    """decider: it was handed to the network; candidate: it came"""
    UNSAID = "unsaid"
    """decider: it could not be handed to the network"""
    ABORT = "abort"
    """decider: something of its own failed; candidate: it received that"""
    RUNNING = "running"
    """decider: the candidate says so"""
    BROKEN = "broken"
    """the conversation has ended, or says nothing any more"""
    SILENCE = "silence"
    """the other side has not been heard for link_timeout"""


class Decider(Enum):
    """The deputy's part."""

    MOVING = "moving"
    """the process stands still, or runs where it was"""
    ABORTED = "aborted"
    """it runs where it was"""
    DECIDED = "decided"
    """it is the candidate's"""
    OVER = "over"
    """and runs there"""
    LOST = "lost"
    """and nobody knows whether it runs there: it ends"""


class Candidate(Enum):
    """The target's part."""

    BUILDING = "building"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"


class Do(Enum):
    """What a side has to do."""

    NOTHING = "nothing"
    COMMIT = "say commit"
    GO_ON = "let the process run where it was, and say abort"
    GIVE_UP = "the process is the candidate's: where it was, it never runs again"
    AGAIN = "say commit again, on another connection"
    END = "end the copy"
    RUN = "let it run, and say running"
    ANSWER = "say running"
    SAY_PREPARED = "say prepared"


_DECIDER = {
    (Decider.MOVING, Word.PREPARED): (Decider.MOVING, Do.COMMIT),
    (Decider.MOVING, Word.COMMIT): (Decider.DECIDED, Do.GIVE_UP),
    (Decider.MOVING, Word.UNSAID): (Decider.ABORTED, Do.GO_ON),
    (Decider.MOVING, Word.ABORT): (Decider.ABORTED, Do.GO_ON),
    (Decider.MOVING, Word.BROKEN): (Decider.ABORTED, Do.GO_ON),
    (Decider.MOVING, Word.SILENCE): (Decider.ABORTED, Do.GO_ON),
    (Decider.DECIDED, Word.RUNNING): (Decider.OVER, Do.NOTHING),
    (Decider.DECIDED, Word.BROKEN): (Decider.DECIDED, Do.AGAIN),
    (Decider.DECIDED, Word.SILENCE): (Decider.LOST, Do.END),
}
_CANDIDATE = {
    (Candidate.BUILDING, Word.PREPARED): (Candidate.READY, Do.SAY_PREPARED),
    (Candidate.BUILDING, Word.ABORT): (Candidate.ENDED, Do.END),
    (Candidate.BUILDING, Word.BROKEN): (Candidate.ENDED, Do.END),
    (Candidate.BUILDING, Word.SILENCE): (Candidate.ENDED, Do.END),
    (Candidate.READY, Word.COMMIT): (Candidate.RUNNING, Do.RUN),
    (Candidate.READY, Word.ABORT): (Candidate.ENDED, Do.END),
    (Candidate.READY, Word.SILENCE): (Candidate.ENDED, Do.END),
    (Candidate.RUNNING, Word.COMMIT): (Candidate.RUNNING, Do.ANSWER),
}


def decide(state: Decider, word: Word) -> tuple[Decider, Do]:
    """Return the decider's next state, and what it does. Words that mean nothing to it now change nothing."""
    return _DECIDER.get((state, word), (state, Do.NOTHING))


def follow(state: Candidate, word: Word) -> tuple[Candidate, Do]:
    """Return the candidate's. Words that mean nothing to it now change nothing."""
    return _CANDIDATE.get((state, word), (state, Do.NOTHING))
