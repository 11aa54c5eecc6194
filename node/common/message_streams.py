"""Framed msgpack messages on asyncio streams, with a bound on size and on every wait."""

from __future__ import annotations

import asyncio
import errno

from wire.frames import MESSAGE_LIMIT, Message, WireError, decode_body, encode

LENGTH = 4
BUFFER = 1 << 16
"""Bytes that a stream reads ahead; a peer that is not listened to cannot make us hold more."""


async def read_message(reader: asyncio.StreamReader, limit: int = MESSAGE_LIMIT, timeout: float | None = None) -> Message | None:
    """Return the next message, None at a clean end of the stream.

    The timeout (seconds) is for the whole message. Errors: WireError (nonsense, too long, ended within), TimeoutError, OSError.
    """
    async with asyncio.timeout(timeout):
        try:
            size = int.from_bytes(await reader.readexactly(LENGTH), "big")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise WireError("the peer went away within a message") from None
        if size > limit:
            raise WireError(f"the peer announced a message of {size} bytes, more than {limit}")
        try:
            return decode_body(await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            raise WireError("the peer went away within a message") from None


async def write_message(writer: asyncio.StreamWriter, message: Message, timeout: float | None = 10.0) -> None:
    """Sends one message. Errors: WireError (too long), OSError, TimeoutError if the peer does not take it."""
    data = encode(message)
    try:
        writer.write(data)
        async with asyncio.timeout(timeout):
            await writer.drain()
    except RuntimeError as error:  # uvloop's word for a transport that it has closed already
        raise ConnectionResetError(errno.ECONNRESET, "the connection is closed") from error


def close(writer: asyncio.StreamWriter) -> None:
    """Closes without waiting for the peer."""
    try:
        writer.close()
    except (OSError, RuntimeError):
        pass
