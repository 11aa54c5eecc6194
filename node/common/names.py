"""Names of nodes, and where they are."""

from __future__ import annotations

import re

DEFAULT_PORT = 7226
NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
RESERVED_NAMES = frozenset({"home", "out", "balance", "best", "here"})
"""Words that `migrate`, or `/mfs`, takes where a node's name may stand."""


def check_name(name: object) -> str:
    """Return a node's name. Errors: ValueError."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name) or name in RESERVED_NAMES:
        raise ValueError(f"{name!r} is no name for a node (letters, digits, '.', '_', '-'; not {', '.join(sorted(RESERVED_NAMES))})")
    return name


def parse_endpoint(text: object, port: int = DEFAULT_PORT) -> tuple[str, int]:
    """(host, port) of "host", "host:port" or "[v6]:port". Errors: ValueError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/]+))(?::(\d{1,5}))?", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no address (host, host:port or [v6 address]:port)")
    number = int(match[3]) if match[3] else port
    if not 0 < number < 65536:
        raise ValueError(f"{number} is no port")
    return match[1] or match[2], number


def format_endpoint(host: str, port: int) -> str:
    """Return the inverse of parse_endpoint."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
