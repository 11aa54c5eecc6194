"""The one form of a node's certificate in this cluster, and what differs from one to another, as values of fixed length.

mosd reads no certificate that somebody shows, nor a request for one: the front does, and reports what it says. By that, and by this form,
mosd makes the same certificate again; if the authority's signature is of what has come out, it has signed just that.
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from node.common.names import check_name

POINT = 65
"""Bytes of a key: a point of P-256, both its coordinates behind a 4."""
SERIAL = 20
"""Bytes of a serial number at most."""
_HALF = 32
_LATEST = 1 << 37
"""Seconds since the epoch, far beyond what a certificate can state."""
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


@dataclass(frozen=True)
class Stated:
    """What a node's certificate says: name, point of its key, serial number, seconds since the epoch; and its signature (64 bytes)."""

    name: str
    point: bytes
    serial: int
    since: int
    until: int
    signature: bytes

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Stated:
        """Errors: ValueError: it is of another form."""
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = certificate.public_key()
        if len(names) != 1 or not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("the certificate is of no node")
        first, second = decode_dss_signature(certificate.signature)
        return cls(
            check_name(names[0].value), point_of(key), certificate.serial_number, int(certificate.not_valid_before_utc.timestamp()),
            int(certificate.not_valid_after_utc.timestamp()), first.to_bytes(_HALF, "big") + second.to_bytes(_HALF, "big"),
        )  # fmt: skip

    def to_wire(self) -> dict[str, Any]:
        """Return all but the name."""
        serial = self.serial.to_bytes(SERIAL, "big")
        return {"point": self.point, "serial": serial, "since": self.since, "until": self.until, "signature": self.signature}

    @classmethod
    def from_wire(cls, name: str, reported: object) -> Stated:
        """Errors: ValueError."""
        if not isinstance(reported, dict):
            raise ValueError("no certificate is passed on")
        point, serial, since, until, signature = (reported.get(key) for key in ("point", "serial", "since", "until", "signature"))
        for data, length in ((point, POINT), (serial, SERIAL), (signature, 2 * _HALF)):
            if not isinstance(data, bytes) or len(data) != length:
                raise ValueError("what is passed on of a certificate has another length")
        if type(since) is not int or type(until) is not int or not 0 <= since < until < _LATEST:
            raise ValueError("no certificate has these times")
        assert isinstance(point, bytes) and isinstance(serial, bytes) and isinstance(signature, bytes)
        return cls(check_name(name), point, int.from_bytes(serial, "big"), since, until, signature)


def point_of(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return the key as POINT bytes. Errors: ValueError: it is of another curve."""
    if key.curve.name != "secp256r1":
        raise ValueError("the key is not of the curve P-256")
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def key_of(point: bytes) -> ec.EllipticCurvePublicKey:
    """The key that has this point. Errors: ValueError."""
    if len(point) != POINT:
        raise ValueError("that is no key of the curve P-256")
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)


def node_form(
    authority: x509.Certificate, node: str, key: ec.EllipticCurvePublicKey, serial: int, since: datetime.datetime, until: datetime.datetime
) -> x509.CertificateBuilder:
    """Return the certificate of a node, to be signed."""
    organization = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    cluster = str(organization[0].value) if organization else ""
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster), x509.NameAttribute(NameOID.COMMON_NAME, node)]))
        .issuer_name(authority.subject)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(node)]), critical=False)
    )


def made_again(authority: x509.Certificate, stated: Stated) -> bytes:
    """The certificate (PEM) that says so, which the authority has signed. Errors: ValueError: it has not, or there can be none."""
    since, until = (datetime.datetime.fromtimestamp(second, datetime.UTC) for second in (stated.since, stated.until))
    form = node_form(authority, stated.name, key_of(stated.point), stated.serial, since, until)
    # The text does not depend on the signer; this signature is thrown away.
    text = form.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).tbs_certificate_bytes
    key = authority.public_key()
    signature = encode_dss_signature(*(int.from_bytes(stated.signature[at : at + _HALF], "big") for at in (0, _HALF)))
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ValueError("the certificate is not of this cluster") from None
    whole = _field(0x30, text + _ECDSA_SHA256 + _field(0x03, b"\0" + signature))
    return ssl.DER_cert_to_PEM_cert(whole).encode()


def _field(tag: int, content: bytes) -> bytes:
    """A field of DER."""
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + content
