"""Questions about a process that the process itself can hold up: asked in a thread, for which the daemon's loop waits a moment at most.

The kernel shows some things of a process (its command line, its counters of reads and writes) under locks that the process can hold for
as long as it likes: that of its memory while a file system of its own (FUSE) does not answer, that of exec meanwhile. A read that hangs so
ends when the process does, or what it waits for. Until then nothing of that kind is asked of that process, and where there are many such,
for a while of none.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

PATIENCE = 1.0
"""Seconds for which the loop waits for one process."""
MOST, PERIOD = 4, 60.0
"""Processes that may have it wait so in as many seconds."""
MOST_THREADS = 16
"""That hang."""

T = TypeVar("T")


class _Job(Generic[T]):
    """A question about processes, one after the other."""

    def __init__(self, question: Callable[[int], T], pids: list[int]) -> None:
        self.question = question
        self.left = deque(pids)
        self.reported: dict[int, T] = {}
        self.is_over = threading.Event()
        self.is_given_up = False


class Aside:
    """Asks in a thread of its own, another one when that hangs. To be used by one thread. seconds: patience with a process."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job[Any]] | None = None
        self._hang: set[int] = set()
        self._since: deque[float] = deque(maxlen=MOST)

    def hanging(self) -> set[int]:
        """Processes of which an answer is still waited for."""
        with self._lock:
            return set(self._hang)

    def ask(self, question: Callable[[int], T], pids: Iterable[int]) -> dict[int, T]:
        """Return the answers; none of a process that keeps the kernel from answering. question: without errors."""
        reported: dict[int, T] = {}
        hang = self.hanging()
        left = [pid for pid in pids if pid not in hang]
        while left and self._may_wait():
            job = _Job(question, left)
            self._begin(job)
            left = self._after(job)
            reported |= job.reported
        return reported

    def _may_wait(self) -> bool:
        recent = len(self._since) == MOST and time.monotonic() - self._since[0] < PERIOD
        return not recent and len(self.hanging()) < MOST_THREADS

    def _begin(self, job: _Job[T]) -> None:
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(self._jobs,), daemon=True, name="aside").start()
        self._jobs.put(job)

    def _after(self, job: _Job[T]) -> list[int]:
        """Waits as long as it goes on; the processes behind the one at which it hangs."""
        before = -1
        while not job.is_over.wait(self._seconds):
            with self._lock:
                if job.left and len(job.left) == before:
                    job.is_given_up = True
                    self._hang.add(job.left[0])
                    self._jobs = None
                    self._since.append(time.monotonic())
                    return list(job.left)[1:]
                before = len(job.left)
        return []

    def _serve(self, jobs: queue.SimpleQueue[_Job[Any]]) -> None:
        while True:
            job = jobs.get()
            while job.left:
                reported = job.question(job.left[0])
                with self._lock:
                    pid = job.left.popleft()
                    if job.is_given_up:
                        self._hang.discard(pid)
                        return
                    job.reported[pid] = reported
            job.is_over.set()
