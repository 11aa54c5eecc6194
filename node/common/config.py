"""`/etc/farhome/node.toml`: read, checked, and refused in one sentence."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from balancer.lending.mistakes import Mistake
from balancer.lending.policy import LendingPolicy
from engine.leaving.processor import FLAG
from kernel_helpers.common.errors import FarhomeError
from mfs.settings import Settings as MfsSettings
from node.common.names import DEFAULT_PORT, check_name, parse_endpoint
from node.common.toml_lines import line_of

INTERCEPTIONS = ("auto", "notify", "ptrace")
ENGINES = ("auto", "pour", "criu")
MEMORY = ("auto", "precopy", "postcopy")


class ConfigError(FarhomeError):
    """The configuration is not usable; the message names file, line or key."""

    exit_code = 78


@dataclass(frozen=True)
class Config:
    """One node's configuration. link_timeout in seconds; speed 1.0 is the yardstick's, None: measured. cpu_flags: of those that
    the processor has, the ones that count; None: all. own_programs: deputies, and remotes, that share their program with no other.
    encryption: whether what goes to other nodes is encrypted even if they do not ask for it. carry: whether replies to processes that are
    away carry the answers to what is asked next. remember: whether nodes may remember names of this one's files. run_ahead: whether they
    may answer writes before these are made at home."""

    name: str
    address: str
    port: int = DEFAULT_PORT
    peers: tuple[tuple[str, int], ...] = ()
    speed: float | None = None
    interception: str = "auto"
    engine: str = "auto"
    memory: str = "auto"
    link_timeout: float = 300.0
    balance: bool = True
    at_exec: bool = True
    lend: dict[str, Any] = field(default_factory=dict)
    cpu_flags: frozenset[str] | None = None
    own_programs: int = 8
    encryption: bool = True
    carry: bool = True
    run_ahead: bool = True
    remember: bool = True
    mfs: MfsSettings = field(default_factory=MfsSettings)


def own_address() -> str:
    """Return the address that this machine's name stands for, else the loopback address."""
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
    {
        "name",
        "address",
        "port",
        "peers",
        "speed",
        "interception",
        "engine",
        "memory",
        "link_timeout",
        "lend",
        "balance",
        "cpu_flags",
        "own_programs",
        "mfs",
        "encryption",
        "away",
    }
)


@contextmanager
def _reading(key: str) -> Iterator[None]:
    """Mistakes inside are this key's."""
    try:
        yield
    except Mistake:
        raise
    except ValueError as error:
        raise Mistake((key,), str(error)) from None


def _one_of(document: dict[str, Any], key: str, choices: tuple[str, ...]) -> str:
    value = document.get(key, "auto")
    with _reading(key):
        if value not in choices:
            raise ValueError(f"{key} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def _address(value: object) -> str:
    address = value or own_address()
    if not isinstance(address, str):
        raise ValueError("address must be a string")
    return parse_endpoint(address)[0] if ":" not in address else address


def _peers(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list):
        raise ValueError("peers must be a list of addresses")
    return tuple(parse_endpoint(peer) for peer in value)


def _truth(document: dict[str, Any], key: str, default: bool) -> bool:
    value = document.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false")
    return value


def _balance(table: dict[str, Any]) -> dict[str, bool]:
    if unknown := sorted(set(table) - {"enabled", "at_exec"}):
        raise ValueError(f"[balance] knows enabled and at_exec, each true or false, and not {unknown[0]}")
    found = {"balance": table.get("enabled", True), "at_exec": table.get("at_exec", True)}
    if not all(isinstance(value, bool) for value in found.values()):
        raise ValueError("[balance] enabled and at_exec must be true or false")
    return found


def _away(table: dict[str, Any]) -> dict[str, bool]:
    keys = ("carry", "remember", "run_ahead")
    if set(table) - {*keys}:
        raise ValueError("[away] knows three keys, carry, remember and run_ahead")
    return {key: _truth(table, key, True) for key in keys}


def from_document(document: dict[str, Any]) -> Config:
    """Return the configuration that a parsed file holds. Errors: Mistake with a sentence that names the key."""
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise Mistake((unknown[0],), f"unknown key {unknown[0]}")

    def number(key: str, low: float, high: float, default: float | None) -> float | None:
        with _reading(key):
            return _number(document, key, low, high, default)

    with _reading("name"):
        name = check_name(document.get("name") or socket.gethostname())
    with _reading("address"):
        address = _address(document.get("address"))
    with _reading("peers"):
        peers = _peers(document.get("peers", []))
    with _reading("balance"):
        balance = _balance(_table(document, "balance"))
    with _reading("encryption"):
        encryption = _truth(document, "encryption", True)
    with _reading("away"):
        away = _away(_table(document, "away"))
    with _reading("lend"):
        lend = _table(document, "lend")
    with _reading("mfs"):
        mfs = MfsSettings.from_table(_table(document, "mfs"))
    with _reading("cpu_flags"):
        cpu_flags = _flags(document.get("cpu_flags"))
    return Config(
        name=name,
        address=address,
        port=int(number("port", 1, 65535, DEFAULT_PORT) or DEFAULT_PORT),
        peers=peers,
        speed=number("speed", 0.001, 1000.0, None),
        interception=_one_of(document, "interception", INTERCEPTIONS),
        engine=_one_of(document, "engine", ENGINES),
        memory=_one_of(document, "memory", MEMORY),
        link_timeout=number("link_timeout", 1, 3600, 300.0) or 300.0,
        **balance,
        lend=lend,
        cpu_flags=cpu_flags,
        own_programs=int(number("own_programs", 0, 100000, 8.0) or 0),
        mfs=replace(mfs, encryption=encryption),
        encryption=encryption,
        **away,
    )


def load(path: Path) -> Config:
    """Return the configuration in that file. Errors: ConfigError, one sentence that names the line."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        config = from_document(tomllib.loads(text))
        # The owner's policy has its own reader; its mistakes are found here, not when the first guest asks.
        lending_policy(config)
        return config
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except Mistake as error:
        line = line_of(text, error.where)
        raise ConfigError(f"{path}{f', line {line}' if line else ''}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_not_toml(path, text, str(error))) from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _not_toml(path: Path, text: str, sentence: str) -> str:
    """What the parser says, its place put where all mistakes have it."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", sentence, re.DOTALL)
    if match is None:
        return f"{path}: {sentence}"
    line = match[2] or max(1, len(text.splitlines()))
    return f"{path}, line {line}: it is no TOML: {match[1][:1].lower()}{match[1][1:]}"


def lending_policy(config: Config) -> LendingPolicy:
    """Return the lending policy of the configuration. Errors: Mistake."""
    return LendingPolicy.from_table(config.lend)


class InForce:
    """The configuration in force, and the owner's policy that it has; a daemon replaces both when it reads its file anew."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.policy = lending_policy(config)

    def replace(self, config: Config) -> None:
        """Puts another one in force. Errors: Mistake."""
        self.config, self.policy = config, lending_policy(config)
