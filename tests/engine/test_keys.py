"""Protection keys of a context: what another node says of them, and what the kernel shows. Where the processor has keys they are tried in
tests/moves/test_protection_keys.py."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from engine.context import capture, keys
from engine.context.checked import BadContext
from engine.context.context import Context
from engine.pour.refill import RefillFailed, refill
from kernel_helpers.process import seizing
from tests.engine.support import counts_on, running

SMAPS = b"""\
55d0c8a00000-55d0c8a02000 r-xp 00000000 fe:00 1312 /usr/bin/node
Size:                  8 kB
ProtectionKey:         0
VmFlags: rd ex mr mw me
7f11d8000000-7f11d8021000 rw-p 00000000 00:00 0
Size:                132 kB
ProtectionKey:         1
VmFlags: rd wr mr mw me nr
7f11d8021000-7f11d8022000 --xp 00000000 00:00 0
ProtectionKey:        15
7ffd0a1c2000-7ffd0a1e3000 rw-p 00000000 00:00 0 [stack]
ProtectionKey:         0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""
"""As Linux 6.12 shows it on a processor with keys; what is left out has nothing to do with them."""


def test_the_kernels_text_is_read() -> None:
    assert keys.keyed_of(SMAPS) == [(0x7F11D8000000, 0x7F11D8021000, 3, 1), (0x7F11D8021000, 0x7F11D8022000, 4, 15)]


@pytest.fixture(scope="module")
def context(counter: str) -> Context:
    with running([counter]) as program:
        counts_on(program)
        with seizing.seize(program.pid) as frozen:
            found = capture.capture(frozen)
            assert (found.keys, found.keyed) == (0, ())
    return found


def test_a_context_holds_them(context: Context) -> None:
    first, second = context.maps[0], context.maps[2]
    keyed = replace(context, keys=1 << 1 | 1 << 15, keyed=((first.start, first.end, 15), (second.start, second.end, 1)))
    taken = Context.from_wire(keyed.to_wire())
    assert (taken.keys, taken.keyed) == (keyed.keys, keyed.keyed)


@pytest.mark.parametrize(
    ("allocated", "keyed"),
    [
        (1, ()), (1 << 16, ()), (-2, ()), (2, ((4096, 8192, 2),)), (2, ((4096, 8192, 0),)), (2, ((4096, 8192, 16),)),
        (2, ((4096, 8191, 1),)), (2, ((8192, 8192, 1),)), (2, ((0, 1 << 62, 1),)), (2, ((4096, 8192),)), (2, ((4096, 8192, "1"),)),
        (2, ((8192, 12288, 1), (4096, 8192, 1))), (2, ((4096, 12288, 1), (8192, 12288, 1))),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(context: Context, allocated: int, keyed: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(BadContext):
        Context.from_wire(replace(context, keys=allocated, keyed=keyed).to_wire())


@pytest.mark.skipif(keys.exist(), reason="this processor has protection keys")
def test_a_processor_without_keys_does_not_take_a_process_that_has_some(context: Context, counter: str) -> None:
    with running([counter]) as program:
        counts_on(program)
        with seizing.seize(program.pid) as stub:
            with pytest.raises(RefillFailed, match="protection keys") as failed:
                refill(stub, replace(context, pid=os.getpid(), keys=2), -1, [])
            assert failed.value.stub_usable
        counts_on(program)
