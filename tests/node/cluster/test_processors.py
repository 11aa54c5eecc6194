"""The known processors of other nodes, and the requests for unknown ones."""

from __future__ import annotations

from dataclasses import replace

from balancer.load.view import Entry, View
from engine.leaving.processor import Processor
from node.cluster.processors import ASK_PERIOD, Processors
from tests.balancer.vectors import node

HOME = Processor("GenuineIntel", frozenset({"sse2", "avx", "avx2"}), 7, 832)
NEWER = replace(HOME, flags=HOME.flags | {"avx512f"})
OLDER = replace(HOME, flags=frozenset({"sse2", "avx"}))


def view(**digests: int) -> View:
    vectors = [node("n1", processor=HOME.digest), *(node(name, processor=digest) for name, digest in digests.items())]
    return View("n1", {vector.name: Entry(vector, 0.5) for vector in vectors})


def test_digests_differ_where_anything_does() -> None:
    kinds = [HOME, NEWER, OLDER, replace(HOME, vendor="AuthenticAMD"), replace(HOME, xcr0=3), replace(HOME, xsave=576)]
    assert len({kind.digest for kind in kinds}) == len(kinds)
    assert HOME.digest == replace(HOME, flags=frozenset(sorted(HOME.flags, reverse=True))).digest


def test_one_node_of_each_kind_is_asked_and_the_others_are_judged_by_its_answer() -> None:
    now, asked = [0.0], list[str]()
    processors = Processors(HOME, lambda: now[0], asked.append)
    seen = view(n2=HOME.digest, n3=OLDER.digest, n4=OLDER.digest, n5=NEWER.digest)
    unknown = "what {}'s processor can do is not known yet"
    assert processors.unfit(seen) == {name: unknown.format(name) for name in ("n3", "n4", "n5")}
    processors.unfit(seen)
    assert asked == ["n3", "n5"]
    assert processors.judge("n3", {"processor": OLDER.to_wire()}) == "n3's processor lacks avx2"
    assert processors.judge("n5", {"processor": NEWER.to_wire()}) is None
    assert processors.unfit(seen) == {name: f"{name}'s processor lacks avx2" for name in ("n3", "n4")}


def test_a_node_without_an_answer_is_asked_again_later() -> None:
    now, asked = [0.0], list[str]()
    processors = Processors(HOME, lambda: now[0], asked.append)
    for now[0] in (0.0, ASK_PERIOD / 2, ASK_PERIOD):
        processors.unfit(view(n3=OLDER.digest))
    assert asked == ["n3", "n3"]


def test_a_node_that_reports_nonsense_is_unfit() -> None:
    processors = Processors(HOME, lambda: 0.0, lambda name: None)
    assert processors.judge("n6", {"processor": {"flags": 7}}) == "n6 cannot be judged: what it says of its processor makes no sense"
    assert "cannot be judged" in str(processors.judge("n6", {}))
