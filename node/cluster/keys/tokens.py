"""Tokens, each of which lets one node in, once, within its time: the node that it names.

A token holds where to join, the fingerprint of the cluster's authority, and a secret, of which the authority keeps the hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass

from node.cluster.keys.pki import KeyStore, PkiError, fingerprint
from node.common.names import check_name, format_endpoint, parse_endpoint
from node.common.paths import write_atomically

MOST = 4096
"""Tokens that nobody has used yet; those that are over do not count."""


@dataclass(frozen=True)
class Token:
    """What a new node needs to join: where, whom to believe there, and the one-time secret."""

    host: str
    port: int
    fingerprint: str
    secret: str

    def __str__(self) -> str:
        return f"{self.secret}.{self.fingerprint}@{format_endpoint(self.host, self.port)}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Errors: ValueError."""
        head, _, endpoint = text.strip().partition("@")
        secret, _, fingerprint = head.partition(".")
        if not endpoint or len(secret) != 32 or len(fingerprint) != 64 or not set(fingerprint) <= set("0123456789abcdef"):
            raise ValueError("this is no token of mosctl cluster token")
        host, port = parse_endpoint(endpoint)
        return cls(host, port, fingerprint, secret)


def why_taken(keys: KeyStore, name: str) -> str | None:
    """Return why no new node may be called so; None: it may. Errors: PkiError."""
    keys.removals.load(keys.authority())
    record = keys.signed.in_use(name, keys.removals.names())
    if record is None:
        return None
    until = time.strftime("%Y-%m-%d", time.localtime(record.until))
    return f"a node of the cluster has the name {name} already, until {until} (mosctl cluster remove {name} takes it back)"


def new_token(keys: KeyStore, name: str, host: str, port: int, minutes: float) -> Token:
    """A token that lets the node of that name in, once, until then. Errors: PkiError, OSError, ValueError (the name)."""
    if not keys.is_authority():
        raise PkiError("tokens are made on a node that can sign: the one that made the cluster (mosctl cluster init)")
    if (why := why_taken(keys, check_name(name))) is not None:
        raise PkiError(why)
    keys.make_directory()
    _drop_old(keys)
    secret = os.urandom(16).hex()
    record = json.dumps({"until": time.time() + minutes * 60, "name": name}).encode()
    write_atomically(keys.tokens / hashlib.sha256(secret.encode()).hexdigest(), record)
    return Token(host, port, fingerprint(keys.authority()), secret)


def _drop_old(keys: KeyStore) -> None:
    """Errors: PkiError if there are too many tokens all the same."""
    left = 0
    for path in list(keys.tokens.iterdir()):
        try:
            is_over = float(json.loads(path.read_bytes())["until"]) < time.time()
        except (OSError, ValueError, KeyError, TypeError):
            is_over = True
        if is_over:
            path.unlink(missing_ok=True)
        left += not is_over
    if left >= MOST:
        raise PkiError(f"{MOST} tokens wait to be used: use them, or wait until they are too old")


def redeem(keys: KeyStore, secret: str, name: str) -> bool:
    """Uses up a token's secret; whether it was good, and for the node of that name. Only one caller can succeed: the unlink decides.

    Who shows a token under another name has used it up, too: it is in hands that it was not made for.
    """
    path = keys.tokens / hashlib.sha256(secret.encode()).hexdigest()
    try:
        record = json.loads(path.read_bytes())
        until, wanted = float(record["until"]), record["name"]
        path.unlink()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return time.time() < until and wanted == name
