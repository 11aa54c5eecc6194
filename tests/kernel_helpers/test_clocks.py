"""No wait uses the wall clock: setting that clock would end a wait at once, or prolong it."""

from __future__ import annotations

from pathlib import Path

import pytest

HELPERS = Path(__file__).resolve().parents[2] / "kernel_helpers"
SOURCES = sorted(HELPERS.rglob("*.c"))
TIMES_OF_FILES = {"mfs/server/coherence/promises.c", "link/home/files/access_time.c"}
"""Sources that compare times of files with the current time."""
MONOTONIC = {"usage/sampler.c", "link/session/send.c"}
"""Sources whose conditions use the monotonic clock (pthread_condattr_setclock)."""


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(HELPERS)))
def test_waits_use_a_clock_that_cannot_be_set(source: Path) -> None:
    text = source.read_text()
    name = str(source.relative_to(HELPERS))
    assert "CLOCK_REALTIME" not in text or name in TIMES_OF_FILES
    for wait in ("pthread_mutex_timedlock", "sem_timedwait", "pthread_rwlock_timedrdlock", "pthread_rwlock_timedwrlock"):
        assert wait not in text
    assert "pthread_cond_timedwait" not in text or name in MONOTONIC
