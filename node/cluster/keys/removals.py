"""Nodes that were taken out of the cluster: who, and from which certificate on they may be in it again.

`pki/removed` has a line for each::

    NAME SECONDS SIGNATURE          certificates of NAME that are valid from before that second do not count

The authority signs each line by itself, so that lists are united without anybody's help: of two lines of one node the later one counts.
Nothing is ever taken off the list, and nobody but an authority can put anything on it. It goes round by itself (node/cluster/spreading.py).
mfs-server and mfs-client read the same file (kernel_helpers/mfs/members.c).
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from balancer.gossip.datagram import REMOVED
from node.common.names import check_name
from node.common.paths import write_atomically

MOST = 1024
"""Nodes on the list."""
LONGEST = 80
"""Bytes of a signature."""

Line = tuple[str, int, bytes]
log = logging.getLogger("mosd.cluster")


def _statement(authority: x509.Certificate, name: str, second: int) -> bytes:
    return b"farhome removed\0" + authority.fingerprint(hashes.SHA256()) + f"{name} {second}".encode()


class Removals:
    """The list, on disk and in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, Line] = {}
        self._read: bytes | None = None

    def load(self, authority: x509.Certificate) -> set[str]:
        """Reads what is on the disk, besides what is known; returns names that are news."""
        try:
            text = self._path.read_bytes()
        except OSError:
            return set()
        if text == self._read:
            return set()
        self._read = text
        lines: list[Line] = []
        for words in (line.split() for line in text.decode("ascii", "replace").splitlines()):
            try:
                name, second, signature = words
                lines.append((name, int(second), bytes.fromhex(signature)))
            except ValueError:
                log.warning("%s: a line makes no sense and is ignored", self._path)
        return self._take(authority, lines)

    def lines(self) -> list[Line]:
        """Return all of it, as it is sent to other nodes."""
        return list(self._lines.values())

    def names(self) -> dict[str, int]:
        """Return who was taken out, and the second from which on their certificates must be valid."""
        return {name: second for name, second, _ in self._lines.values()}

    def digest(self) -> bytes:
        """Stands for the list in gossip; zeros: it is empty."""
        if not self._lines:
            return bytes(REMOVED)
        text = "".join(f"{name} {second}\n" for name, second, _ in sorted(self._lines.values()))
        return hashlib.sha256(text.encode()).digest()[:REMOVED]

    def merge(self, authority: x509.Certificate, lines: Iterable[object]) -> set[str]:
        """Take the report of another node, of which nothing is believed but what the authority signed; returns names that are news.
        Errors: ValueError (no such list), OSError."""
        reported: list[Line] = []
        for line in lines:
            if not isinstance(line, (list, tuple)) or len(line) != 3 or len(reported) >= MOST:
                raise ValueError("that is no list of removed nodes")
            name, second, signature = line
            if not isinstance(name, str) or not isinstance(second, int) or not isinstance(signature, bytes) or len(signature) > LONGEST:
                raise ValueError("that is no list of removed nodes")
            reported.append((name, second, signature))
        news = self._take(authority, reported, strictly=True)
        if news:
            self._write()
        return news

    def _take(self, authority: x509.Certificate, lines: list[Line], strictly: bool = False) -> set[str]:
        """strictly: nothing is looked at any more after a line that no authority has signed, of which no honest node has one."""
        key, news = authority.public_key(), set()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        for name, second, signature in lines:
            known = self._lines.get(name)
            if (known is not None and known[1] >= second) or (known is None and len(self._lines) >= MOST):
                continue
            try:
                check_name(name)
                key.verify(signature, _statement(authority, name, second), ec.ECDSA(hashes.SHA256()))
            except (InvalidSignature, ValueError):
                if strictly:
                    raise ValueError(f"no authority has signed that {name[:64]!r} was removed") from None
                log.warning("who says that %.64r was removed has no signature of the authority: it counts for nothing", name)
                continue
            self._lines[name] = name, second, signature
            news.add(name)
        return news

    def _write(self) -> None:
        text = "".join(f"{name} {second} {signature.hex()}\n" for name, second, signature in self._lines.values()).encode()
        write_atomically(self._path, text, 0o644)
        self._read = text

    def add(self, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey, name: str, second: int) -> None:
        """Signs and keeps that certificates of that node from before that second do not count. Errors: ValueError (too many), OSError."""
        self.load(authority)
        if name not in self._lines and len(self._lines) >= MOST:
            raise ValueError(f"{MOST} nodes were removed already: make the cluster anew")
        second = max(second, self.names().get(name, 0) + 1)
        self._lines[name] = name, second, key.sign(_statement(authority, name, second), ec.ECDSA(hashes.SHA256()))
        self._write()

    def covers(self, certificate: x509.Certificate) -> bool:
        """Return whether the certificate is one that does not count any more."""
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return bool(names) and self.bars(str(names[0].value), certificate.not_valid_before_utc)

    def bars(self, name: str, since: datetime.datetime) -> bool:
        """Return whether certificates of that node that are valid from then do not count any more."""
        line = self._lines.get(name)
        return line is not None and since < datetime.datetime.fromtimestamp(line[1], datetime.UTC)
