"""A process that is away reads files on its node, with no visible difference: tests/programs/reader.c checks each byte."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from remote.requests.home_files import PREFIX
from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)
DISK = "/var/cache"
"""Directory in which a node's files are the machine's, wherever the clone lies."""
STORM = 120
"""Seconds."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Root of n1, whose programs write to n2, is root there; root of n2 and n3 is nobody on n1, and reads what n1's programs have open.
    made = Cluster(configuration='\n[mfs]\nexports = ["/tmp", "/dev/shm"]\nroot = ["n1"]\ndirect = true\ndirect_after = 2\n')
    yield made
    made.down()


def read_by(cluster: Cluster, node: str) -> int:
    """Bytes that home's file server has given to a node."""
    return sum(row["bytes_read"] for row in status(cluster)["served"] if row["peer"] == node)


def status(cluster: Cluster) -> dict[str, Any]:
    """Returns what `mosctl mfs status` shows of home, without the cost of the command: it is polled."""
    return cluster.lab.node(HOME).ask_mosd("mfs")


def test_a_process_away_reads_the_files_content_and_keeps_its_identity(cluster: Cluster) -> None:
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
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
rounds = 0
while rounds < int(sys.argv[1]) or sys.argv[2:] and not os.path.exists(sys.argv[2]):
    rounds += 1
    os.lseek(5, 0, os.SEEK_SET)
    for n in range(1000):
        assert os.read(5, 100) == data[n * 100 : n * 100 + 100], n
    if rounds == 2:
        open("twice", "w").close()
os.lseek(5, 7, os.SEEK_CUR)
print("read")
"""


def test_a_file_that_was_open_before_is_read_there_if_it_is_its_alone(cluster: Cluster) -> None:
    until("no client is left", partial(has_no_client, cluster, "n2"))
    with started(cluster, "", "python3 /tmp/reads.py 1 enough 5< data") as job:
        until("it has read what it compares with", (job.directory / "ready").exists)
        before = read_by(cluster, "n2")
        (job.directory / "go").touch()
        until("it is read there", lambda: read_by(cluster, "n2") > before, seconds=30)
        (job.directory / "enough").touch()
        assert "read\nstatus 0" in job.end(), job.said


def test_a_sharer_of_the_position_continues_where_the_other_stopped(cluster: Cluster) -> None:
    until("no client is left", partial(has_no_client, cluster, "n2"))  # what it has read is not counted any more then
    with started(cluster, "exec 5< data;", "python3 /tmp/reads.py 2 enough; wc -c <&5") as job:
        until("it has read what it compares with", (job.directory / "ready").exists)
        before = read_by(cluster, "n2")
        (job.directory / "go").touch()
        until("it has read twice", (job.directory / "twice").exists, seconds=30)
        assert read_by(cluster, "n2") in (0, before)  # 0: that client has just gone
        (job.directory / "enough").touch()
        assert "read\n199993\nstatus 0" in job.end(), job.said


PLACED = """
import os, sys, time
with open("data", "rb") as source:
    data = source.read()
while not os.path.exists("go"):
    time.sleep(0.02)
assert os.read(5, 10) == data[:10]
while not os.path.exists("enough"):
    for n in range(1000):
        assert os.pread(5, 100, n * 100) == data[n * 100 : n * 100 + 100], n
assert os.read(5, 10) == data[10:20]
print("read")
"""


def test_positional_reads_are_made_there_and_the_shared_position_stays(cluster: Cluster) -> None:
    with started(cluster, "exec 5< data;", "python3 /tmp/placed.py; wc -c <&5") as job:
        (job.directory / "go").touch()
        until("it is read there", partial(is_direct_on, cluster, "n2", 5), seconds=30)
        for target in ("n3", HOME, "n2"):
            job.moved(target)
            if target != HOME:
                until("it is read there", partial(is_direct_on, cluster, target, 5), seconds=30)
        (job.directory / "enough").touch()
        assert "read\n299980\nstatus 0" in job.end(), job.said


def test_a_program_executed_away_makes_positional_reads_of_its_shells_files(cluster: Cluster) -> None:
    shell = "exec 5< data; until [ -e begin ]; do sleep 0.1; done; python3 /tmp/placed.py; wc -c <&5"
    with started(cluster, "", f"bash -c '{shell}'") as job:
        for name in ("begin", "go"):
            (job.directory / name).touch()
        until("it is read there", partial(is_direct_on, cluster, "n2", 5), seconds=30)
        (job.directory / "enough").touch()
        assert "read\n299980\nstatus 0" in job.end(), job.said


def test_parent_and_children_read_by_one_descriptor(cluster: Cluster) -> None:
    with Running(cluster, "places", "2 1000") as places:
        for target in ("n2", HOME, "n3"):
            places.moved(target)
            places.works(30)
            if target != HOME:
                until("it is read there", partial(is_direct_on, cluster, target, 3), seconds=20)
            places.works(30)
        (places.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in places.end(), places.said


@pytest.mark.parametrize("place", ["memory", "disk", "node"])
def test_a_position_is_set_there_as_at_home(cluster: Cluster, place: str) -> None:
    with tempfile.TemporaryDirectory(dir=DISK) as disk:
        name = {"memory": "sparse", "disk": f"{disk}/sparse", "node": "/mfs/n2/tmp/sparse"}[place]
        with Running(cluster, "seeks", name) as seeks:
            seeks.works()
            seeks.moved("n2")
            for _ in range(2):
                until("it is read there", partial(is_direct_on, cluster, "n2", 3, name), seconds=20)
                seeks.works()
            (seeks.directory / "enough").touch()
            assert "all as it should be\nstatus 0" in seeks.end(), seeks.said


@pytest.mark.parametrize("directory", ["/tmp", pytest.param("/dev/shm", marks=pytest.mark.soak)])
def test_a_file_of_the_node_where_it_is_is_read_there_by_itself(cluster: Cluster, directory: str) -> None:
    with started(cluster, f"cp data /mfs/n2{directory}/kept;", f"python3 /tmp/reads.py 1 enough 5< /mfs/n2{directory}/kept") as job:
        (job.directory / "go").touch()
        until("it is read there", partial(is_open_on, cluster, "n2", f"/mfs/n2{directory}/kept"), seconds=30)
        before = read_of(cluster, "n2")
        job.moved("n3")
        cluster.place("n2").run("dd", f"if={directory}/kept", f"of={directory}/kept", "bs=1", "count=1", "conv=notrunc")  # home may know it
        until("home reads it again", lambda: read_of(cluster, "n2") > before, seconds=30)
        assert not is_open_on(cluster, "n3", f"/mfs/n2{directory}/kept")
        job.moved("n2")
        until("it is read there again", partial(is_open_on, cluster, "n2", f"/mfs/n2{directory}/kept"), seconds=30)
        (job.directory / "enough").touch()
        assert "read\nstatus 0" in job.end(), job.said


def test_a_file_in_a_directory_of_its_own_is_read_there_too(cluster: Cluster) -> None:
    reads = "sh -c 'cp data own/data; exec python3 /tmp/reads.py 1 enough 5< own/data'"
    with started(cluster, "mkdir own;", reads, options="-X $PWD/own") as job:
        until("it has read what it compares with", (job.directory / "ready").exists)
        before = read_by(cluster, "n2")
        (job.directory / "go").touch()
        until("it is read there", lambda: read_by(cluster, "n2") > before, seconds=30)
        (job.directory / "enough").touch()
        assert "read\nstatus 0" in job.end(), job.said


@pytest.mark.parametrize("rounds", [8, pytest.param(30, marks=pytest.mark.soak)])
def test_a_replaced_file_of_that_node_keeps_its_content_for_its_readers(cluster: Cluster, rounds: int) -> None:
    with started(cluster, "cp data /mfs/n2/tmp/taken;", f"python3 /tmp/reads.py {rounds} 5< /mfs/n2/tmp/taken") as job:
        cluster.place("n2").run("sh", "-c", "head -c 300000 /dev/zero > /tmp/other; mv /tmp/other /tmp/taken")
        (job.directory / "go").touch()
        assert "read\nstatus 0" in job.end(), job.said
        assert not is_open_on(cluster, "n2", "/mfs/n2/tmp/taken")


HUNGRY = """
import os
while not os.path.exists("enough"):
    os.lseek(5, 0, os.SEEK_SET)
    while data := os.read(5, 1000):
        sum(data)
print("has read")
"""


def test_a_process_goes_to_the_node_whose_file_it_reads(cluster: Cluster) -> None:
    (cluster.home.root / "tmp" / "hungry.py").write_text(HUNGRY)
    (cluster.place("n3").root / "tmp" / "food").write_bytes(random.Random(1).randbytes(30_000_000))
    until("home sees it", lambda: not cluster.home.run("test", "-s", "/mfs/n3/tmp/food").returncode, seconds=20)
    with Running(cluster, "reader", "", mosrun="mosrun", command="python3 /tmp/hungry.py 5< /mfs/n3/tmp/food") as job:
        job.moved("n2")
        until("it has gone there", lambda: job.where() == "n3", seconds=60)
        until("it reads there by itself", partial(is_open_on, cluster, "n3", "/mfs/n3/tmp/food"), seconds=30)
        until("what it reads there is known", lambda: asked(job).get("files_rate", {}).get("n3", 0) >= 1, seconds=20, every=0.25)
        assert " of files of n3" in why(job)
        assert "near what it reads and writes" in why(job)
        until("it would not leave", lambda: "far from what it reads and writes" in str(asked(job)), seconds=60, every=0.25)
        assert job.where() == "n3", why(job)
        (job.directory / "enough").touch()
        assert "has read\nstatus 0" in job.end(), job.said


def why(job: Running) -> str:
    """Returns what `mosctl why` shows of the job's process."""
    return str(job.cluster.home.run("mosctl", "why", str(job.pid)).stdout)


def asked(job: Running) -> dict[str, Any]:
    """Returns the same data, without the command: it is polled."""
    return job.cluster.lab.node(HOME).ask_mosd("why", pid=job.pid)


def is_open_on(cluster: Cluster, node: str, path: str) -> bool:
    """Whether a process there has that file as its descriptor 5."""
    return path in cluster.place(node).run("sh", "-c", "readlink /proc/[0-9]*/fd/5").stdout.split("\n")


def is_direct_on(cluster: Cluster, node: str, number: int, path: str = PREFIX) -> bool:
    """Whether a process there has, as its descriptor of that number, a file of its home's, or the node's own with that path."""
    links: str = cluster.place(node).run("sh", "-c", f"readlink /proc/[0-9]*/fd/{number}").stdout
    return PREFIX in links or path in links.split("\n")


def has_open_on(cluster: Cluster, node: str, name: str) -> bool:
    """Whether a process of that name has there a file of its home's. What home has given out does not show that: who read it before may
    have left it in the node's memory, or their count in home's figures."""
    script = f"for process in $(pgrep -x {name}); do readlink /proc/$process/fd/*; done"
    return PREFIX in cluster.place(node).run("sh", "-c", script).stdout


def read_of(cluster: Cluster, node: str) -> int:
    """Bytes that the file server of a node has given to home."""
    return sum(row["bytes_read"] for row in cluster.lab.node(node).ask_mosd("mfs")["served"] if row["peer"] == HOME)


def started(cluster: Cluster, first: str, command: str, options: str = "") -> Running:
    """Runs that program away, in a directory where `data` is a file of 300000 bytes."""
    (cluster.home.root / "tmp" / "reads.py").write_text(READS)
    (cluster.home.root / "tmp" / "placed.py").write_text(PLACED)
    first = f"head -c 300000 /dev/urandom > data; chmod 600 data; {first}"
    job = Running(cluster, "reader", "", mosrun=f"{first} mosrun -L {options}", command=command)
    job.moved("n2")
    return job


def test_threads_that_read_by_one_descriptor_have_each_record_once(cluster: Cluster) -> None:
    with Running(cluster, "readers", "3 20000") as readers:
        readers.works()
        for target in ("n2", "n3", HOME, "n2"):
            readers.moved(target)
            for _ in range(3):
                readers.works(30)
            if target != HOME:
                until("the file is read there", partial(has_open_on, cluster, target, readers.name), seconds=20)
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
def test_a_reader_can_be_moved_in_the_middle_of_its_reads(cluster: Cluster) -> None:
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
def test_parents_and_children_are_moved_about_in_the_middle_of_it(cluster: Cluster) -> None:
    chance = random.Random(4)
    with Running(cluster, "places", "3 2000", "farhome-a") as places:
        end = time.monotonic() + STORM
        while time.monotonic() < end:
            places.works(30)
            for process in cluster.processes(places.job):
                here = cluster.where(process)
                cluster.migrate(int(process["pid"]), here, chance.choice([node for node in cluster.names if node != here]))
        (places.directory / "enough").touch()
        assert "all as it should be\nstatus 0" in places.end(), places.said


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
