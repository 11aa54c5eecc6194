"""Runs a random program natively and away, and finds where they differ, and the shortest program that shows it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.moves.cluster import HOME, Cluster, until
from tests.moves.outcome import PATH, kill_session
from tests.moves.storm import BUNDLES, Mover
from tests.moves.workloads import USER
from tests.programs.build import program as built
from tests.referee.program import Episode, Step

NUMBERS = itertools.count(1)
FIRST_PID = 1_000_000
"""Ids of processes are higher than any other number of a program, so that they are known for what they are."""
AGAIN = 4
"""Number of native reruns of a difference: a difference that occurs there, too, or after an earlier one, does not count."""
HANGS = "it hangs"
LONGEST, SLOWEST = 180, 3
"""Seconds after which a run counts as hanging, and how much an episode adds."""


@dataclass
class Record:
    """The results of an episode: a line for each step; and how it ended."""

    lines: list[str] = field(default_factory=list)


@dataclass
class Difference:
    """A difference between an episode and every native run of it. at: the line of the records."""

    episode: Episode
    way: str
    at: int
    native: str
    found: str
    before: list[str] = field(default_factory=list)
    """what both found up to there"""

    def __str__(self) -> str:
        step = self.step()
        what = step.text if step else "the end"
        return f"seed {self.episode.seed}, {self.way}, {what}\n    natively {self.native}\n    {self.way:8} {self.found}"

    def step(self) -> Step | None:
        """The step that gave another result."""
        return step_of(self.episode, self.native) or step_of(self.episode, self.found)


def step_of(episode: Episode, line: str) -> Step | None:
    """Returns the step that a line of a record reports: the line begins with the number of the step's last line in the script."""
    number = line.split(" ", 1)[0]
    if not number.isdigit():
        return None
    count = 0
    for step in episode.steps:
        count += len(step.lines)
        if count >= int(number):
            return step
    return None


def parted(text: str) -> list[Record]:
    """A record's episodes."""
    found: list[Record] = []
    for line in text.splitlines():
        if line.startswith("episode "):
            found.append(Record())
        elif found:
            found[-1].lines.append(line)
    return found


class Court:
    """A cluster in which programs are run, as an ordinary user. Its node n1 is home."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.compared: Counter[str] = Counter()
        """by way: calls of which it was found that they give the same"""
        self.directory = cluster.home.root / "tmp" / f"referee-{os.getpid()}"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o755)
        self.directory.chmod(0o777)  # FROM MAIN: run as an ordinary user only: as root it changed / and /dev of this machine
        shutil.copyfile(built("referee.static"), self.directory / "referee")
        (self.directory / "referee").chmod(0o755)
        self.is_safe()
        burn = "for i in 1 2 3 4 5 6 7 8; do ipcmk -Q; ipcmk -M 64; ipcmk -S 1; done > /dev/null && ipcrm --all"
        assert cluster.home.run("sh", "-c", burn).returncode == 0, "low ids of objects are to be unused"
        done = cluster.home.run("sh", "-c", f"echo {FIRST_PID} > /proc/sys/kernel/ns_last_pid")
        assert done.returncode == 0, done.stderr

    def is_safe(self) -> None:
        """Checks that random calls are made without rights. Errors: AssertionError."""
        done = self.cluster.home.run(f"/tmp/{self.directory.name}/referee", "script", "record", "work", user="")
        assert done.returncode == 77, "it must refuse to run as root"

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, episodes: Sequence[Episode], way: str, *, exact: bool = False) -> list[Record]:
        """Runs them in one program. way: native, away (from its first instruction on), moved (again and again, at random)."""
        inside = f"/tmp/{self.directory.name}"
        work, job = self.directory / "work", f"referee-{os.getpid()}-{next(NUMBERS)}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o755)
        record = self.directory / "record"
        record.unlink(missing_ok=True)
        record.touch()
        shutil.chown(record, USER, USER)
        work.chmod(0o777)  # not the program's own: it could take its rights away
        (self.directory / "go").unlink(missing_ok=True)
        (self.directory / "script").write_text("".join(one.script() for one in episodes))
        command = f"exec {inside}/referee {inside}/script {inside}/record {inside}/work{' exact' if exact else ''}"
        launcher = [] if way == "native" else ["mosrun", "-L", "-J", job, "--"]
        script = ["sh", "-c", f"while [ ! -e {inside}/go ]; do sleep 0.02; done; {command}"]
        process = self.cluster.home.popen(
            ["env", "-i", f"PATH={PATH}", "setsid", "--wait", *launcher, *script], "farhome-a", stdin=-3, stdout=-3
        )
        mover: Mover | None = None
        try:
            if way != "native":
                pid = int(until("it is registered", lambda: next(iter(self.cluster.processes(job)), None), seconds=30)["pid"])
                move = self.cluster.migrate(pid, HOME, "n2")
                assert move.done, str(move)
            if way == "moved":
                mover = Mover(self.cluster, job, episodes[0].seed, (0.1, 0.5))
                mover.start()
            (self.directory / "go").touch()
            process.wait(LONGEST + SLOWEST * len(episodes))
        except subprocess.TimeoutExpired as error:
            self.cluster.logs(BUNDLES / self.directory.name)
            raise AssertionError(f"the runner hangs; see {BUNDLES / self.directory.name}") from error
        finally:
            if mover is not None:
                mover.stop()
            if process.poll() is None:
                kill_session(process.pid)
                process.wait(10)
        self.cluster.home.run("ipcrm", "--all")
        text = record.read_text(errors="replace")
        assert text.endswith("all recorded\n"), f"the runner has ended with {process.returncode}; last: {text[-300:]}"
        records = parted(text.removesuffix("all recorded\n"))
        assert len(records) == len(episodes)
        return records

    def judge(self, episodes: Sequence[Episode], way: str) -> tuple[list[Difference], list[Difference]]:
        """Finds differences between runs that way and all native ones; and between native ones, after which nothing is judged."""
        native = self.run(episodes, "native")
        unsteady = [
            Difference(episode, "natively", len(record.lines) - 1, HANGS, "")
            for episode, record in zip(episodes, native, strict=True) if HANGS in record.lines
        ]  # fmt: skip
        fair = [number for number, record in enumerate(native) if HANGS not in record.lines]
        there = self.run([episodes[number] for number in fair], way)
        found: list[Difference] = []
        for number, record in zip(fair, there, strict=True):
            lines = native[number].lines
            at = first_difference(lines, record.lines)
            self.compared[way] += calls_of(lines[:at])
            if at is not None:
                found.append(difference(episodes[number], way, at, lines, record.lines))
        again = [self.run([one.episode for one in found], "native") for _ in range(AGAIN if found else 0)]
        for number, one in reversed(list(enumerate(found))):
            if any(is_unsteady(one, run[number].lines) for run in again):
                unsteady.append(found.pop(number))
        return found, unsteady

    def shorten(self, difference: Difference, rounds: int = 12) -> Difference:
        """The shortest episode found that still shows it, each round of candidates being one program."""
        best = cut_after(difference)
        size = max(1, len(best.episode.steps) // 2)
        for _ in range(rounds):
            steps = best.episode.steps
            candidates = [without(best.episode, start, size) for start in range(0, len(steps) - 1, size)]
            shorter = self._first_that_shows(candidates, difference)
            if shorter is not None:
                best = shorter
                size = min(size, max(1, len(best.episode.steps) // 2))
            elif size == 1:
                break
            else:
                size = max(1, size // 2)
        return best

    def both(self, difference: Difference) -> tuple[Record, Record]:
        """Returns the episode's records natively and away, with each line written at once."""
        return tuple(self.run([difference.episode], way, exact=True)[0] for way in ("native", difference.way))  # type: ignore[return-value]

    def _first_that_shows(self, candidates: list[Episode], difference: Difference) -> Difference | None:
        if not candidates:
            return None
        wanted = step_name(difference)
        found, _ = self.judge(candidates, difference.way)
        return next((one for one in sorted(found, key=lambda one: len(one.episode.steps)) if step_name(one) == wanted), None)


def step_name(difference: Difference) -> str:
    step = difference.step()
    return step.text.split("(", 1)[0] if step else "the end"


def cut_after(difference: Difference) -> Difference:
    """The episode without what follows the difference."""
    episode, step = difference.episode, difference.step()
    steps = episode.steps[: episode.steps.index(step) + 1] if step in episode.steps else list(episode.steps)
    shorter = Episode(episode.seed, episode.threads, episode.flags, steps)
    return Difference(shorter, difference.way, difference.at, difference.native, difference.found)


def without(episode: Episode, start: int, size: int) -> Episode:
    """The last step always stays."""
    steps = episode.steps[:start] + episode.steps[min(start + size, len(episode.steps) - 1) :]
    return Episode(episode.seed, episode.threads, episode.flags, steps)


def first_difference(one: list[str], other: list[str]) -> int | None:
    for at, (a, b) in enumerate(itertools.zip_longest(one, other)):
        if a != b:
            return at
    return None


def difference(episode: Episode, way: str, at: int, native: list[str], there: list[str]) -> Difference:
    return Difference(episode, way, at, line_at(native, at), line_at(there, at), native[:at])


def is_unsteady(one: Difference, again: list[str]) -> bool:
    """Returns whether a native run gives another result up to there as well."""
    return again[: one.at] != one.before or line_at(again, one.at) != one.native


def calls_of(lines: list[str]) -> int:
    """Returns how many calls a record reports: a line for each, which begins with a number."""
    return sum(line[:1].isdigit() for line in lines)


def line_at(lines: list[str], at: int) -> str:
    return lines[at] if at < len(lines) else "nothing more"
