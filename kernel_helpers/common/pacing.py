"""Connections to neighbours are not paced (pacing.h says why): the face of pacing.c."""

from __future__ import annotations

import ctypes
import functools
import socket

from kernel_helpers.common import library


@functools.cache
def _native() -> ctypes.CDLL:
    return library.functions(("farhome_unpaced", None, [ctypes.c_int]), ("farhome_settle_pace", None, [ctypes.c_int]))


def unpaced(fresh: socket.socket) -> None:
    """Before it connects or listens: its connections are not paced, unless the peer turns out to be far."""
    _native().farhome_unpaced(fresh.fileno())


def settle_pace(connection: socket.socket) -> None:
    """On a connection of such a socket something has gone both ways: where the peer is more than a millisecond away (there and back), it
    has what the machine's owner has chosen for all (net.ipv4.tcp_congestion_control)."""
    _native().farhome_settle_pace(connection.fileno())
