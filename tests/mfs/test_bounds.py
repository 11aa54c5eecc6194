"""Limits on what one peer may have of a file server at a time: others are not affected, and what it gives back it may have again."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mfs import caller
from tests.mfs.caller import Caller
from tests.mfs.nodes import until
from tests.mfs.served import Served

SETLK = caller.SETLK
Serve = Callable[..., Served]


@pytest.fixture
def serve(area: Path) -> Iterator[Serve]:
    made: list[Served] = []

    def start(*bounds: str) -> Served:
        (area / "keys").mkdir()
        (area / "shown" / "file").chmod(0o666)
        made.append(Served(area / "keys", [area / "shown"], bounds=bounds))
        return made[-1]

    yield start
    for served in made:
        served.kill()


def other(served: Served) -> Caller:
    """Returns a connection of another node."""
    return Caller(served.keys("n3"), served.port)


def ends(attempt: Callable[[], object], most: int = 100) -> tuple[int, int]:
    """After how many times an attempt is refused, and by which error."""
    for number in range(most):
        try:
            attempt()
        except OSError as error:
            return number, error.errno or 0
    return most, 0


def lock_body(handle: int, owner: int, start: int, end: int, kind: int) -> bytes:
    return struct.pack("<QQQQIIII", handle, owner, start, end, kind, os.getpid(), 0, 0)


def test_open_files(serve: Serve, area: Path) -> None:
    served = serve("files=40/16")
    peer, neighbour = served.caller(), other(served)
    file = peer.walk(area / "shown" / "file").node
    handles: list[int] = []
    assert ends(lambda: handles.append(peer.open(file))) == (16, errno.ENFILE)
    again = served.caller()  # another mount of the same node
    assert ends(lambda: again.open(again.walk(area / "shown" / "file").node)) == (0, errno.ENFILE)
    theirs = neighbour.walk(area / "shown" / "file").node
    neighbour.release(theirs, neighbour.open(theirs))
    for handle in handles[:3]:
        peer.release(file, handle)
    assert ends(lambda: peer.open(file)) == (3, errno.ENFILE)
    served.kill()
    served.start()
    resumed = served.caller(peer.session)
    assert resumed.resumed
    assert ends(lambda: resumed.open(file)) == (0, errno.ENFILE)  # it has them still
    assert resumed.read(file, handles[5]) == b"shown\n"
    top = resumed.walk(area / "shown").node
    with pytest.raises(OSError, match="Too many open files"):
        resumed.ask(caller.OPENDIR, top, bytes(8))


def test_files_that_its_kernel_knows(serve: Serve, area: Path) -> None:
    served = serve("known=60/30")
    for number in range(50):
        (area / "shown" / f"f{number}").touch()
    peer, neighbour = served.caller(), other(served)
    top = peer.walk(area / "shown").node
    numbers = iter(range(50))
    nodes: list[int] = []
    count, error = ends(lambda: nodes.append(peer.lookup(top, f"f{next(numbers)}").node))
    assert error == errno.ENFILE
    assert 20 < count < 30  # with the directories on the way there
    assert neighbour.walk(area / "shown" / "f40").node
    peer.send(caller.FORGET, nodes[0], struct.pack("<Q", 1))
    assert peer.lookup(top, "f49").node
    assert len(peer.names(top)) == 51  # listing goes on, by names


def test_processes_with_locks_and_their_locks(serve: Serve, area: Path) -> None:
    served = serve("lockers=24/10", "ranges=8")
    peer, neighbour = served.caller(), other(served)
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file, os.O_RDWR)
    owners = iter(range(1, 100))

    def by_another() -> None:
        one = next(owners)
        peer.ask(SETLK, file, lock_body(handle, one, one, one, 1))

    assert ends(by_another) == (10, errno.ENOLCK)
    theirs = neighbour.walk(area / "shown" / "file").node
    neighbour.ask(SETLK, theirs, lock_body(neighbour.open(theirs, os.O_RDWR), 1, 1000, 1000, 1))
    places = iter(range(2000, 4000, 2))
    assert ends(lambda: peer.ask(SETLK, file, lock_body(handle, 1, place := next(places), place, 1))) == (7, errno.ENOLCK)
    for _ in range(50):  # one after the other, as many as one likes
        peer.ask(SETLK, file, lock_body(handle, 2, 5000, 5000, 1))
        peer.ask(SETLK, file, lock_body(handle, 2, 5000, 5000, 2))
    peer.ask(SETLK, file, lock_body(handle, 3, 0, (1 << 63) - 1, 2))
    peer.ask(SETLK, file, lock_body(handle, 3, 10_000, 20_000, 1))
    holes = iter(range(10_001, 20_000, 2))
    count, error = ends(lambda: peer.ask(SETLK, file, lock_body(handle, 3, hole := next(holes), hole, 2)))
    assert error == errno.ENOLCK  # each hole makes one more
    assert count < 12


def test_requests_that_wait(serve: Serve, area: Path) -> None:
    served = serve("waiters=20/5")
    peer, neighbour = served.caller(), other(served)
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file, os.O_RDWR)
    peer.ask(SETLK, file, lock_body(handle, 1, 0, 0, 1))
    waiting = [peer.lock(file, handle, 1, owner=number, wait=True) for number in range(2, 7)]
    refused = peer.lock(file, handle, 1, owner=9, wait=True)
    assert peer.receive()[:2] == (refused, -errno.EAGAIN)
    theirs = neighbour.walk(area / "shown" / "file").node
    its = neighbour.open(theirs, os.O_RDWR)
    queued = neighbour.lock(theirs, its, 1, owner=1, wait=True)  # for it there is room
    time.sleep(0.2)
    neighbour.send(caller.INTERRUPT, 0, struct.pack("<Q", queued))
    assert neighbour.receive()[:2] == (queued, -errno.EINTR)
    for number in waiting:
        peer.send(caller.INTERRUPT, 0, struct.pack("<Q", number))
    assert {peer.receive()[:2] for _ in waiting} == {(number, -errno.EINTR) for number in waiting}
    last = peer.lock(file, handle, 1, owner=9, wait=True)
    peer.send(caller.INTERRUPT, 0, struct.pack("<Q", last))
    assert peer.receive()[:2] == (last, -errno.EINTR)


def test_mounts(serve: Serve, area: Path) -> None:
    served = serve("sessions=12/6")
    mounts = [served.caller() for _ in range(6)]
    with pytest.raises(OSError, match=r"hung up|reset|closed|EOF|Connection|ended"):
        served.caller()
    assert other(served).walk(area / "shown" / "file").node
    mounts[0].send(caller.BYE, 0)

    def may_mount() -> bool:
        try:
            served.caller().walk(area / "shown")
        except OSError:
            return False
        return True

    until(may_mount, "it may have another in its place")


def test_several_greedy_callers_leave_enough_for_a_modest_one(serve: Serve, area: Path) -> None:
    served = serve("files=400/200")
    for name in ("n4", "n5", "n6"):
        greedy = Caller(served.keys(name), served.port)
        file = greedy.walk(area / "shown" / "file").node
        ends(lambda greedy=greedy, file=file: greedy.open(file), 300)  # type: ignore[misc]
    late = other(served)
    file = late.walk(area / "shown" / "file").node
    assert ends(lambda: late.open(file), 20) == (20, 0)


def test_leases_are_a_peers_own_affair(serve: Serve, area: Path) -> None:
    served = serve("leases=20/10")
    for number in range(30):
        (area / "shown" / f"f{number}").touch()
        os.utime(area / "shown" / f"f{number}", (1, 1))
    time.sleep(0.2)
    peer, neighbour = served.caller(), other(served)

    def remembered(one: Caller) -> int:
        top = one.walk(area / "shown").node
        return sum(one.lookup(top, f"f{number}").attributes_valid for number in range(30))

    assert remembered(peer) <= 10
    assert remembered(neighbour) > 0


@pytest.mark.parametrize("bound", ["files", "files=3", "files=1/2", "nothing=2/1", "ranges=0", "files=0/0"])
def test_a_bound_that_is_none_is_an_error(area: Path, bound: str) -> None:
    (area / "keys").mkdir()
    with pytest.raises(AssertionError):
        Served(area / "keys", [area / "shown"], bounds=[bound])


@pytest.mark.soak
def test_the_real_bounds_hold(serve: Serve, area: Path) -> None:
    served = serve()
    peer, neighbour = served.caller(), other(served)
    file = peer.walk(area / "shown" / "file").node
    count, error = ends(lambda: peer.open(file), 1 << 18)
    assert error == errno.ENFILE
    assert 1024 <= count <= 1 << 17
    assert neighbour.open(neighbour.walk(area / "shown" / "file").node)
