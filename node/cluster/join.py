"""How a new node comes into a cluster: its key is made here, the certificate comes from a node that can sign."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection
from typing import Any

from node.cluster.front.connections import PeerRefused
from node.cluster.front.peer_server import Caller
from node.cluster.keys.forms import key_of
from node.cluster.keys.pki import KeyStore, PkiError, check_joined_peer, joining_context, new_key
from node.cluster.keys.tokens import Token, redeem, why_taken
from node.common.names import format_endpoint
from node.common.paths import Paths, write_atomically
from wire import frames
from wire.frames import WireError

JOIN_TIMEOUT = 10.0


def answer_join(keys: KeyStore, members: Collection[str], caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster's side: first the authority's certificate, then, against a good token, a certificate.

    parameters: as the front has taken them apart (node/cluster/front/reading.py); members: who is known to be there, besides those of whom
    there is a record (of old, none was kept).
    Errors: PeerRefused, ValueError.
    """
    if not keys.is_authority():
        raise PeerRefused("join", "this node cannot sign; join at the node that made the cluster")
    if "secret" not in parameters:
        return {"authority": keys.authority_certificate.read_bytes()}
    secret, point, name = parameters.get("secret"), parameters.get("point"), parameters.get("name")
    if not isinstance(secret, str) or not isinstance(point, bytes) or not isinstance(name, str):
        raise PeerRefused("join", "the request to join is not complete")
    key = key_of(point)
    if not redeem(keys, secret, name):  # first: who has no token learns nothing of names
        raise PeerRefused("join", f"the token is not valid for a node {name}, was used before or is too old")
    why = why_taken(keys, name)
    if why is None and name in members and keys.signed.get(name) is None:
        why = f"a node of the cluster has the name {name} already"
    if why is not None:
        raise PeerRefused("join", f"{why}; the token is used up")
    return {"certificate": keys.sign(key, name)}


def join(keys: KeyStore, paths: Paths, token: Token, name: str) -> str:
    """Return the new node's side, which needs no daemon here; returns the cluster's name.

    The secret is sent only after the peer has proved to be of the cluster whose fingerprint is in the token.
    Errors: PkiError with one sentence.
    """
    if keys.exists() and not keys.is_over():
        raise PkiError(f"this node is already in a cluster (see {keys.directory})")
    where = format_endpoint(token.host, token.port)
    key = new_key()
    try:
        with (
            socket.create_connection((token.host, token.port), timeout=JOIN_TIMEOUT) as plain,
            joining_context().wrap_socket(plain) as connection,
        ):
            authority = _call(connection, {})["authority"]
            check_joined_peer(authority, connection.getpeercert(binary_form=True) or b"", token.fingerprint)
            answer = _call(connection, {"secret": token.secret, "request": keys.request(key, name), "name": name})
            certificate = answer["certificate"]
    except ssl.SSLError as error:
        raise PkiError(f"{where} does not speak TLS 1.3 as a node daemon does ({error.reason})") from None
    except OSError as error:
        raise PkiError(f"{where} cannot be reached: {error.strerror or error}") from None
    except (WireError, KeyError, TypeError):
        raise PkiError(f"{where} did not answer as a node daemon does") from None
    keys.install(key, certificate, authority)
    write_atomically(paths.seeds, f"{where}\n".encode(), 0o644)
    return keys.cluster()


def _call(connection: ssl.SSLSocket, parameters: dict[str, Any]) -> dict[str, Any]:
    frames.send(connection, {"id": 1, "method": "join", "params": parameters})
    answer = frames.receive(connection)
    error = answer.get("error")
    if isinstance(error, dict):
        raise PkiError(f"the cluster refuses: {error.get('message')}")
    result = answer["result"]
    if not isinstance(result, dict):
        raise WireError("no result")
    return result
