"""Changes bytes at random, as fuzzers do: bits, numbers at their edges, pieces that are cut out, doubled, or another input's."""

from __future__ import annotations

import random

_EDGES = [b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 2, b"\xff" * 4, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0" * 8]
_MSGPACK = [b"\xc0", b"\xc2", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\x81\x90",
            b"\xd7\xff" + b"\xff" * 8, b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd4\x05\0", b"\xca\x7f\xc0\0\0",
            b"\xa1\xed", b"\x91" * 1100]  # fmt: skip
"""Pieces of msgpack: what is long by its own word, a map whose key is a list, times that are none, deep nests."""


def mutate(chance: random.Random, data: bytes, others: list[bytes], most: int = 1 << 16) -> bytes:
    """Return data with one to eight changes, at most `most` bytes of it."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + chance.choice([1, 1, 2, 4, 8, 32]))
        match chance.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.randrange(256)
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = changed[at:end] * chance.choice([1, 2, 40])
            case 4:
                edge = chance.choice(_EDGES)
                changed[at : at + len(edge)] = edge
            case 5:
                changed[at:end] = chance.choice(_MSGPACK)
            case 6:
                other = chance.choice(others)
                begin = chance.randrange(len(other) + 1)
                changed[at:end] = other[begin : begin + chance.choice([1, 4, 16, 64])]
            case _:
                changed[at:at] = chance.randbytes(chance.choice([1, 2, 4, 8]))
    return bytes(changed[:most])
