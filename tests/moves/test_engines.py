"""Both engines carry every kind of process; what CRIU cannot, the pour can."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.faults.running import Running
from tests.moves import test_exec
from tests.moves.cluster import Cluster, until
from tests.moves.storm import storm
from tests.moves.workloads import BY_NAME, scale

NAMES = ("threads", "signals", *(pytest.param(name, marks=pytest.mark.soak) for name in ("memory", "python", "counter", "quiet")))


@pytest.fixture(scope="module", params=[pytest.param("pour", marks=pytest.mark.soak), "criu"])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    cluster = Cluster(configuration=f'engine = "{request.param}"\n')
    yield cluster, request.param
    cluster.down()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_engine(engine: tuple[Cluster, str], name: str) -> None:
    cluster, engine_name = engine
    workload = BY_NAME[name]
    verdict = storm(cluster, workload, user=workload.user, scale=0.8 * scale(), every=(0.2, 0.6))
    print(verdict)
    assert not verdict.wrong, str(verdict)
    assert {move.engine for move in verdict.moves if move.done and move.kind != "home"} == {engine_name}


@pytest.mark.timeout(120)
def test_a_program_that_is_executed_away_goes_on_as_images(engine: tuple[Cluster, str]) -> None:
    cluster, _ = engine
    assert test_exec.output(cluster, "signals", "n2") == test_exec.output(cluster, "signals", None)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), "farhome-a"], ids=["root", "user"])
def test_a_program_that_landlock_confines_moves_and_stays_confined(cluster: Cluster, user: str) -> None:
    with Running(cluster, "confined", "500", user=user) as confined:
        if confined.process.poll() is not None and "status 77" in confined.said:
            pytest.skip("this kernel has no Landlock")
        for target in ("n2", "n3", "n1", "n3"):
            confined.moved(target)
            confined.works()
        assert confined.end() == "status 0\n"
        assert confined.lines() == [f"line {number}: Permission denied" for number in range(500)]


def test_a_program_whose_file_is_gone_leaves_by_criu(cluster: Cluster) -> None:
    with Running(cluster, "counter", "lines 160 50 4") as counter:
        counter.works()
        (counter.directory / counter.name).unlink()
        for target, engine in (("n2", "criu"), ("n3", "criu"), ("n1", "refill"), ("n3", "criu")):
            move = counter.move(target)
            assert move.done and move.engine == engine, str(move)
            counter.works()
        assert counter.end().endswith("status 0\n")


def test_status_says_whether_moves_by_images_work(cluster: Cluster) -> None:
    def said() -> str:
        return str(cluster.place("n2").run("mosctl", "status").stdout)

    until("it has been tried", lambda: "not been tried" not in said(), seconds=60, every=0.5)
    assert said().splitlines()[-1] == "moves by CRIU's images work here"


def test_the_engine_of_one_move_can_be_chosen(cluster: Cluster) -> None:
    with Running(cluster, "counter", "lines 100000 50 4") as counter:
        counter.works()
        for target, engine in (("n2", "criu"), ("n3", "pour"), ("n2", "criu")):
            done = cluster.home.run("migrate", str(counter.pid), target, "--engine", engine, "--json")
            assert json.loads(done.stdout)["engine"] == engine, done
            counter.works()
        done = cluster.home.run("migrate", str(counter.pid), "home", "--engine", "criu")
        assert (done.returncode, counter.where()) == (75, "n2"), done
        assert "by pouring alone" in done.stderr
        assert cluster.home.run("migrate", str(counter.pid), "home", "--engine", "magic").returncode == 64
        counter.moved("n1")
        cluster.home.run("kill", "-TERM", str(counter.pid))
        assert counter.end().endswith("status 143\n")
