"""The front as mosd has it: who connects, whom mosd connects to, what is asked and answered, datagrams.

mosd believes it in nothing that it can look at itself: what it sends is plain values (node/cluster/front/values.py), and each is looked at
for type and bounds. A front that sends nonsense is ended and another one started; its peers then connect again.
"""

from __future__ import annotations

import asyncio
import datetime
import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from balancer.gossip.datagram import Datagram
from balancer.gossip.plain import taken
from kernel_helpers.common.errors import FarhomeError
from node.cluster.front.connections import HANDSHAKE_TIMEOUT, Channel, PeerError, PeerRefused, message_of
from node.cluster.front.limited_log import LimitedLog
from node.cluster.front.peer_server import FREE_METHOD, Caller, Handler
from node.cluster.front.supervisor import Supervisor
from node.cluster.front.values import decode
from node.cluster.keys.certificates import Known
from node.cluster.keys.pki import KeyStore
from node.common.names import check_name
from wire.frames import MESSAGE_LIMIT

BACKLOG = 1024
FIRST_BYTE = 3
"""Seconds within which the kernel keeps a connection that has said nothing to itself (TCP_DEFER_ACCEPT). A caller speaks first; so what is
accepted in that time has spoken, and no crowd of silent connections from a member's address takes the member's place before its first byte
is read. Afterwards it is accepted as it is."""
REQUESTS = 2048
"""Requests that it may bring at once; it keeps to half of that."""
CERTIFICATE = 4096
"""Bytes of a certificate."""
LINES, LINES_PERIOD = 600, 60.0
"""Lines of the log that it may have written, in so many seconds."""
ADDRESS_PATIENCE = 2.0
"""Seconds that an address may still be in use by the front of a daemon that was killed."""

log = logging.getLogger("mosd.front")


class Front(Supervisor):
    """What the program brings is given to `handle`, `join`, `met`, `hear` and `spend`."""

    def __init__(
        self, keys: KeyStore, new_incarnation: Callable[[], int], handle: Handler, join: Callable[[Caller, dict[str, Any]], Awaitable[Any]]
    ) -> None:
        """new_incarnation: a number greater than all before, for the datagrams of each further program; handle: answers requests of peers;
        join: a caller without a certificate."""
        super().__init__()
        self._keys = keys
        self._new_incarnation = new_incarnation
        self._handle = handle
        self._join = join
        self.met: Callable[[Known], None] = lambda known: None
        """Is notified of each certificate that counts."""
        self.hear: Callable[[str, Datagram], None] = lambda name, datagram: None
        self.hear_answer: Callable[[str, Datagram], None] = lambda name, datagram: None
        """Is given what open() was asked for."""
        self.spend: Callable[[int], None] = lambda size: None
        self.limited_log = LimitedLog(logging.getLogger("mosd.peers"))
        self._listener: socket.socket | None = None
        self._datagrams: socket.socket | None = None
        self._incarnation = 0
        self._members: list[str] = []
        self._removed: set[str] = set()
        """Nodes that were taken out: what the program has sent of them before it heard of that counts for nothing."""
        self._dropped_before: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._lines, self._lines_since = 0, 0.0
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._binding = asyncio.Lock()
        self._channels: dict[int, Channel] = {}
        self._number = 0

    # -- start and end ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the program, if it has not been; sends it keys and certificates as they are now. Errors: PkiError."""
        self._keys.server_context()
        self.begin()
        self._send_keys()

    def _began(self) -> None:
        self._send_keys()
        self.send("members", self._members)
        if self._listener is not None:
            self.send("listen", descriptor=self._listener.dup().detach())
        if self._datagrams is not None:
            self.send("datagrams", self._incarnation, descriptor=self._datagrams.dup().detach())

    def _lost(self) -> None:
        for task in list(self._requests.values()):
            task.cancel()
        for number in list(self._channels):
            self._on_closed(number, "the connection broke: this node's front is gone")
        self._dropped_before, self._dropped = self._dropped_before + self._dropped, Counter()
        if self._datagrams is not None:
            self._incarnation = self._new_incarnation()

    def close(self) -> None:
        """Ends it for good."""
        super().close()
        for sock in (self._listener, self._datagrams):
            if sock is not None:
                sock.close()
        self._listener = self._datagrams = None

    # -- messages to it --------------------------------------------------------------------------------------------------

    def _send_keys(self) -> None:
        keys = self._keys
        try:
            own = [path.read_bytes() for path in (keys.node_key, keys.node_certificate, keys.authority_certificate)]
        except OSError as error:
            log.error("%s: %s", error.filename, error.strerror)
            return
        removed = keys.directory / "removed"
        self.send("keys", *own, removed.read_bytes() if removed.exists() else b"")

    def removed(self, names: Iterable[str]) -> None:
        """Has connections of nodes that were taken out end, and their datagrams not opened."""
        if self.is_ready:
            self._send_keys()
            for name in names:
                self.send("removed", name)

    def ignore(self, name: str) -> None:
        """Takes nothing of a node that was taken out, until it shows a certificate that counts."""
        self._removed.add(name)

    def set_member_addresses(self, addresses: Iterable[str]) -> None:
        """Which addresses members have, whose connections have places of their own."""
        if (members := sorted(addresses)) != self._members:
            self._members = members
            self.send("members", members)

    async def listen(self, address: str, port: int) -> None:
        """Takes connections from now on. Errors: OSError."""
        async with self._binding:
            if self._listener is None:
                made = await bound_soon(socket.SOCK_STREAM, address, port)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, FIRST_BYTE)
                made.listen(BACKLOG)
                self._listener = made
                self.send("listen", descriptor=made.dup().detach())

    async def listen_to_datagrams(self, address: str, port: int, incarnation: int) -> None:
        """Takes datagrams from now on. Errors: OSError."""
        async with self._binding:
            if self._datagrams is None:
                self._datagrams, self._incarnation = await bound_soon(socket.SOCK_DGRAM, address, port), incarnation
                self.send("datagrams", incarnation, descriptor=self._datagrams.dup().detach())

    @property
    def dropped(self) -> Counter[str]:
        """Datagrams that nothing was taken of, by why."""
        return self._dropped_before + self._dropped

    def open(self, name: str, data: bytes) -> None:
        """Has a datagram that came from that node in an answer taken apart."""
        self.send("open", name, data)

    async def connect(self, sock: socket.socket, where: str, expected: str | None) -> Channel:
        """Return who is at the other end, once its certificate is known to count; the socket is the front's. Errors: PeerError."""
        with sock:
            if not self._keys.exists():
                raise PeerError("this node is in no cluster (mosctl cluster init, or join)")
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                    await self.wait_until_ready()
            except TimeoutError:
                raise PeerError(f"{expected or where} cannot be reached: this node's front is not there") from None
            self._number += 1
            number = self._number
            channel = self._channels[number] = Channel(lambda data: self.send("write", number, data), lambda: self._hang_up(number))
            self.send("connect", number, where, expected or "", descriptor=sock.detach())
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT + 1):
                await channel.opened
        except TimeoutError:
            self._hang_up(number)
            raise PeerError(f"{expected or where} cannot be reached: it did not answer in time") from None
        except asyncio.CancelledError:
            self._hang_up(number)
            raise
        return channel

    def _hang_up(self, number: int) -> None:
        if self._channels.pop(number, None) is not None:
            self.send("hang up", number)

    # -- its messages ----------------------------------------------------------------------------------------------------

    def _take(self, body: bytes, _: list[int]) -> None:
        """Errors: ValueError: it is nonsense."""
        reported = decode(body)
        if not isinstance(reported, list) or not reported or not isinstance(reported[0], str) or reported[0] not in _REPORTED:
            raise ValueError("no such word")
        word, *values = reported
        if len(values) != len(_REPORTED[word]) or any(type(value) is not kind for value, kind in zip(values, _REPORTED[word], strict=True)):
            raise ValueError(f"{word} with something else than goes with it")
        if word != "ready" and not self.is_ready:
            raise ValueError(f"{word} before it was ready")
        getattr(self, f"_on_{word}")(*values)

    def _on_log(self, level: int, name: str, text: str) -> None:
        now = time.monotonic()
        if now - self._lines_since > LINES_PERIOD:
            self._lines, self._lines_since = 0, now
        self._lines += 1
        if self._lines <= LINES and name.split(".", maxsplit=1)[0] in ("mosd", "asyncio", "root"):
            plain = "".join(character if character.isprintable() else " | " if character == "\n" else "?" for character in text[:2000])
            logging.getLogger(name[:40]).log(min(max(level, logging.DEBUG), logging.ERROR), "%s", plain)

    def _on_request(self, number: int, name: str, address: str, method: str, parameters: dict[str, Any]) -> None:
        if number in self._requests or len(self._requests) >= REQUESTS or len(address) > 100:
            raise ValueError("a request that cannot be")
        if name:
            check_name(name)
        elif method != "join":
            raise ValueError("a request of nobody")
        if name in self._removed and method != FREE_METHOD:
            self.send("refuse", number, "removed", "it was removed from the cluster")
            return
        caller = Caller(name, "".join(character for character in address if character.isprintable()))
        task = self._requests[number] = asyncio.get_running_loop().create_task(self._answer(number, caller, method[:64], parameters))
        task.add_done_callback(lambda _: self._requests.pop(number, None))

    async def _answer(self, number: int, caller: Caller, method: str, parameters: dict[str, Any]) -> None:
        try:
            result = await (self._handle(caller, method, parameters) if caller.name else self._join(caller, parameters))
            self.send("answer", number, result)
        except PeerRefused as refusal:
            self.send("refuse", number, refusal.kind, str(refusal))
        except (FarhomeError, ValueError, TypeError, KeyError, OverflowError, OSError, TimeoutError) as error:
            self.send("fail", number, message_of(error)[: MESSAGE_LIMIT >> 1])
        except Exception:
            log.exception("%s of %s met a fault", method, caller.name or caller.address)
            self.send("fail", number, "it met a fault")

    def _on_cancel(self, number: int) -> None:
        if (task := self._requests.get(number)) is not None:
            task.cancel()

    def _on_met(self, name: str, der: bytes, point: bytes, since: float, until: float, serial: str) -> None:
        if len(der) > CERTIFICATE or len(point) != 65 or len(serial) > 64 or not 0 <= since < until < 1e11:
            raise ValueError("a certificate that cannot be")
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        first, last = (datetime.datetime.fromtimestamp(second, datetime.UTC) for second in (since, until))
        if not self._keys.removals.bars(name, first):
            self._removed.discard(name)
        self.met(Known(check_name(name), der, key, first, last, f"{int(serial, 16):x}"))

    def _on_connected(self, number: int, name: str, since: float) -> None:
        if not 0 <= since < 1e11:
            raise ValueError("a certificate that cannot be")
        if (channel := self._channels.get(number)) is not None and not channel.opened.done():
            channel.name, channel.since = check_name(name), datetime.datetime.fromtimestamp(since, datetime.UTC)
            channel.opened.set_result(None)

    def _on_message(self, number: int, message: dict[str, Any]) -> None:
        if (channel := self._channels.get(number)) is not None:
            channel.take(message)

    def _on_closed(self, number: int, why: str) -> None:
        if (channel := self._channels.pop(number, None)) is not None:
            if not channel.opened.done():
                channel.opened.set_exception(PeerError(why[:500]))
            channel.ended()

    def _on_datagram(self, name: str, values: list[Any]) -> None:
        datagram = taken(values)
        if check_name(name) not in self._removed:
            self.hear(name, datagram)

    def _on_opened(self, name: str, values: list[Any]) -> None:
        datagram = taken(values)
        if check_name(name) not in self._removed:
            self.hear_answer(name, datagram)

    def _on_spent(self, size: int) -> None:
        if not 0 <= size <= 1 << 16:
            raise ValueError("a datagram that cannot be")
        self.spend(size)

    def _on_dropped(self, counts: dict[str, int]) -> None:
        if len(counts) > 16 or not all(type(why) is str and type(count) is int for why, count in counts.items()):
            raise ValueError("counts that are none")
        self._dropped = Counter({why[:40]: count for why, count in counts.items()})


_REPORTED: dict[str, tuple[type, ...]] = {
    "ready": (), "there": (), "log": (int, str, str), "request": (int, str, str, str, dict), "cancel": (int,),
    "met": (str, bytes, bytes, float, float, str), "connected": (int, str, float), "message": (int, dict), "closed": (int, str),
    "datagram": (str, list), "opened": (str, list), "spent": (int,), "dropped": (dict,),
}  # fmt: skip
"""Messages that it may send, and their values."""


def bound(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    """Return a socket at that address. Errors: OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except BaseException:
        sock.close()
        raise
    return sock


async def bound_soon(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    """Return the same, where another one may still have the address for a moment. Errors: OSError."""
    until = time.monotonic() + ADDRESS_PATIENCE
    while True:
        try:
            return bound(kind, address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        await asyncio.sleep(0.02)  # the front of a daemon that was killed ends at the same moment, or one later
