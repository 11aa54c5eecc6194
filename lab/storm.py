"""Moving every movable process of a job about at random: what the tests of moves do to a program while it runs."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.lab import Lab
from lab.state import LabError

REFUSED = 75


@dataclass
class StormResult:
    """Counts of moves by kind: out, hop, home, refused (stays, with a reason), gone (it ended first), failed."""

    seed: int
    moves: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    frozen_ms: list[float] = field(default_factory=list)

    def sentence(self) -> str:
        """One line for people."""
        counts = ", ".join(f"{self.moves[kind]} {kind}" for kind in ("out", "hop", "home", "refused", "gone", "failed"))
        return f"storm with seed {self.seed}: {counts}"


def storm(
    lab: Lab,
    job: str,
    *,
    home: str = "n1",
    every: tuple[float, float] = (0.3, 2.0),
    seed: int | None = None,
    seconds: float | None = None,
    start_within: float = 15.0,
    report: Callable[[str], None] = lambda line: None,
) -> StormResult:
    """Move random processes of ``job`` to random places until it has no process any more, or for ``seconds``.

    ``every``: shortest and longest pause between moves, seconds; ``start_within``: how long to wait for the job's first
    process, seconds; ``report`` gets one line per move. Errors: LabError when mosps does not answer or no process appears.
    """
    result = StormResult(random.SystemRandom().randrange(1 << 32) if seed is None else seed)
    rng = random.Random(result.seed)
    node = lab.node(home)
    places = ["home", *(one.name for one in lab.nodes() if one.name != home)]
    begin = time.monotonic()
    seen = False
    while seconds is None or time.monotonic() - begin < seconds:
        processes = _processes(lab, home, job)
        if not processes:
            if seen:
                break
            if time.monotonic() - begin > start_within:
                raise LabError(f"no process of job {job} on {home} within {start_within:g} s.")
            time.sleep(0.1)
            continue
        seen = True
        one = rng.choice(processes)
        where = "home" if one["where"] in ("home", home) else str(one["where"])
        targets = [place for place in places if place != where and _is_alive(lab, place)]
        if targets:
            _move(result, node.run, int(one["pid"]), where, rng.choice(targets), report)
        time.sleep(rng.uniform(*every))
    return result


def _is_alive(lab: Lab, place: str) -> bool:
    return place == "home" or lab.node(place).is_alive()


def _processes(lab: Lab, home: str, job: str) -> list[dict[str, Any]]:
    """The job's processes as mosps reports them. Errors: LabError."""
    answer = lab.node(home).run(["mosps", "--json", "-a", "-J", job], timeout=30, text=True)
    if answer.returncode:
        raise LabError(f"mosps on {home} says: {' '.join(answer.stderr.split())}")
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def _move(
    result: StormResult,
    run: Callable[..., subprocess.CompletedProcess[Any]],
    pid: int,
    where: str,
    target: str,
    report: Callable[[str], None],
) -> None:
    try:
        answer = run(["migrate", str(pid), target, "--json"], timeout=90, text=True)
        status, text = answer.returncode, " ".join((answer.stderr or answer.stdout).split())
    except subprocess.TimeoutExpired:
        status, text = -1, "migrate does not end within 90 s"
    if status == 0:
        kind = "home" if target == "home" else "out" if where == "home" else "hop"
        try:
            result.frozen_ms.append(float(json.loads(answer.stdout)["frozen_ms"]))
        except (ValueError, KeyError, TypeError):
            pass
    elif run(["kill", "-0", str(pid)], timeout=30).returncode:
        kind = "gone"
    elif status == REFUSED:
        kind = "refused"
        result.refusals[text] += 1
    else:
        kind = "failed"
        result.failures.append(f"{pid} {where} -> {target}: exit status {status}: {text}")
    result.moves[kind] += 1
    report(f"{pid} {where} -> {target}: {kind}{'' if status == 0 else ': ' + text}")
