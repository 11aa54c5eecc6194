"""What nodes say to one another in gossip, as bytes: one datagram under 1400 bytes, envelope included.

::

    envelope (31) | header (14) | card of the sender, and perhaps its signature (64) | entries (28 each) | urgent entries (29 each)
              | wanted ids (6 each) | probes (11 each) | updates (19 each, a signature where a node says it itself, and its card)

Of a node two things are sent. Its *card* is what seldom changes (name, address, cores, speed, memory): it is sent when it
is new and to a node that asks for it. Its *entry* is what changes all the time, 28 bytes, with its age: those go round. Both begin
with the incarnation of the node, so that of two the newer is the greater. Every bit pattern of an entry is a valid one;
all else is checked where it comes in: by opening.py, in a program without rights, and again, as plain values, by plain.py.
A card, and that a node is there or leaves, counts by the signature of that node, no matter which node passes it on; that somebody does not
answer, anybody may say. The header has four bytes that stand for all that was taken out of the cluster: nodes of which they
differ have something to exchange (node/cluster/keys/removals.py).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import lru_cache

from balancer.lending.owner import Stage
from balancer.load.load import NAME_LIMIT, LoadVector

FORMAT = 4
LIMIT = 1399
"""Bytes of a datagram with its envelope: what every link carries in one piece, tunnels too."""
ENVELOPE = 31
"""Bytes that say by whom a datagram is, and that it is whole: see node/cluster/front/gossip_encryption.py."""
UDP = 28
"""Bytes of the headers that the network puts before it."""
ID = 6
SIGNATURE = 64
REMOVED = 4
ENTRY = 28
INCARNATION_LIMIT = (1 << 32) - 1
SEQUENCE_LIMIT = (1 << 16) - 1
AGE_LIMIT = 0xFFFF / 50
"""Seconds: older entries are not sent."""

HEADER_FORM = struct.Struct("!B6sBBB4s")
COUNTS_FORM = struct.Struct("!BBB")
ENTRY_FORM = struct.Struct("!H6s20s")
_BODY = struct.Struct("!IHHHBHBBBHBB")
_VERSION = struct.Struct("!IH")
URGENT_FORM = struct.Struct("!BH6s20s")
PROBE_FORM = struct.Struct("!BI6s")
UPDATE_FORM = struct.Struct("!BI6s6sH")
CARD_FORM = struct.Struct("!IHffQHI")


class State(IntFlag):
    """What an entry reports about its node in one bit each."""

    LENDING = 1
    BLOCKED = 2
    PRESSED = 4  # memory is short
    IDLE = 8  # nothing wants to run


_STAGES = list(Stage)
_STAGE = 16
"""The stage between owner and guests stands above those bits."""
_NOT_KNOWN = 255


class Word(IntEnum):
    """Of which kind an update about a node is."""

    ALIVE = 1
    SUSPECT = 2
    DEAD = 3
    LEFT = 4
    HERE = 5  # alive, without its card


class Call(IntEnum):
    """Of which kind a probe is: "are you there?", "ask it for me", "yes", "it does not answer me"."""

    PING = 1
    ASK = 2
    ACK = 3
    NACK = 4


@dataclass(frozen=True, slots=True)
class Card:
    """What seldom changes of a node. Memory in bytes, cores may be a fraction, speed 1.0 is the yardstick.

    `incarnation` 0: only the address is known, from somebody who dialled it.
    """

    name: str
    address: str
    port: int
    incarnation: int = 0
    cores: float = 1.0
    speed: float = 1.0
    memory_total: int = 0
    version: int = 0
    processor: int = 0
    signature: bytes = field(default=b"", compare=False, repr=False)
    """Of the node itself, of statement(); empty: not known."""

    @property
    def id(self) -> bytes:
        return node_id(self.name)


@dataclass(frozen=True, slots=True)
class Update:
    """A change of what is known of a node; `by` is who says so (for suspicions, which count by how many have them).

    Of a suspicion, `age` reports how many seconds ago the node was asked and did not answer. `signature`: of the node itself, of what it
    says: its card with that incarnation (ALIVE, where the card has it; HERE), or that it leaves.
    """

    word: Word
    node: bytes
    incarnation: int
    by: bytes
    card: Card | None = None
    age: float = 0.0
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Probe:
    """A question or an answer about whether a node is there; `number` is the asker's, `node` whom it is about.

    `surely` is not sent: it goes by a way that is slower and surer than datagrams.
    """

    call: Call
    number: int
    node: bytes
    surely: bool = False


@dataclass(frozen=True, slots=True)
class Urgent:
    """An entry that is passed on at once, `hops` times more."""

    hops: int
    age: float
    node: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Datagram:
    """One datagram; `entries` are the packed ones, as entries_of() and pack_entry() have them; `removed` stands for who was taken out
    of the cluster."""

    sender: Card
    entries: bytes = b""
    urgent: Sequence[Urgent] = ()
    wanted: Sequence[bytes] = ()
    probes: Sequence[Probe] = ()
    updates: Sequence[Update] = ()
    removed: bytes = bytes(REMOVED)

    def pack(self) -> bytes:
        """Return the bytes without the envelope."""
        card = pack_card(self.sender)
        signed, count = bool(self.sender.signature), len(self.entries) // ENTRY
        head = HEADER_FORM.pack(FORMAT, self.sender.id, len(card), count, signed, self.removed)
        parts = [head, card, self.sender.signature, self.entries]
        parts.append(COUNTS_FORM.pack(len(self.urgent), len(self.wanted), len(self.probes)))
        parts += [URGENT_FORM.pack(u.hops, age_to_wire(u.age), u.node, u.body) for u in self.urgent]
        parts += self.wanted
        parts += [PROBE_FORM.pack(p.call, p.number, p.node) for p in self.probes]
        parts += [pack_update(update) for update in self.updates]
        return b"".join(parts)


FREE = LIMIT - ENVELOPE - HEADER_FORM.size - COUNTS_FORM.size
"""Bytes that a datagram has for the sender's card and everything else."""
URGENT = URGENT_FORM.size
UPDATE = UPDATE_FORM.size
PROBE = PROBE_FORM.size


@lru_cache(maxsize=16384)
def node_id(name: str) -> bytes:
    """Return the six bytes that stand for a node: of 1,000 names two have the same in one of 500 million clusters."""
    return hashlib.blake2b(name.encode(), digest_size=ID).digest()


def pack_card(card: Card) -> bytes:
    """Return a card as it goes over the wire. Errors: ValueError if its name or address is longer than NAME_LIMIT bytes."""
    name, address = card.name.encode(), card.address.encode()
    if max(len(name), len(address)) > NAME_LIMIT:
        raise ValueError(f"gossip: {card.name} or {card.address} is longer than {NAME_LIMIT} bytes")
    fixed = CARD_FORM.pack(card.incarnation, card.port, card.cores, card.speed, card.memory_total, card.version, card.processor)
    return b"%c%b%c%b%b" % (len(name), name, len(address), address, fixed)


def statement(card: Card) -> bytes:
    """Return what a node signs of its card."""
    return b"farhome card\0" + pack_card(card)


def farewell(node: bytes, incarnation: int) -> bytes:
    """Return what a node signs when it leaves."""
    return b"farhome farewell\0" + node + incarnation.to_bytes(4, "big")


def pack_update(update: Update) -> bytes:
    """Return an update as it goes over the wire. Errors: ValueError if a signature is needed and not there."""
    head = UPDATE_FORM.pack(update.word, update.incarnation, update.node, update.by, age_to_wire(update.age))
    if update.word not in SIGNED:
        return head
    signature = update.signature or (update.card.signature if update.card is not None else b"")
    if len(signature) != SIGNATURE:
        raise ValueError("gossip: nobody has signed what is to be sent")
    return head + signature + (pack_card(update.card) if update.card is not None else b"")


SIGNED = (Word.ALIVE, Word.HERE, Word.LEFT)
"""What counts only if the node that it is about says so."""


def size_of(update: Update) -> int:
    """Return the bytes of an update on the wire."""
    return UPDATE + (SIGNATURE if update.word in SIGNED else 0) + (len(pack_card(update.card)) if update.card is not None else 0)


def pack_entry(age: float, node: bytes, body: bytes) -> bytes:
    """Return one packed entry of that age in seconds."""
    return ENTRY_FORM.pack(age_to_wire(age), node, body)


def entries_of(packed: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (age in fiftieths of a second, id, body) of packed entries."""
    return list(ENTRY_FORM.iter_unpack(packed))


def pack_body(vector: LoadVector) -> bytes:
    """Return what changes of a load vector in 20 bytes; of two bodies of one node the greater is the newer."""
    flags = (
        State.LENDING * vector.lending | State.BLOCKED * vector.blocked | State.PRESSED * vector.memory_short
        | State.IDLE * vector.idle | _STAGE * _STAGES.index(vector.stage)
    )  # fmt: skip
    owner = vector.owner / vector.runnable if vector.runnable else 0.0
    free = vector.memory_free / vector.memory_total if vector.memory_total else 0.0
    return _BODY.pack(
        vector.incarnation, vector.sequence, _threads(vector.runnable), _threads(vector.forecast), _byte(owner),
        int(min(1.0, free) * 0xFFFF), _share(vector.cpu_pressure), _share(vector.memory_full), _share(vector.io_full),
        min(0xFFFF, vector.guests), _seconds(vector.owner_idle), flags,
    )  # fmt: skip


def unpack_body(card: Card, body: bytes) -> LoadVector:
    """Return the load vector of a node from its card and the newest body."""
    (incarnation, sequence, runnable, forecast, owner, free, cpu, memory, io, guests, idle, flags) = _BODY.unpack(body)
    return LoadVector(
        name=card.name, incarnation=incarnation, sequence=sequence, address=card.address, port=card.port,
        runnable=runnable / 32, load=runnable / 32 / (card.cores * card.speed), cores=card.cores, speed=card.speed,
        memory_free=card.memory_total * free // 0xFFFF, memory_total=card.memory_total, guests=guests,
        lending=bool(flags & State.LENDING), blocked=bool(flags & State.BLOCKED), version=card.version,
        owner=runnable / 32 * owner / 255, memory_short=bool(flags & State.PRESSED),
        cpu_pressure=_share_of(cpu), memory_full=_share_of(memory), io_full=_share_of(io), forecast=forecast / 32,
        stage=_STAGES[min(flags // _STAGE, len(_STAGES) - 1)], owner_idle=_seconds_of(idle), processor=card.processor,
    )  # fmt: skip


def version_of(body: bytes) -> tuple[int, int]:
    """Return (incarnation, sequence) of the node that a body is of."""
    incarnation, sequence = _VERSION.unpack_from(body)
    return incarnation, sequence


def check_card(card: Card) -> Card:
    """Return the card, if there can be one like that. Errors: ValueError, one sentence."""
    for text in (card.name, card.address):
        if not text.isprintable() or "\ufffd" in text or not 0 < len(text.encode()) <= NAME_LIMIT:
            raise ValueError(f"gossip: a name is not of 1 to {NAME_LIMIT} bytes of printable characters")
    # Divided by later; a node of next to no cores or speed would have an infinite load.
    if not (1e-3 <= card.cores <= 1e6 and 1e-3 <= card.speed <= 1e6):
        raise ValueError("gossip: no node has so many cores, or is so fast or slow")
    if not 0 < card.port <= 0xFFFF or not 0 <= card.memory_total < 1 << 63:
        raise ValueError("gossip: a card has no port, or more memory than there is")
    return card


def age_to_wire(age: float) -> int:
    """Return an age in fiftieths of a second, as it is sent."""
    return max(0, min(0xFFFF, round(age * 50)))


def _threads(count: float) -> int:
    return min(0xFFFF, round(count * 32))


def _byte(share: float) -> int:
    return max(0, min(255, round(share * 255)))


def _share(share: float | None) -> int:
    return _NOT_KNOWN if share is None else max(0, min(_NOT_KNOWN - 1, round(share * (_NOT_KNOWN - 1))))


def _share_of(byte: int) -> float | None:
    return None if byte == _NOT_KNOWN else byte / (_NOT_KNOWN - 1)


def _seconds(seconds: float | None) -> int:
    """Seconds in one byte: up to 16 hours, within 5 %."""
    return _NOT_KNOWN if seconds is None else min(_NOT_KNOWN - 1, round(16 * math.log2(1 + max(0.0, seconds))))


def _seconds_of(byte: int) -> float | None:
    return None if byte == _NOT_KNOWN else round(2.0 ** (byte / 16) - 1, 1)
