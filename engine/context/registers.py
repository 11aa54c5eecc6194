"""The register sets that CRIU's images hold, by their names in images/core-x86.proto (CRIU 4.0 to 4.2). CRIU leaves out others, such as
those of APX, without a word."""

from __future__ import annotations

COMPONENTS = (("ymmh_space", 2, "I"), ("bndreg_state", 3, "Q"), ("bndcsr_state", 4, "Q"), ("opmask_reg", 5, "Q"),
              ("zmm_upper", 6, "Q"), ("hi16_zmm", 7, "Q"), ("pkru", 9, "I"))  # fmt: skip
"""Field of the images, bit in XCR0, what it counts in (struct's letter)."""
HELD = 3 | sum(1 << bit for _, bit, _ in COMPONENTS)
"""Bits of XSTATE_BV: x87, SSE and the components above."""
IN_IMAGES = "it uses registers of its processor that CRIU's images do not hold"
_XSTATE_BV = slice(512, 520)


def not_held(extended_state: bytes) -> int:
    """Return the bits of the register sets in use that images do not hold. extended_state: as PTRACE_GETREGSET gives NT_X86_XSTATE; a
    processor without XSAVE gives 512 bytes, which hold none."""
    return int.from_bytes(extended_state[_XSTATE_BV], "little") & ~HELD
