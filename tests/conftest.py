"""Fixtures for all tests: labs of their own, and the check that nothing is left after the run."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from engine.leaving.processor import own_processor
from lab import Lab
from tests import leftovers

HERE = Path(__file__).parent
ROOMS = ["moves", "faults", "mfs", "attacks", "node", "fuzz", "bench", "balancer", "referee", "engine", "lab", "link", "cli"]
"""Folders of tests in the order in which they run: those of long tests first, so that at the end no worker waits for another's. The tests
of a folder run one after the other, for a cluster that they share goes down when a worker comes to another folder. All others come last."""
FEATURES = ("ospke", "user_shstk", "avx2", "avx512f", "amx_tile", "apxf")
"""Flags of /proc/cpuinfo: tests of what they stand for show something only where they are."""

_numbers = itertools.count(1)
_before: leftovers.Snapshot | None = None


def _is_controller(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Give this run its id, which every process that it starts inherits, and remember what is there."""
    global _before
    if _is_controller(config):
        os.environ[leftovers.RUN] = secrets.token_hex(4)
        _before = leftovers.take(os.environ[leftovers.RUN])


def pytest_report_header() -> str:
    """Report what the tests depend on: the processor, the kernel, and the features that not every machine has."""
    processor = own_processor()
    features = " ".join(f"{'has' if flag in processor.flags else 'no'} {flag}," for flag in FEATURES).rstrip(",")
    return f"machine: {processor.vendor}, Linux {os.uname().release}, XCR0 {processor.xcr0:#x} of {processor.xsave} bytes; {features}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the rooms in order."""
    places = {name: place for place, name in enumerate(ROOMS)}

    def place(item: pytest.Item) -> int:
        folders = item.path.relative_to(HERE).parts
        return places.get(folders[0], len(ROOMS))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """After the last fixture and worker has ended: any leftover fails the run."""
    yield
    if not _is_controller(session.config) or _before is None:
        return
    faults, remarks = leftovers.difference(_before, os.environ[leftovers.RUN])
    for line in remarks[:5]:
        print(f"\nnew on this machine, perhaps of others: {line}", file=sys.stderr, end="")
    for line in faults:
        print(f"\nLEFT BEHIND: {line}", file=sys.stderr, end="")
    if faults:
        print(file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def lab_name() -> Callable[[], str]:
    """Makes unique names of labs."""
    return lambda: f"t-{os.environ[leftovers.RUN]}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def lab3(lab_name: Callable[[], str]) -> Iterator[Lab]:
    """A fresh lab: n1, n2, n3, with daemons where there are any."""
    with Lab.up(3, name=lab_name()) as lab:
        yield lab


@pytest.fixture
def bare_lab(lab_name: Callable[[], str]) -> Iterator[Lab]:
    """A fresh lab without daemons: n1, n2, n3."""
    with Lab.up(3, name=lab_name(), mosd=False) as lab:
        yield lab
