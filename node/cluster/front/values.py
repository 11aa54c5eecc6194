"""Plain values as bytes, from the front to mosd: nothing but Python reads them there, and every length, count and depth has a bound.

A value is a letter, and what that says: `N` none, `T` `F` truth, `i` a number of 8 bytes with a sign, `u` one without, `d` a float, `s`
text and `b` bytes with their length in front (4 bytes), `l` a list and `m` a map with their count. Numbers are big-endian. Keys of a map
are text or numbers. What msgpack has besides (extensions, timestamps) is no plain value.
"""

from __future__ import annotations

import struct
from typing import Any

MOST_VALUES = 1 << 16
"""Values within one: of a message that is all small values, some 50 ms of reading."""
DEEPEST = 16
LONGEST = (1 << 20) + (1 << 18)
"""Bytes of one message: MESSAGE_LIMIT, and what lengths and names take more here than there."""

_COUNT, _SIGNED, _UNSIGNED, _FLOAT = struct.Struct("!cI"), struct.Struct("!cq"), struct.Struct("!cQ"), struct.Struct("!cd")
_NUMBERS = {b"i": _SIGNED, b"u": _UNSIGNED, b"d": _FLOAT}
_WORDS = {b"N": None, b"T": True, b"F": False}


class NotPlain(ValueError):
    """The value, or what is to be one, is none that may be sent."""


def encode(value: Any) -> bytes:
    """Return the value as bytes. Errors: NotPlain."""
    out = bytearray()
    _put(value, out, [MOST_VALUES], DEEPEST)
    if len(out) > LONGEST:
        raise NotPlain("it is too long")
    return bytes(out)


def _put(value: Any, out: bytearray, room: list[int], depth: int) -> None:
    room[0] -= 1
    if room[0] < 0 or depth < 0:
        raise NotPlain("it has too many values, or they are too deep")
    kind = type(value)
    if kind is bytes:
        out += _COUNT.pack(b"b", len(value))
        out += value
    elif kind is str:
        try:
            text = value.encode()
        except UnicodeEncodeError:
            raise NotPlain("it has text that is none") from None
        out += _COUNT.pack(b"s", len(text))
        out += text
    elif kind is int:
        if not -(1 << 63) <= value < 1 << 64:
            raise NotPlain("it has a number that is too great")
        out += _SIGNED.pack(b"i", value) if value < 1 << 63 else _UNSIGNED.pack(b"u", value)
    elif kind is list or kind is tuple:
        out += _COUNT.pack(b"l", len(value))
        for one in value:
            _put(one, out, room, depth - 1)
    elif kind is dict:
        out += _COUNT.pack(b"m", len(value))
        for key, one in value.items():
            if type(key) not in (str, int):
                raise NotPlain("it has a map with keys that are neither text nor numbers")
            _put(key, out, room, depth - 1)
            _put(one, out, room, depth - 1)
    elif kind is float:
        out += _FLOAT.pack(b"d", value)
    elif value is None:
        out += b"N"
    elif kind is bool:
        out += b"T" if value else b"F"
    else:
        raise NotPlain("it has something that is no plain value")


def decode(data: bytes) -> Any:
    """Return the value. Errors: NotPlain, whatever the bytes are."""
    if len(data) > LONGEST:
        raise NotPlain("it is too long")
    reader = _Reader(data)
    try:
        value = reader.take(DEEPEST)
    except (struct.error, UnicodeDecodeError):
        raise NotPlain("it is cut, or no text") from None
    if reader.at != len(data):
        raise NotPlain("something is left over")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.left = MOST_VALUES

    def take(self, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth < 0:
            raise NotPlain("it has too many values, or they are too deep")
        kind, data, at = self.data[self.at : self.at + 1], self.data, self.at
        if kind in (b"b", b"s"):
            _, length = _COUNT.unpack_from(data, at)
            begin, end = at + _COUNT.size, at + _COUNT.size + length
            if end > len(data):
                raise NotPlain("it is cut")
            self.at = end
            return data[begin:end] if kind == b"b" else data[begin:end].decode()
        if kind in _NUMBERS:
            self.at += _SIGNED.size
            return _NUMBERS[kind].unpack_from(data, at)[1]
        if kind in (b"l", b"m"):
            _, count = _COUNT.unpack_from(data, at)
            self.at += _COUNT.size
            if count > self.left:
                raise NotPlain("it has too many values")
            if kind == b"l":
                return [self.take(depth - 1) for _ in range(count)]
            made: dict[Any, Any] = {}
            for _ in range(count):
                key = self.take(depth - 1)
                if type(key) not in (str, int):
                    raise NotPlain("it has a map with keys that are neither text nor numbers")
                made[key] = self.take(depth - 1)
            return made
        self.at += 1
        if kind in _WORDS:
            return _WORDS[kind]
        raise NotPlain("it has a value of no kind")
