"""Connections between node daemons as both ends of the front have them: TLS 1.3 streams, their errors, channels to peers."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
from collections.abc import Callable

from kernel_helpers.common.errors import FarhomeError
from node.common.message_streams import BUFFER
from wire.frames import Message

PROTOCOL_VERSION = 1
HANDSHAKE_TIMEOUT = 5.0


class PeerError(FarhomeError):
    """A peer cannot be reached, or did not answer as it should."""

    exit_code = 75


BUSY = "busy"
"""The kind of a refusal that may be none soon."""


class PeerRefused(PeerError):
    """The peer understood and said no; the message is its reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def certificate_name(writer: asyncio.StreamWriter) -> str:
    """Return the common name in the peer's checked certificate, "" if it gave none."""
    certificate = writer.get_extra_info("peercert") or {}
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


def certificate_der(writer: asyncio.StreamWriter) -> bytes:
    """Return the peer's certificate as it came, b"" if it gave none."""
    tls = writer.get_extra_info("ssl_object")
    return (tls.getpeercert(binary_form=True) or b"") if tls is not None else b""


async def open_stream(sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams over TLS on a connected socket, within the handshake's bound. Errors: OSError (ssl.SSLError), TimeoutError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    async with asyncio.timeout(HANDSHAKE_TIMEOUT):
        if server_side:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=context)
        else:
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock, ssl=context, server_hostname="")
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def connect_socket(host: str, port: int) -> socket.socket:
    """Return a connected TCP socket. Errors: OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANDSHAKE_TIMEOUT):
        family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A dead peer is noticed within 10 s even where nothing is said: 3 probes after 4 s of silence.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            await loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
    return sock


def message_of(error: BaseException) -> str:
    """Return the sentence of an error of a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this cluster ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no TLS ({error.reason or error})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


class Channel:
    """A connection to a peer as the front has it: messages that it sends come one by one, bytes of ours go out."""

    def __init__(self, write: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.write = write
        self.close = close
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """done when the peer has shown a certificate that counts; PeerError if it has not"""
        self.name = ""
        self.since = datetime.datetime.fromtimestamp(0, datetime.UTC)
        """from when on its certificate is valid"""
        self.take: Callable[[Message], None] = lambda message: None
        self.ended: Callable[[], None] = lambda: None
