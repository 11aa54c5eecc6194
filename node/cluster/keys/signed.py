"""What an authority has signed: a file for each node, `pki/signed/NAME`, with serial number, key and end of its newest certificate.

By it a name is not given twice while it is in use, and a certificate is renewed for its own key alone.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.x509.oid import NameOID

from node.common.names import check_name
from node.common.paths import write_atomically

MOST = 16384
"""Names that are kept; nodes beyond are not let in."""


@dataclass(frozen=True)
class Record:
    """One node's newest certificate: serial number and SHA-256 of the key, both in hexadecimal; since, until: seconds since the epoch."""

    name: str
    serial: str
    key: str
    since: float
    until: float


def key_digest(key: Any) -> str:
    """SHA-256 of a public key, 64 hexadecimal digits."""
    digest = Hash(SHA256())
    digest.update(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


class Signed:
    """The list. Errors of all: OSError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def note(self, certificate: x509.Certificate) -> None:
        """Keeps what was signed, or what is known to have been."""
        name = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        since, until = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
        self.take(Record(name, f"{certificate.serial_number:x}", key_digest(certificate.public_key()), since, until))

    def take(self, record: Record) -> None:
        """Keeps a record, unless a later one of the name is known. Errors: ValueError: there are too many names."""
        before = self.get(record.name)
        if before is not None and before.since >= record.since and before.serial != record.serial and before.until >= record.until:
            return
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if before is None and sum(1 for _ in self._directory.iterdir()) >= MOST:
            raise ValueError(f"{MOST} nodes were let in already")
        write_atomically(self._directory / record.name, json.dumps(asdict(record)).encode())

    def get(self, name: str) -> Record | None:
        """Return what was signed for that node last."""
        try:
            read = json.loads((self._directory / check_name(name)).read_bytes())
            return Record(str(read["name"]), str(read["serial"]), str(read["key"]), float(read["since"]), float(read["until"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def all(self) -> list[Record]:
        """Return all of it, by name."""
        try:
            names = sorted(path.name for path in self._directory.iterdir() if not path.name.startswith("."))
        except OSError:
            return []
        return [record for name in names if (record := self.get(name)) is not None]

    def since(self, name: str) -> float:
        """From when on the newest certificate of that node is valid; 0: none is known."""
        record = self.get(name)
        return record.since if record is not None else 0.0

    def in_use(self, name: str, removed: dict[str, int]) -> Record | None:
        """Return the certificate of a node that has the name now: neither over nor taken back."""
        record = self.get(name)
        return record if record is not None and record.until > time.time() and record.since >= removed.get(name, 0) else None
