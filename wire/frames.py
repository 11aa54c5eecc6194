"""Length-prefixed msgpack messages on a blocking socket.

A message is a map; on the wire it is its length (4 bytes, big-endian) and its msgpack form. A length above the limit is
refused before one byte of it is read, so that a peer's claim never costs memory.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from kernel_helpers.stream.stream import Connection

MESSAGE_LIMIT = 1 << 20
"""Bytes; longer messages are refused."""

_LENGTH = struct.Struct("!I")

Message = dict[str, Any]


class WireError(Exception):
    """The peer sent what is no message, or went away."""


def encode(message: Message, limit: int = MESSAGE_LIMIT) -> bytes:
    """Return bytes of one message with its length in front. Errors: WireError if it is longer than limit."""
    body = bytes(msgpack.packb(message, use_bin_type=True))
    if len(body) > limit:
        raise WireError(f"a message of {len(body)} bytes is longer than {limit}")
    return _LENGTH.pack(len(body)) + body


def receive_exactly(connection: Connection, size: int) -> bytes:
    """size bytes. Errors: WireError at end of stream, TimeoutError by the socket's own bound."""
    parts = bytearray(size)
    view = memoryview(parts)
    got = 0
    while got < size:
        count = connection.recv_into(view[got:])
        if count == 0:
            raise WireError("the peer closed the connection")
        got += count
    return bytes(parts)


def decode_body(body: bytes | memoryview) -> Message:
    """Return the map in body. Errors: WireError."""
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list or a map as the key of a map
        raise WireError(f"not a message: {error}") from None
    if not isinstance(message, dict):
        raise WireError("not a message: no map")
    return message


def receive(connection: Connection, limit: int = MESSAGE_LIMIT) -> Message:
    """Return the next message. Errors: WireError, TimeoutError."""
    (size,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    if size > limit:
        raise WireError(f"the peer announced a message of {size} bytes, more than {limit}")
    return decode_body(receive_exactly(connection, size))


def send(connection: Connection, message: Message, limit: int = MESSAGE_LIMIT) -> None:
    """Sends one message. Errors: OSError, TimeoutError, WireError."""
    connection.sendall(encode(message, limit))


class Assembler:
    """Messages out of a non-blocking stream: feed() bytes as they come, iterate what is complete."""

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[Message]:
        """Return all messages that data completes. Errors: WireError on nonsense; the stream is then of no more use."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > self._limit:
                raise WireError(f"the peer announced a message of {size} bytes, more than {self._limit}")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                break
            messages.append(decode_body(memoryview(self._buffer)[_LENGTH.size : end].tobytes()))
            del self._buffer[:end]
        return messages
