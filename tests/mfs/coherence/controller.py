"""Rounds: one actor changes something. The others, who have just checked it, check it again, and see the change or are stale.

An actor has to check before the change is made (so that it keeps what it may keep), is called the moment the change has been made,
by a pipe, by memory that both map or by a signal, and checks at once.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from lab import Node
from tests.mfs.coherence.model import DIRECTORIES, Chance, Change, Check, Tree

SLOTS = 3
WAYS = ("pipe", "memory", "signal")
BOUND = 40.0
"""Seconds in which an actor answers, however slow its file system is."""
ERRORS = frozenset(
    {errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.ESTALE, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN,
     errno.EHOSTUNREACH, errno.ENETUNREACH}
)  # fmt: skip
"""Errors of a file that cannot be reached; that it does not exist is another error, and must be true."""
UNMAPPED = frozenset({errno.EFAULT})
"""Error of a mapped page that cannot be read: SIGBUS for the process that touches it."""
NAMES_AND_ATTRIBUTES = frozenset(
    {"create", "rename", "exchange", "unlink", "link", "symlink", "mkdir", "rmdir", "chmod", "utimes", "setxattr", "removexattr"}
)
WORD = 1000.0
"""ms within which word of a change by home's own programs has come."""
PATIENCE = 2.0
"""Seconds for which a stale actor goes on checking, to find out how late the change came."""
INSIDE = "/opt/farhome"
SCRIPT = "tests/mfs/coherence/actor.py"


class Hangs(Exception):
    """An actor did not answer."""


@dataclass(frozen=True)
class Place:
    """The place of an actor: a node of a lab, or this machine; and the actor's directory there."""

    name: str
    directory: str
    node: Node | None = None
    user: str | None = None


class Actor:
    """A running actor.py."""

    def __init__(self, place: Place, number: int, shared: int, pipes: Sequence[int]) -> None:
        self.place, self.number = place, number
        arguments = [place.directory, str(number), str(shared), *map(str, pipes)]
        descriptors: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pass_fds": (shared, *pipes)}
        self.process: subprocess.Popen[Any]
        if place.node is None:
            script = Path(__file__).with_name("actor.py")
            self.process = subprocess.Popen([sys.executable, "-I", str(script), *arguments], **descriptors)
        else:
            argv = [f"{INSIDE}/.venv/bin/python", "-I", "-S", f"{INSIDE}/{SCRIPT}", *arguments]
            self.process = place.node.popen(argv, user=place.user, cwd="/", **descriptors)
        self.rest = b""

    def send(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """Returns its next answer. Errors: Hangs."""
        assert self.process.stdout is not None
        end = time.monotonic() + BOUND
        while b"\n" not in self.rest:
            if not select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise Hangs(f"{self.place.name} has not answered for {BOUND:.0f} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise Hangs(f"{self.place.name} has ended with {self.process.wait(5)}")
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def do(self, *change: Any) -> dict[str, Any]:
        self.send({"do": change})
        return dict(self.hear())

    def check(self, checks: Sequence[Check]) -> list[dict[str, Any]]:
        self.send({"check": checks})
        return list(self.hear())

    def signal(self) -> None:
        pid = self.process.host_pid if hasattr(self.process, "host_pid") else self.process.pid
        os.kill(pid, signal.SIGUSR1)

    def close(self) -> None:
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@dataclass(frozen=True)
class Stale:
    """A check that did not show what had been made; `late` in ms until it did, None: not within PATIENCE."""

    round: int
    writer: str
    change: Change
    observer: str
    way: str
    check: Check
    expected: dict[str, Any]
    seen: dict[str, Any]
    late: float | None

    @property
    def is_in_time(self) -> bool:
        """Whether the contract (C3 and C5 in docs/files.md) allows it: home's own programs change names, attributes or files that
        others have mapped. Word of such changes comes at once, but the changer does not wait for it."""
        is_word = self.check[0] == "map" or (self.change[0] in NAMES_AND_ATTRIBUTES and self.check[0] != "pread")
        return self.writer == "home" and is_word and self.late is not None and self.late < WORD

    def __str__(self) -> str:
        late = "never" if self.late is None else f"{self.late:.1f} ms later"
        change = [word if not isinstance(word, str) or len(word) < 40 else f"<{len(word)} bytes>" for word in self.change]
        seen = f"saw {self.seen} and not {self.expected}, which came {late}"
        return f"round {self.round}: {self.writer} {change}, {self.observer} (by {self.way}) {self.check}: {seen}"


@dataclass
class Report:
    """Results of all rounds."""

    seed: int
    rounds: int = 0
    checks: int = 0
    stale: list[Stale] = field(default_factory=list)
    in_time: list[Stale] = field(default_factory=list)
    """those of which word came in time"""
    failures: list[str] = field(default_factory=list)
    """changes that failed, and checks that showed an error where none was allowed"""
    errors: int = 0
    """checks and changes that ended with an error that was allowed"""
    longest: float = 0.0
    """seconds that home's own programs took for a change"""

    def kinds(self) -> dict[str, int]:
        """Returns the number of stale checks of each kind."""
        count = collections.Counter(
            f"{'home' if one.writer == 'home' else 'away'} {one.change[0]}, {'home' if one.observer == 'home' else 'away'} {one.check[0]}"
            for one in (*self.stale, *self.in_time)
        )
        return dict(count.most_common())

    def sentence(self) -> str:
        text = (
            f"seed {self.seed}: {self.rounds} rounds, {self.checks} checks, {len(self.stale)} stale, {len(self.in_time)} waiting for word"
        )
        text += f", {self.errors} errors allowed, {len(self.failures)} failures"
        return text + f", home took {self.longest * 1e3:.1f} ms at most for a change"


def agrees(expected: dict[str, Any], seen: dict[str, Any]) -> bool:
    """Whether a check shows what it must; of a file's attributes those that are known."""
    want, got = expected.get("value"), seen.get("value")
    if isinstance(want, dict) and isinstance(got, dict):
        return all(got.get(key) == value for key, value in want.items())
    return expected == seen


class Coherence:
    """Actors on one tree of files; the first is at home. A context manager."""

    def __init__(self, places: Sequence[Place], seed: int | None = None, maps: bool = False) -> None:
        """maps: also checks mapped files."""
        self.report = Report(random.SystemRandom().randrange(1 << 32) if seed is None else seed)
        self.maps = maps
        self.shared = os.memfd_create("calls")
        os.ftruncate(self.shared, 4096)
        self.pipes = [end for _ in places for end in os.pipe()]
        self.actors: list[Actor] = []
        self.cut_off: set[int] = set()
        """actors that may see a failure of the network or of a server now, as one of ERRORS"""
        self.by_home: list[tuple[float, Change]] = []
        """what home has changed lately, and when"""
        try:
            for number, place in enumerate(places):
                self.actors.append(Actor(place, number, self.shared, self.pipes))
            self.begin()
            self.find_out()
        except BaseException:
            self.close()
            raise

    @property
    def home(self) -> Actor:
        return self.actors[0]

    def begin(self) -> None:
        """A fresh tree, made at home. Errors: OSError."""
        self.tree, self.lost = Tree(len(self.actors)), False
        for actor in self.actors:
            for slot in range(SLOTS):
                actor.do("release", slot)
        for change in (["clear"], *(["mkdir", name] for name in DIRECTORIES[1:])):
            if "error" in (made := self.home.do(*change)):
                raise OSError(made["error"], f"home cannot {change[0]}")
            self._changed_by_home(change)

    def find_out(self) -> None:
        """Finds out what the file system supports at all, and leaves out the rest; the caller may insist."""
        self.home.do("create", "probe", "", 0o644)
        self.attributes = all("value" in actor.do("setxattr", "probe", "user.probe", str(actor.number)) for actor in self.actors)
        self.home.do("unlink", "probe")
        self.chance = Chance(self.report.seed, self.attributes, self.maps)

    def __enter__(self) -> Coherence:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for actor in self.actors:
            actor.close()
        for descriptor in (self.shared, *self.pipes):
            os.close(descriptor)

    # rounds

    def run(self, rounds: int, most: int = 20) -> Report:
        """Runs rounds; ends early at `most` stale checks. Errors: Hangs."""
        for _ in range(rounds):
            self.round()
            if len(self.report.stale) >= most:
                break
        return self.report

    def round(self, writers: Sequence[int] = (), without: frozenset[str] = frozenset(), hold: bool = True) -> tuple[Actor, Change] | None:
        """Makes a change by one of the writers (any actor if none are named), and checks it; skips files whose name is in `without`.

        Returns the change if it failed in a way that is allowed: whether it has been made is not known then. Errors: Hangs."""
        self.report.rounds += 1
        if self.lost:  # the consequences of what was seen are not to be reported again
            self.begin()
        pick = self.chance.random.choice
        if hold:
            self._hold(pick(self.actors))
        writer = self.actors[pick(writers or range(len(self.actors)))]
        change = self.chance.change(self.tree, writer.number, without)
        self._await_word(writer, change)
        before = self.tree.copy()
        self.tree.apply(writer.number, change)
        plans = {
            actor.number: (pick(WAYS), self.chance.checks(before, self.tree, writer.number, change, actor.number, without))
            for actor in self.actors
            if actor is not writer
        }
        for number, (_, checks) in plans.items():  # so that caches are filled
            for check, seen in zip(checks, self.actors[number].check(checks), strict=True):
                if by_home := self._under_way():
                    self._judge(before, self.actors[number], check, seen, "rounds later", self.home, by_home)
                else:
                    self._judge(before, self.actors[number], check, seen, None, writer, [f"before {change[0]}", *change[1:]])
        for number, (way, checks) in plans.items():
            self.actors[number].send({"check": checks, "await": way})
            self.actors[number].hear()
        made, answers = self._made(writer, change, {number: way for number, (way, _) in plans.items()})
        if "error" in made:
            self.tree = before
            return (writer, change) if self._failed(writer, change, made["error"]) else None
        if writer is self.home:
            self._changed_by_home(change)
        mtimes = self._mtimes(plans)
        for number, (way, checks) in plans.items():
            for check, seen in zip(checks, answers[number], strict=True):
                self._judge(self.tree, self.actors[number], check, seen, way, writer, change, mtimes)
        return None

    def _made(self, writer: Actor, change: Change, ways: dict[int, str]) -> tuple[dict[str, Any], dict[int, list[dict[str, Any]]]]:
        """Has the change made and the others called; returns the result, and what each saw."""
        begun = time.monotonic()
        writer.send({"do": change, "call": [[number, way] for number, way in ways.items() if way != "signal"]})
        made = writer.hear()
        took = time.monotonic() - begun
        if writer is self.home:
            self.report.longest = max(self.report.longest, took)
        for number, way in ways.items():
            if way == "signal":
                self.actors[number].signal()
        try:
            return made, {number: self.actors[number].hear() for number in ways}
        except Hangs as error:
            context = f"called {ways} by {writer.place.name}, whose {change[0]} took {took:.3f} s and gave {made}"
            raise Hangs(f"{error}, {context}; calls {os.pread(self.shared, 8, 0).hex()}, unread {writer.rest!r}") from None

    def _changed_by_home(self, change: Change) -> None:
        self.by_home.append((time.monotonic(), change))

    def _under_way(self) -> Change | None:
        """Returns a change by home so recent that it may not have reached all, names and attributes before data; None: there is none."""
        since = time.monotonic() - WORD / 1e3
        self.by_home = [(at, change) for at, change in self.by_home if at > since]
        changes = [change for _, change in reversed(self.by_home)]
        return next((change for change in changes if change[0] in NAMES_AND_ATTRIBUTES), changes[0] if changes else None)

    def _await_word(self, actor: Actor, change: Change) -> None:
        """An actor about to use names that home may just have given to other files has heard of that (C3 lets word come later): what
        he does would be done to what had them before."""
        if actor is self.home or actor.number in self.cut_off:
            return
        checks: list[Check] = [["stat", name] for name in sorted(self.tree.touched(actor.number, change)[0]) if name in change]
        while checks and self._under_way() and actor.check(checks) != self.home.check(checks):
            pass

    def _hold(self, actor: Actor) -> None:
        change = self.chance.hold(self.tree)
        if change is None:
            return
        self._await_word(actor, change)
        made = actor.do(*change)
        if "value" in made:
            self.tree.apply(actor.number, change)
        else:
            self.tree.held[actor.number].pop(change[1], None)
            self._failed(actor, change, made["error"])

    def _failed(self, actor: Actor, change: Change, error: int) -> bool:
        """Counts a failed change; returns whether it may fail so."""
        if actor.number in self.cut_off and error in ERRORS:
            self.report.errors += 1
            return True
        self.report.failures.append(f"round {self.report.rounds}: {actor.place.name} {change[:2]}: {os.strerror(error)}")
        self.lost = True
        return False

    def _mtimes(self, plans: dict[int, tuple[str, list[Check]]]) -> dict[str, int]:
        """Returns the mtime at home of each checked file: the value that all others must see."""
        names = sorted({str(check[1]) for _, checks in plans.values() for check in checks if check[0] == "stat"})
        seen = self.home.check([["stat", name] for name in names])
        return {name: one["value"]["mtime"] for name, one in zip(names, seen, strict=True) if "value" in one}

    def _judge(
        self, tree: Tree, actor: Actor, check: Check, seen: dict[str, Any], way: str | None, writer: Actor, change: Change,
        mtimes: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.report.checks += 1
        expected = tree.expected(actor.number, check)
        if mtimes and check[0] == "stat" and "value" in expected and check[1] in mtimes:
            expected["value"]["mtime"] = expected["value"].get("mtime", mtimes[check[1]])
        if agrees(expected, seen):
            return
        if actor.number in self.cut_off and seen.get("error") in (ERRORS | UNMAPPED if check[0] == "map" else ERRORS):
            self.report.errors += 1
            return
        late = self._late(actor, check, expected) if way else None
        found = Stale(self.report.rounds, writer.place.name, change, actor.place.name, way or "no call", check, expected, seen, late)
        (self.report.in_time if found.is_in_time else self.report.stale).append(found)
        self.lost = self.lost or actor is self.home or late is None

    def _late(self, actor: Actor, check: Check, expected: dict[str, Any]) -> float | None:
        begun = time.monotonic()
        while time.monotonic() - begun < PATIENCE:
            if agrees(expected, actor.check([check])[0]):
                return (time.monotonic() - begun) * 1e3
        return None
