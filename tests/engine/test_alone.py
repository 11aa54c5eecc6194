"""Memory mapped shared as a context has it: what comes from outside is bounded."""

from __future__ import annotations

import mmap
import os
import subprocess
from dataclasses import replace

import pytest

from engine.context.capture import capture
from engine.context.checked import BadContext
from engine.context.context import Context
from engine.mappings.mappings import read_mappings
from engine.memory.alone import MOST, SharedObject, name_at_home, named
from kernel_helpers.inspection.sharing import MAPPED, OPEN, who_has
from kernel_helpers.process.seizing import seize

PAGE = 4096


def _object(name: str, at: int, size: int = PAGE) -> SharedObject:
    return SharedObject(f"{name} (deleted)", "", size, at)


@pytest.fixture
def context() -> Context:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        with seize(sleeper.pid) as frozen:
            return capture(frozen)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_objects_come_over_the_wire_as_they_were(context: Context) -> None:
    sent = replace(context, objects=(_object("/a", PAGE), SharedObject("/b (deleted)", "code", 5000, 2 * PAGE)))
    assert Context.from_wire(sent.to_wire()) == sent


@pytest.mark.parametrize(
    "objects",
    [
        [_object("/a", PAGE), _object("/a", 3 * PAGE)],
        [_object("/a", PAGE, 2 * PAGE), _object("/b", 2 * PAGE)],
        [_object("/b", 2 * PAGE), _object("/a", PAGE)],
        [_object("/a", PAGE + 1)],
        [_object("/a", PAGE, (1 << 46) + 1)],
        [SharedObject("/a", "", PAGE, PAGE)],
        [_object(f"/{number}", PAGE * (number + 1)) for number in range(MOST + 1)],
    ],
    ids=["names", "overlap", "order", "alignment", "size", "named", "number"],
)
def test_objects_that_cannot_be_are_refused(context: Context, objects: list[SharedObject]) -> None:
    with pytest.raises(BadContext):
        Context.from_wire(replace(context, objects=tuple(objects)).to_wire())


def test_each_object_is_listed_once_with_its_other_holders() -> None:
    before = {one.name for one in named(os.getpid(), read_mappings(os.getpid()))[1]}
    first, second = mmap.mmap(-1, 2 * PAGE), mmap.mmap(-1, PAGE)
    file = os.memfd_create("held")
    os.ftruncate(file, 3 * PAGE)
    third = mmap.mmap(file, 3 * PAGE)
    maps, found = named(os.getpid(), read_mappings(os.getpid()))
    objects = [one for one in found if one.name not in before]
    assert sorted(one.size for one in objects) == [PAGE, 2 * PAGE, 3 * PAGE]
    assert all(sum(m.path == one.name for m in maps) == 1 for one in objects)
    status = os.stat(file)
    assert f"/memfd:held.{status.st_ino} (deleted)" == name_at_home("/memfd:held (deleted)", status.st_ino)
    held = (status.st_dev, status.st_ino)
    holder = who_has(os.getpid(), [held])
    assert holder is not None and (holder.pid, holder.how) == (os.getpid(), OPEN)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        holder = who_has(os.getpid(), [held], without_descriptors=True)
        assert holder is not None and (holder.pid, holder.how) == (child, MAPPED)
    finally:
        os.close(theirs)
        os.waitpid(child, 0)
        os.close(ours)
    assert who_has(os.getpid(), [held], without_descriptors=True) is None
    third.close()
    second.close()
    first.close()
    os.close(file)
