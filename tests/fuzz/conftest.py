"""Fuzzers wait for nothing but their processor: those of a file run side by side, as many as there are processors."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

Done = subprocess.CompletedProcess[str]
Command = tuple[Sequence[str | Path], dict[str, str]]
"""A command line and its environment."""
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 3600 if os.environ.get("FARHOME_LONG_TESTS") else 1
"""Seconds for which each parser is fuzzed."""
LEAST = 300
"""Seconds that a fuzzer has to come to its end beside that."""


class SideBySide:
    """Programs of the tests of one file, one for each `name` that a test has as its parameter."""

    def __init__(self, names: Sequence[str], command: Callable[[str], Command]) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        self._done: dict[str, Future[Done]] = {name: self._pool.submit(self._run, *command(name)) for name in names}

    def _run(self, command: Sequence[str | Path], environment: dict[str, str]) -> Done:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=ROOT,
            env=environment,
        ) as process:  # fmt: skip
            self._running.add(process)
            try:
                said, complained = process.communicate(timeout=SECONDS + LEAST)
            finally:
                process.kill()
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, said, complained)

    def result(self, name: str) -> Done:
        """When it has ended. Errors: subprocess.TimeoutExpired."""
        return self._done[name].result()

    def close(self) -> None:
        """Ends what runs, and begins nothing more."""
        for future in self._done.values():
            future.cancel()
        for process in list(self._running):
            process.kill()
        self._pool.shutdown()


@pytest.fixture(scope="module")
def side_by_side(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[str], Command]], SideBySide]]:
    """Starts the programs of those tests of this file that will run; they end with the file's tests."""
    started: list[SideBySide] = []

    def start(command: Callable[[str], Command]) -> SideBySide:
        items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
        started.append(SideBySide([item.callspec.params["name"] for item in items], command))
        return started[0]

    yield start
    for one in started:
        one.close()
