"""One lab for many tests: a worker makes it once, and anew after a test that failed, since that may have left it in any state. It goes down
before tests of another room run: three daemons that only wait take a twenty-fifth of a processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import stops
from tests.moves.cluster import Cluster


class Keeper:
    """Holds the cluster of this worker."""

    def __init__(self) -> None:
        self.held: Cluster | None = None
        self._patch = pytest.MonkeyPatch()

    def get(self) -> Cluster:
        if self.held is None:
            self._patch.setenv(*stops.ENVIRONMENT)  # also for daemons that tests start again
            self.held = Cluster()
            stops.prepare(self.held)
        return self.held

    def drop(self) -> None:
        if self.held is not None:
            held, self.held = self.held, None
            self._patch.undo()
            held.down()


@pytest.fixture(scope="package")
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.drop()


@pytest.fixture
def cluster(keeper: Keeper, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    failed = request.session.testsfailed
    yield keeper.get()
    if request.session.testsfailed > failed or getattr(request.node, "failed", False):
        keeper.drop()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    if outcome.get_result().failed:  # type: ignore[attr-defined]
        item.failed = True  # type: ignore[attr-defined]
