"""What peers send that is not plain (requests for certificates, certificates, datagrams), taken apart here, so that mosd need not.

Nothing with rights loads this. It gives mosd values of fixed form and length instead: node/cluster/keys/forms.py, balancer/gossip/plain.py.
"""

from __future__ import annotations

from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from balancer.gossip.opening import unpack
from balancer.gossip.plain import plain
from node.cluster.front.connections import PeerRefused
from node.cluster.keys.forms import Stated, point_of
from node.common.names import check_name

REQUEST = 1 << 13
"""Bytes of a request for a certificate, of which one of ours has 400."""


def of_gossip(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the datagram that a peer has sent in a call. Errors: ValueError."""
    payload = parameters.get("payload")
    if not isinstance(payload, bytes):
        raise ValueError("gossip without a payload")
    return {"payload": plain(unpack(payload))}


def of_join(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return who wants to join, and the point of its key; without a token that is nobody yet. Errors: PeerRefused."""
    if "secret" not in parameters:
        return {}
    secret, request, name = parameters.get("secret"), parameters.get("request"), parameters.get("name")
    if not isinstance(secret, str) or not isinstance(request, bytes) or not isinstance(name, str):
        raise PeerRefused("join", "the request to join is not complete")
    try:
        return {"secret": secret, "name": check_name(name), "point": _requested_key_point(request, name)}
    except ValueError as error:
        raise PeerRefused("join", str(error)) from None


def of_renewal(certificate: bytes, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what the certificate says that the caller has shown, and is to be renewed. Errors: PeerRefused, ValueError."""
    request = parameters.get("request")
    if not isinstance(request, bytes):
        raise PeerRefused("renew", "the request is not complete")
    shown = Stated.of(x509.load_der_x509_certificate(certificate))
    if _requested_key_point(request, shown.name) != shown.point:
        raise PeerRefused("renew", "a certificate is renewed for its own key alone")
    return {"certificate": shown.to_wire()}


def _requested_key_point(pem: bytes, expected: str) -> bytes:
    """The point of the key of a request, which is signed by it, for the expected node. Errors: ValueError."""
    try:
        if len(pem) > REQUEST:
            raise ValueError("it is too long")
        request = x509.load_pem_x509_csr(pem)
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = request.public_key()
        if not request.is_signature_valid or len(names) != 1 or not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("it is not ours")
        point, node = point_of(key), str(names[0].value)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("the certificate request is not valid") from None
    if node != expected:
        raise ValueError(f"the certificate request is for {check_name(node)}, not for {expected}")
    return point
