"""The processor features that another node must have so that a process can go on there, and the message when it lacks some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.leaving.processor import IGNORED, Processor, own_processor, why_too_old, why_unfit

OLD = frozenset({"sse2", "avx"})
NEW = OLD | {"avx2", "fma"}
HOME = Processor("GenuineIntel", NEW, 0x7, 832)


def test_the_same_processor_and_one_that_has_more_will_do() -> None:
    assert why_unfit("n2", HOME, HOME) is None
    assert why_unfit("n2", replace(HOME, flags=NEW | {"sha_ni"}), HOME) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"flags": OLD}, "n3's processor lacks avx2, fma"),
        ({"flags": frozenset({"sse2"}), "xcr0": 3, "xsave": 576}, "n3's processor lacks avx, avx2, fma"),
        ({"vendor": "AuthenticAMD"}, "n3's processor is of another make (AuthenticAMD, at home GenuineIntel)"),
        ({"xcr0": 0xE7, "xsave": 2696}, "n3's processor keeps other registers (XCR0 0xe7, 2696 bytes; at home 0x7, 832 bytes)"),
    ],
)
def test_a_node_without_a_needed_feature_is_refused_in_one_sentence(changes: dict[str, object], sentence: str) -> None:
    assert why_unfit("n3", replace(HOME, **changes), HOME) == sentence  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("sse2 rdtscp sse4_2", None),
        ("sse2 sse4_2", "lacks rdtscp:"),
        ("sse2 rdtscp", "lacks sse4_2:"),
        ("sse2", "lacks rdtscp and sse4_2:"),
    ],
)
def test_a_processor_on_which_farhome_cannot_run_is_named(flags: str, words: str | None, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: {flags}\n")
    found = why_too_old(own_processor(cpuinfo))
    assert found is None if words is None else found is not None and words in found


def test_a_long_list_is_cut() -> None:
    home = replace(HOME, flags=frozenset(f"new{number}" for number in range(9)))
    assert why_unfit("n3", HOME, home) == "n3's processor lacks new0, new1, new2, new3, new4, new5 and 3 more"


def test_this_machines_description_matches_its_kernel_and_processor() -> None:
    own = own_processor()
    assert {"sse2", "cmov", "syscall"} <= own.flags
    assert not own.flags & IGNORED
    assert own.xcr0 & 3 == 3
    assert own.xsave >= (576 if own.xcr0 == 3 else 832)
    assert ("avx" in own.flags) == bool(own.xcr0 & 4)
    assert Processor.from_wire(own.to_wire()) == own
    assert why_unfit("n2", own, own) is None


def test_only_features_of_all_processors_count(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("vendor_id\t: Maker\nflags\t\t: sse2 avx smep\n\nvendor_id\t: Maker\nflags\t\t: sse2 smep erms\n")
    own = own_processor(cpuinfo)
    assert own.vendor == "Maker"
    assert own.flags == {"sse2"}


def test_configured_flags_make_it_older_never_newer() -> None:
    assert HOME.restricted(frozenset({"sse2", "avx512f"})).flags == {"sse2"}
    assert HOME.restricted(None) == HOME


@pytest.mark.parametrize(
    "received",
    [None, [], {}, {"vendor": "x", "flags": "sse", "xcr0": 1, "xsave": 1}, {"vendor": "x", "flags": ["a b"], "xcr0": 1, "xsave": 1},
     {"vendor": "x", "flags": ["sse"], "xcr0": None, "xsave": 1}, {"vendor": 1, "flags": ["sse"], "xcr0": 1, "xsave": 1}],
)  # fmt: skip
def test_nonsense_of_another_node_is_an_error(received: object) -> None:
    with pytest.raises(ValueError, match="processor"):
        Processor.from_wire(received)
