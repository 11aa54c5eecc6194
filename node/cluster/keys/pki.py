"""Keys and certificates of a cluster: its authority and its nodes.

Every certificate names its node in the subject's common name, and lasts thirty days: nodes have theirs renewed (node/cluster/renewal.py).
The authority's key lies on the node that made the cluster, and on those that it was handed over to; they answer `join` and `renew`. Its
certificate lasts ten years. So did those of nodes once, which count until they are replaced.
"""

from __future__ import annotations

import datetime
import hmac
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kernel_helpers.common.errors import FarhomeError
from node.cluster.keys import forms
from node.cluster.keys.removals import Removals
from node.cluster.keys.signed import Signed
from node.common.names import check_name
from node.common.paths import write_atomically

AUTHORITY_LIFETIME = datetime.timedelta(days=3650)
LIFETIME = datetime.timedelta(days=30)
NUMBER = 32
"""Bytes of the number that is a key of P-256."""
CLOCK_SKEW = datetime.timedelta(days=1)
"""Certificates are valid from that long before they were made: clocks of nodes differ."""


class PkiError(FarhomeError):
    """Keys or certificates are missing or not what they should be."""

    exit_code = 78


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, 64 hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def common_name(certificate: x509.Certificate) -> str:
    """Return the node that a certificate names. Errors: ValueError."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise ValueError("the certificate names no node")
    return check_name(names[0].value)


class KeyStore:
    """The directory /var/lib/farhome/pki."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority_key = directory / "authority.key"
        self.authority_certificate = directory / "authority.pem"
        self.node_key = directory / "node.key"
        self.node_certificate = directory / "node.pem"
        self.tokens = directory / "tokens"
        self.life = directory / "days"
        """For how many days the authority signs, if it is not LIFETIME."""
        self.removals = Removals(directory / "removed")
        self.signed = Signed(directory / "signed")
        self._authority: tuple[bytes, x509.Certificate] | None = None

    def exists(self) -> bool:
        """Return whether this node is member of a cluster."""
        return all(p.exists() for p in (self.authority_certificate, self.node_key, self.node_certificate))

    def is_over(self) -> bool:
        """Return whether this node's certificate does not count any more: too old, or taken back. Errors: PkiError."""
        self.removals.load(self.authority())
        certificate = self.certificate()
        return certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC) or self.removals.covers(certificate)

    def is_authority(self) -> bool:
        """Return whether this node can sign, and so lets others in."""
        return self.authority_key.exists()

    def make_directory(self) -> None:
        """Makes the directory, if it is not there. Errors: PkiError."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.directory.chmod(0o700)
            self.tokens.mkdir(exist_ok=True)
        except OSError as error:
            raise PkiError(f"{self.directory}: {error.strerror}") from None

    def init(self, cluster: str, node: str, days: float | None = None) -> None:
        """Makes the authority of a new cluster and this node's own certificate; days: that certificates last. Errors: PkiError, OSError."""
        if self.exists() or self.is_authority():
            raise PkiError(f"this node is already in a cluster (see {self.directory})")
        self.make_directory()
        if days is not None:
            write_atomically(self.life, f"{days}\n".encode())
        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster)])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(False, False, False, False, False, True, False, False, False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_atomically(self.authority_key, key_pem(key))
        write_atomically(self.authority_certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        node_key = new_key()
        signed = self.sign(node_key.public_key(), node)
        write_atomically(self.node_key, key_pem(node_key))
        write_atomically(self.node_certificate, signed, 0o644)

    def authority(self) -> x509.Certificate:
        """Return the authority's certificate. Errors: PkiError."""
        try:
            text = self.authority_certificate.read_bytes()
            if self._authority is None or self._authority[0] != text:
                self._authority = text, x509.load_pem_x509_certificate(text)
        except (OSError, ValueError) as error:
            raise PkiError(f"{self.authority_certificate}: {error}") from None
        return self._authority[1]

    def authority_private_key(self) -> ec.EllipticCurvePrivateKey:
        """Return the authority's. Errors: PkiError: it is not here, or another one's."""
        try:
            key = serialization.load_pem_private_key(self.authority_key.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise PkiError(f"{self.authority_key}: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self.authority().public_key():
            raise PkiError(f"{self.authority_key}: it is not the key of {self.authority_certificate}")
        return key

    def authority_number(self) -> bytes:
        """Return the authority's key as the number that it is, to be handed over. Errors: PkiError."""
        return self.authority_private_key().private_numbers().private_value.to_bytes(NUMBER, "big")

    def take_authority(self, number: bytes) -> None:
        """Keeps the authority's key, which was handed over; this node signs from now on. Errors: PkiError, OSError."""
        try:
            if len(number) != NUMBER:
                raise ValueError("it has another length")
            key = ec.derive_private_key(int.from_bytes(number, "big"), ec.SECP256R1())
        except ValueError:
            raise PkiError("what was handed over is no key") from None
        if key.public_key() != self.authority().public_key():
            raise PkiError("what was handed over is not the key of this cluster's authority")
        write_atomically(self.authority_key, key_pem(key))

    def lifetime(self) -> datetime.timedelta:
        """For how long the authority here signs."""
        try:
            return datetime.timedelta(days=float(self.life.read_text(encoding="ascii")))
        except (OSError, ValueError):
            return LIFETIME

    def cluster(self) -> str:
        """Return the cluster's name. Errors: PkiError."""
        names = self.authority().subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        return str(names[0].value) if names else ""

    def name(self) -> str:
        """Return the node that the certificate here names. Errors: PkiError."""
        return common_name(self.certificate())

    def certificate(self) -> x509.Certificate:
        """This node's own, which names it. Errors: PkiError."""
        try:
            certificate = x509.load_pem_x509_certificate(self.node_certificate.read_bytes())
            common_name(certificate)
        except (OSError, ValueError) as error:
            raise PkiError(f"{self.node_certificate}: {error}") from None
        return certificate

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """This node's own. Errors: PkiError."""
        try:
            key = serialization.load_pem_private_key(self.node_key.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise PkiError(f"{self.node_key}: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise PkiError(f"{self.node_key}: it is no key of an elliptic curve")
        return key

    @staticmethod
    def request(key: ec.EllipticCurvePrivateKey, node: str) -> bytes:
        """Return a certificate request (PEM) for that node."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        return (
            x509.CertificateSigningRequestBuilder()
            .subject_name(subject)
            .sign(key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    def certify(self, key: ec.EllipticCurvePublicKey, node: str) -> x509.Certificate:
        """Return a certificate for that node and key, of now. Errors: ValueError (the name; too many), PkiError (no authority here),
        OSError."""
        now, earliest = datetime.datetime.now(datetime.UTC), self._readmitted(check_name(node))
        since = max(now - CLOCK_SKEW, earliest) if earliest is not None else now - CLOCK_SKEW
        form = forms.node_form(self.authority(), node, key, x509.random_serial_number(), since, now + self.lifetime())
        certificate = form.sign(self.authority_private_key(), hashes.SHA256())
        self.signed.note(certificate)
        return certificate

    def sign(self, key: ec.EllipticCurvePublicKey, node: str) -> bytes:
        """Return the same as PEM."""
        return self.certify(key, node).public_bytes(serialization.Encoding.PEM)

    def made_again(self, stated: forms.Stated) -> bytes:
        """The certificate (PEM) that says so, which this cluster's authority has signed. Errors: ValueError, PkiError."""
        return forms.made_again(self.authority(), stated)

    def _readmitted(self, node: str) -> datetime.datetime | None:
        """When a certificate of a node that was taken out must begin at the earliest."""
        self.removals.load(self.authority())
        second = self.removals.names().get(node)
        return datetime.datetime.fromtimestamp(second, datetime.UTC) if second is not None else None

    def remove(self, node: str) -> None:
        """Takes a node out of the cluster: what was signed for it until now does not count any more.

        Errors: PkiError, OSError, ValueError (too many were).
        """
        # All that is valid from before: an older authority's clock may be some minutes ahead, none a whole day.
        second = int((datetime.datetime.now(datetime.UTC) - CLOCK_SKEW).timestamp()) + 1
        since = self.signed.since(node)
        self.removals.add(self.authority(), self.authority_private_key(), node, max(second, int(since) + 1))

    def refusal(self, certificate_der: bytes) -> str | None:
        """Return why a peer with that certificate, which TLS has checked, is none; None: it is one."""
        if self.removals.covers(x509.load_der_x509_certificate(certificate_der)):
            return "it was removed from the cluster"
        return None

    def install(self, key: ec.EllipticCurvePrivateKey, certificate: bytes, authority: bytes) -> None:
        """Keeps what a join brought. Errors: PkiError, OSError."""
        self.make_directory()
        write_atomically(self.authority_certificate, authority, 0o644)
        write_atomically(self.node_key, key_pem(key))
        write_atomically(self.node_certificate, certificate, 0o644)

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.3; a certificate of the authority is checked if given: who gives none may only join. Errors: PkiError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        self._load(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client_context(self) -> ssl.SSLContext:
        """TLS 1.3; the peer must have a certificate of the authority (its name is compared by the caller). Errors: PkiError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.removals.load(self.authority())
        try:
            context.load_cert_chain(self.node_certificate, self.node_key)
            context.load_verify_locations(self.authority_certificate)
        except (OSError, ssl.SSLError) as error:
            raise PkiError(f"{self.directory}: the node's certificates cannot be used: {error}") from None


def joining_context() -> ssl.SSLContext:
    """TLS 1.3 towards a node whose authority is known by its fingerprint only; see check_joined_peer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def check_joined_peer(authority_pem: bytes, peer_der: bytes, expected: str) -> None:
    """That the peer of a TLS connection is a member of the cluster with that fingerprint. Errors: PkiError."""
    try:
        authority = x509.load_pem_x509_certificate(authority_pem)
        if not hmac.compare_digest(fingerprint(authority), expected):
            raise PkiError("the cluster that answered is not the one of the token")
        x509.load_der_x509_certificate(peer_der).verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise PkiError("the node that answered is not of the cluster of the token") from None
