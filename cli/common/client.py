"""Asking the node daemon of this machine."""

from __future__ import annotations

import os
import socket
from typing import Any

import msgpack

from cli.common import exit_codes
from cli.common.command import printable
from cli.common.exit_codes import CommandError

__all__ = ["Client", "CommandError", "socket_path"]

LIMIT = 1 << 20
"""Bytes of an answer; nothing longer is read."""


def socket_path() -> str:
    """Return where the node daemon listens."""
    return os.path.join(os.environ.get("FARHOME_RUN") or "/run/farhome", "mosd.sock")


def _printable(value: Any) -> Any:
    """The same with texts that a terminal can be given: users, and nodes that may be hostile, have named what they are of."""
    if isinstance(value, str):
        return value if value.isprintable() else "\n".join(map(printable, value.split("\n")))
    if isinstance(value, dict):
        return {_printable(key): _printable(one) for key, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list) else value


LONG = 600.0
"""Seconds that sending guests home or bringing processes home may take."""


class Client:
    """A connection to the node daemon."""

    def __init__(self, timeout: float | None = 10.0) -> None:
        """Errors: CommandError: nobody is there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(socket_path())
        except OSError as error:
            self._socket.close()
            reason = error.strerror or str(error)
            raise CommandError(f"no mosd answers on this node ({socket_path()}: {reason})", exit_codes.UNAVAILABLE) from None

    def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Return the daemon's answer. Errors: CommandError with its sentence, or that it went away."""
        try:
            body = msgpack.packb({"op": operation, **fields})
        except ValueError:  # UnicodeEncodeError is one
            raise CommandError("an argument is no text in this character set", exit_codes.USAGE) from None
        try:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
            answer = _printable(msgpack.unpackb(self._receive(int.from_bytes(self._receive(4), "big"))))
        except (OSError, EOFError, TimeoutError) as error:
            what = "did not answer in time" if isinstance(error, TimeoutError) else "went away before it answered"
            raise CommandError(f"the mosd of this node {what}", exit_codes.UNAVAILABLE) from None
        except (ValueError, msgpack.UnpackException):
            raise CommandError("the mosd of this node does not speak as it should", exit_codes.UNAVAILABLE) from None
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            sentence, code = "the mosd of this node refused", exit_codes.REFUSED
            if isinstance(answer, dict):
                sentence, code = str(answer.get("error", sentence)), answer.get("code", code)
            raise CommandError(sentence, code if isinstance(code, int) else exit_codes.REFUSED)
        return answer

    def _receive(self, size: int) -> bytes:
        if size > LIMIT:
            raise ValueError("too long")
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()


def ask(operation: str, timeout: float = 10.0, **fields: Any) -> dict[str, Any]:
    """Asks mosd once; returns its answer. Errors: CommandError."""
    answer = Client(timeout).call(operation, **fields)
    answer.pop("ok")
    return answer
