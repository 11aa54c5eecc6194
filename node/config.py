"""`/etc/farhome/node.toml`: read, checked, and refused in one sentence."""

from __future__ import annotations

import re
import socket
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from balancer.policy import LendingPolicy
from engine.processor import FLAG
from kernel_helpers.errors import FarhomeError

DEFAULT_PORT = 7226
NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
RESERVED_NAMES = frozenset({"home", "out", "balance", "best"})
"""Words that `migrate` takes where a node's name may stand."""
INTERCEPTIONS = ("auto", "notify", "ptrace")
ENGINES = ("auto", "pour", "criu")
MEMORY = ("auto", "precopy", "postcopy")


class ConfigError(FarhomeError):
    """The configuration is not usable; the message names file, line or key."""

    exit_code = 78


@dataclass(frozen=True)
class Config:
    """One node's configuration. link_timeout in seconds; speed 1.0 is the yardstick's, None: measured. cpu_flags: of those that
    the processor has, the ones that count; None: all. own_programs: deputies, and remotes, that share their program with no other."""

    name: str
    address: str
    port: int = DEFAULT_PORT
    peers: tuple[tuple[str, int], ...] = ()
    speed: float | None = None
    interception: str = "auto"
    engine: str = "auto"
    memory: str = "auto"
    link_timeout: float = 20.0
    balance: bool = True
    lend: dict[str, Any] = field(default_factory=dict)
    cpu_flags: frozenset[str] | None = None
    own_programs: int = 8


def check_name(name: object) -> str:
    """A node's name. Errors: ValueError."""
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
    """The inverse of parse_endpoint."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address() -> str:
    """The address that this machine's name stands for, else the loopback address."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _number(table: dict[str, Any], key: str, low: float, high: float, default: float | None) -> float | None:
    value = table.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{key} must be a number from {low:g} to {high:g}, not {value!r}")
    return float(value)


def _flags(value: object) -> frozenset[str] | None:
    if value is None:
        return None
    flags = value.split() if isinstance(value, str) else []
    if not flags or not all(FLAG.fullmatch(flag) for flag in flags):
        raise ValueError(f"cpu_flags must be words as in the flags of /proc/cpuinfo, not {value!r}")
    return frozenset(flags)


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"[{key}] must be a table")
    return value


_KEYS = frozenset(
    {"name", "address", "port", "peers", "speed", "interception", "engine", "memory", "link_timeout", "lend", "balance", "cpu_flags",
     "own_programs"}
)


def from_document(document: dict[str, Any]) -> Config:
    """The configuration that a parsed file holds. Errors: ValueError with a sentence that names the key."""
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}")
    peers = document.get("peers", [])
    if not isinstance(peers, list):
        raise ValueError("peers must be a list of addresses")
    address = document.get("address") or own_address()
    if not isinstance(address, str):
        raise ValueError("address must be a string")
    interception = document.get("interception", "auto")
    if interception not in INTERCEPTIONS:
        raise ValueError(f"interception must be one of {', '.join(INTERCEPTIONS)}, not {interception!r}")
    engine = document.get("engine", "auto")
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    memory = document.get("memory", "auto")
    if memory not in MEMORY:
        raise ValueError(f"memory must be one of {', '.join(MEMORY)}, not {memory!r}")
    balance = _table(document, "balance")
    enabled = balance.get("enabled", True)
    if set(balance) - {"enabled"} or not isinstance(enabled, bool):
        raise ValueError("[balance] knows one key, enabled = true or false")
    port = _number(document, "port", 1, 65535, DEFAULT_PORT) or DEFAULT_PORT
    return Config(
        name=check_name(document.get("name") or socket.gethostname()),
        address=parse_endpoint(address)[0] if ":" not in address else address,
        port=int(port),
        peers=tuple(parse_endpoint(peer) for peer in peers),
        speed=_number(document, "speed", 0.001, 1000.0, None),
        interception=interception,
        engine=engine,
        memory=memory,
        link_timeout=_number(document, "link_timeout", 1, 3600, 20.0) or 20.0,
        balance=enabled,
        lend=_table(document, "lend"),
        cpu_flags=_flags(document.get("cpu_flags")),
        own_programs=int(_number(document, "own_programs", 0, 100000, 8.0) or 0),
    )


def load(path: Path) -> Config:
    """The configuration in that file. Errors: ConfigError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        config = from_document(document)
        # The owner's policy has its own reader; its mistakes are found here, not when the first guest asks.
        lending_policy(config)
        return config
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:       # TOMLDecodeError (which names line and column) and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"{path}: {error}") from None


def lending_policy(config: Config) -> LendingPolicy:
    """The lending policy of the configuration. Errors: ValueError naming the key."""
    return LendingPolicy.from_table(config.lend)
