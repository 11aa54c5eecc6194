"""What mfs-client and mfs-server have done: words in files that they have mapped (client/common/client.h and server/server.h of
kernel_helpers/mfs)."""

from __future__ import annotations

import struct
from pathlib import Path

CLIENT = ("requests", "bytes_in", "bytes_out", "connections", "connected", "notifications", "failed", "waiting")
SERVER = ("requests", "bytes_read", "bytes_written", "nodes", "files", "leases", "recalls", "invalidations", "connected")
_CLIENT = struct.Struct(f"{len(CLIENT)}Q")
_SERVER = struct.Struct(f"{len(SERVER)}Q64s")


def of_client(path: Path) -> dict[str, int]:
    """Figures of one mount; none if there are none yet. bytes are those of the wire."""
    try:
        return dict(zip(CLIENT, _CLIENT.unpack_from(path.read_bytes()), strict=True))
    except (OSError, struct.error):
        return {}


def of_server(path: Path) -> list[dict[str, int | str]]:
    """Figures of each mount that a peer has of this node."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    rows: list[dict[str, int | str]] = []
    for *words, name in _SERVER.iter_unpack(data[: len(data) // _SERVER.size * _SERVER.size]):
        if name[0]:
            rows.append({"peer": name.rstrip(b"\0").decode(errors="replace"), **dict(zip(SERVER, words, strict=True))})
    return rows
