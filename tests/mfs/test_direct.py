"""A process that is away reads files where it is, and nobody can tell: tests/programs/reader.c knows what each byte has to be."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)
STORM = 120
"""Seconds."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(configuration="\n[mfs]\ndirect = true\ndirect_after = 2\n")
    yield made
    made.down()


def read_by(cluster: Cluster, node: str) -> int:
    """Bytes that home's file server has given to a node."""
    return sum(row["bytes_read"] for row in status(cluster)["served"] if row["peer"] == node)


def status(cluster: Cluster) -> dict[str, Any]:
    """What `mosctl mfs status` tells of home."""
    told: dict[str, Any] = json.loads(cluster.home.run("mosctl", "mfs", "status", "--json").stdout)
    return told


def test_it_reads_there_what_is_in_the_files_and_stays_itself(cluster: Cluster) -> None:
    with Running(cluster, "reader", "4 300000") as reader:
        reader.works()
        for target in ("n2", "n3", HOME):
            reader.moved(target)
            for _ in range(3):
                reader.works(20)
            if target != HOME:
                until("files are read there", partial(read_by, cluster, target), seconds=20)
        (reader.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in reader.end(), reader.said
    for node in ("n2", "n3"):
        until("no client is left", partial(has_no_client, cluster, node))


READS = """
import os, sys, time
with open("data", "rb") as source:
    data = source.read()
while not os.path.exists("go"):
    time.sleep(0.02)
rounds = 0
while rounds < int(sys.argv[1]) or sys.argv[2:] and not os.path.exists(sys.argv[2]):
    rounds += 1
    os.lseek(5, 0, os.SEEK_SET)
    for n in range(1000):
        assert os.read(5, 100) == data[n * 100 : n * 100 + 100], n
os.lseek(5, 7, os.SEEK_CUR)
print("read")
"""


def test_a_file_that_was_open_before_is_read_there_if_it_is_its_alone(cluster: Cluster) -> None:
    with started(cluster, "", "python3 /tmp/reads.py 1 enough 5< data") as job:
        before = read_by(cluster, "n2")
        (job.directory / "go").touch()
        until("it is read there", lambda: read_by(cluster, "n2") > before, seconds=30)
        (job.directory / "enough").touch()
        assert "read\nstatus 0" in job.end(), job.said


def test_who_has_the_same_position_goes_on_where_it_was_left(cluster: Cluster) -> None:
    with started(cluster, "exec 5< data;", "python3 /tmp/reads.py 2; wc -c <&5") as job:
        before = read_by(cluster, "n2")
        (job.directory / "go").touch()
        assert "read\n199993\nstatus 0" in job.end(), job.said
        assert read_by(cluster, "n2") == before


def started(cluster: Cluster, first: str, command: str) -> Running:
    """That program, away, where `data` are 300000 bytes."""
    (cluster.home.root / "tmp" / "reads.py").write_text(READS)
    job = Running(cluster, "reader", "", mosrun=f"head -c 300000 /dev/urandom > data; {first} mosrun -L", command=command)
    job.moved("n2")
    return job


def test_threads_that_read_by_one_descriptor_have_each_record_once(cluster: Cluster) -> None:
    with Running(cluster, "readers", "3 20000") as readers:
        readers.works()
        for target in ("n2", "n3", HOME, "n2"):
            before = 0 if target == HOME else read_by(cluster, target)
            readers.moved(target)
            for _ in range(3):
                readers.works(30)
            if target != HOME:
                until("the file is read there", lambda node=target, had=before: read_by(cluster, node) > had, seconds=20)
        (readers.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in readers.end(), readers.said


def test_a_client_that_dies_is_followed_by_another_and_no_read_fails(cluster: Cluster) -> None:
    with Running(cluster, "reader", "2 300000") as reader:
        reader.moved("n2")
        for signal in ("KILL", "SEGV", "KILL", "TERM", "KILL"):
            client = until("a client is there", partial(client_on, cluster, "n2"), seconds=20)
            before = read_by(cluster, "n2")
            cluster.place("n2").run("kill", f"-{signal}", client)
            until("there is another", lambda gone=client: client_on(cluster, "n2") not in ("", gone), seconds=20)
            until("files are read by it", lambda had=before: read_by(cluster, "n2") > had, seconds=20)
            reader.works(20)
        assert reader.where() == "n2"
        (reader.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in reader.end(), reader.said
    until("no client is left", partial(has_no_client, cluster, "n2"))


def client_on(cluster: Cluster, node: str) -> str:
    """The process id of what serves the mount of guests' own on that node."""
    return cluster.place(node).run("pgrep", "-x", "mfs-worker").stdout.strip()


def has_no_client(cluster: Cluster, node: str) -> bool:
    """Whether no mount of guests' own is on that node."""
    return not client_on(cluster, node)


@pytest.mark.soak
def test_it_is_moved_about_in_the_middle_of_it(cluster: Cluster) -> None:
    chance = random.Random(2)
    with Running(cluster, "reader", "3 500000", "farhome-a") as reader:
        end = time.monotonic() + STORM
        while time.monotonic() < end:
            reader.works(30)
            target = chance.choice([node for node in cluster.names if node != reader.where()])
            reader.moved(target)
        (reader.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in reader.end(), reader.said


@pytest.mark.soak
def test_threads_are_moved_about_in_the_middle_of_it(cluster: Cluster) -> None:
    chance = random.Random(3)
    with Running(cluster, "readers", "4 50000", "farhome-a") as readers:
        end = time.monotonic() + STORM
        while time.monotonic() < end:
            readers.works(30)
            readers.moved(chance.choice([node for node in cluster.names if node != readers.where()]))
        (readers.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in readers.end(), readers.said


@pytest.mark.soak
def test_a_read_waits_for_a_home_that_is_cut_off_and_for_its_server(cluster: Cluster) -> None:
    with Running(cluster, "reader", "2 1000000") as reader:
        reader.moved("n2")
        for _ in range(3):
            reader.works(30)
        for _ in range(3):
            cluster.lab.cut(HOME, "n2", 6)
            reader.works(40)
        for _ in range(3):
            server = until("a server runs", lambda: status(cluster)["server"])
            cluster.home.run("kill", "-KILL", str(server))
            reader.works(40)
        assert reader.where() == "n2"
        (reader.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in reader.end(), reader.said
