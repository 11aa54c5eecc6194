"""Datagrams taken apart: bytes that another node has sent become a Datagram, or one sentence.

Who has rights does not do this: mosd never loads it. What has none (node/cluster/front/program.py) does, and passes what is in it to mosd
(plain.py)."""

from __future__ import annotations

import struct
from dataclasses import replace
from enum import IntEnum
from typing import TypeVar

from balancer.gossip.datagram import (
    CARD_FORM,
    COUNTS_FORM,
    ENTRY,
    ENVELOPE,
    FORMAT,
    HEADER_FORM,
    ID,
    LIMIT,
    PROBE,
    PROBE_FORM,
    SIGNATURE,
    SIGNED,
    UPDATE_FORM,
    URGENT,
    URGENT_FORM,
    Call,
    Card,
    Datagram,
    Probe,
    Update,
    Urgent,
    Word,
    check_card,
)

_Kind = TypeVar("_Kind", bound=IntEnum)


def unpack(data: bytes) -> Datagram:
    """Return the datagram without its envelope. Errors: ValueError, one sentence, if anything in it cannot be."""
    try:
        return _unpack(data)
    except (struct.error, IndexError):
        raise ValueError("gossip: the datagram is cut short") from None


def _unpack(data: bytes) -> Datagram:
    if len(data) > LIMIT - ENVELOPE:
        raise ValueError(f"gossip: {len(data)} bytes are more than the {LIMIT - ENVELOPE} of a datagram")
    form, sender_id, card_length, count, signed, removed = HEADER_FORM.unpack_from(data)
    if form != FORMAT:
        raise ValueError(f"gossip: the datagram is not of format {FORMAT}")
    sender, offset = _unpack_card(data, HEADER_FORM.size)
    if offset != HEADER_FORM.size + card_length or sender.id != sender_id:
        raise ValueError("gossip: the datagram is not by whom it says")
    if signed:
        signature, offset = _slice(data, offset, SIGNATURE)
        sender = replace(sender, signature=signature)
    entries, offset = _slice(data, offset, count * ENTRY)
    urgents, wants, probes = COUNTS_FORM.unpack_from(data, offset)
    urgent, offset = _slice(data, offset + COUNTS_FORM.size, urgents * URGENT)
    wanted, offset = _slice(data, offset, wants * ID)
    asked, offset = _slice(data, offset, probes * PROBE)
    return Datagram(
        sender, entries, [Urgent(hops, age / 50, node, body) for hops, age, node, body in URGENT_FORM.iter_unpack(urgent)],
        [wanted[at : at + ID] for at in range(0, len(wanted), ID)],
        [Probe(_known(Call, call), number, node) for call, number, node in PROBE_FORM.iter_unpack(asked)],
        _unpack_updates(data, offset), removed,
    )  # fmt: skip


def _slice(data: bytes, offset: int, length: int) -> tuple[bytes, int]:
    if offset + length > len(data):
        raise IndexError
    return data[offset : offset + length], offset + length


def _unpack_updates(data: bytes, offset: int) -> list[Update]:
    updates = []
    while offset < len(data):
        word, incarnation, node, by, age = UPDATE_FORM.unpack_from(data, offset)
        offset, card, signature = offset + UPDATE_FORM.size, None, b""
        if word in SIGNED:
            signature, offset = _slice(data, offset, SIGNATURE)
        if word == Word.ALIVE:
            card, offset = _unpack_card(data, offset)
            if card.id != node or card.incarnation != incarnation:
                raise ValueError("gossip: an update has the card of another node")
            card = replace(card, signature=signature)
        updates.append(Update(_known(Word, word), node, incarnation, by, card, age / 50, signature))
    return updates


def _unpack_card(data: bytes, offset: int) -> tuple[Card, int]:
    name, offset = _unpack_text(data, offset)
    address, offset = _unpack_text(data, offset)
    incarnation, port, cores, speed, memory, version, processor = CARD_FORM.unpack_from(data, offset)
    return check_card(Card(name, address, port, incarnation, cores, speed, memory, version, processor)), offset + CARD_FORM.size


def _unpack_text(data: bytes, offset: int) -> tuple[str, int]:
    raw, end = _slice(data, offset + 1, data[offset])
    return raw.decode(errors="replace"), end


def _known(kind: type[_Kind], value: int) -> _Kind:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"gossip: there is no {kind.__name__.lower()} of kind {value}") from None
