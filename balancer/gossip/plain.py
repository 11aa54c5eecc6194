"""What is in a datagram as plain values: lists, numbers, text and bytes of fixed lengths, each looked at for type and bounds.

The front, which has no rights, takes datagrams apart (opening.py), and mosd gets what is in them in this form; mosd believes it in nothing,
and so what is refused there is refused here once more.
"""

from __future__ import annotations

from typing import Any

from balancer.gossip.datagram import (
    ENTRY,
    ID,
    INCARNATION_LIMIT,
    LIMIT,
    PROBE,
    PROBE_FORM,
    REMOVED,
    SIGNATURE,
    SIGNED,
    UPDATE,
    URGENT,
    URGENT_FORM,
    Call,
    Card,
    Datagram,
    Probe,
    Update,
    Urgent,
    Word,
    age_to_wire,
    check_card,
)

MOST_UPDATES = LIMIT // UPDATE

_DATAGRAM = (list, bytes, bytes, bytes, bytes, list, bytes)
_CARD = (str, str, int, int, float, float, int, int, int, bytes)
_UPDATE = (int, bytes, int, bytes, int, bytes)


def plain(datagram: Datagram) -> list[Any]:
    """Return what is in it."""
    return [
        _card_sent(datagram.sender), datagram.entries,
        b"".join(URGENT_FORM.pack(u.hops, age_to_wire(u.age), u.node, u.body) for u in datagram.urgent), b"".join(datagram.wanted),
        b"".join(PROBE_FORM.pack(p.call, p.number, p.node) for p in datagram.probes),
        [
            [int(u.word), u.node, u.incarnation, u.by, age_to_wire(u.age), u.signature, _card_sent(u.card) if u.card is not None else None]
            for u in datagram.updates
        ],
        datagram.removed,
    ]  # fmt: skip


def _card_sent(card: Card) -> list[Any]:
    return [
        card.name, card.address, card.port, card.incarnation, float(card.cores), float(card.speed), card.memory_total, card.version,
        card.processor, card.signature,
    ]  # fmt: skip


def taken(values: object) -> Datagram:
    """Return the datagram that such values describe. Errors: ValueError, one sentence, whatever they are."""
    sender, entries, urgent, wanted, probes, updates, removed = _shaped(values, _DATAGRAM)
    packed = ((entries, ENTRY), (urgent, URGENT), (wanted, ID), (probes, PROBE))
    if any(len(data) % size for data, size in packed) or sum(len(data) for data, _ in packed) > LIMIT or len(removed) != REMOVED:
        raise ValueError("gossip: what is passed on of a datagram is not of the lengths that there are")
    if len(updates) > MOST_UPDATES:
        raise ValueError("gossip: no datagram has so many updates")
    calls = list(PROBE_FORM.iter_unpack(probes))
    if any(not Call.PING <= call <= Call.NACK for call, _, _ in calls):
        raise ValueError("gossip: there is no such probe")
    return Datagram(
        _card_taken(sender), entries, [Urgent(hops, age / 50, node, body) for hops, age, node, body in URGENT_FORM.iter_unpack(urgent)],
        [wanted[at : at + ID] for at in range(0, len(wanted), ID)], [Probe(Call(call), number, node) for call, number, node in calls],
        [_update_taken(update) for update in updates], removed,
    )  # fmt: skip


def _shaped(values: object, kinds: tuple[type, ...]) -> list[Any]:
    if type(values) is not list or tuple(map(type, values)) != kinds:
        raise ValueError("gossip: what is passed on of a datagram is not of the form that there is")
    return values


def _card_taken(values: object) -> Card:
    card = Card(*_shaped(values, _CARD))
    if not 0 <= card.incarnation <= INCARNATION_LIMIT or not 0 <= card.version < 1 << 16 or not 0 <= card.processor < 1 << 32:
        raise ValueError("gossip: a card has a number that is too great")
    if len(card.signature) not in (0, SIGNATURE):
        raise ValueError("gossip: a card has half a signature")
    return check_card(card)


def _update_taken(values: object) -> Update:
    if type(values) is not list or not values:
        raise ValueError("gossip: what is passed on of an update is nothing")
    word, node, incarnation, by, age, signature = _shaped(values[:-1], _UPDATE)
    card = _card_taken(values[-1]) if values[-1] is not None else None
    if not Word.ALIVE <= word <= Word.HERE or not 0 <= incarnation <= INCARNATION_LIMIT or not 0 <= age <= 0xFFFF:
        raise ValueError("gossip: an update has a number that is too great")
    if (len(node), len(by), len(signature)) != (ID, ID, SIGNATURE if word in SIGNED else 0) or (card is None) is (word == Word.ALIVE):
        raise ValueError("gossip: an update lacks what it has, or has more")
    if card is not None and (card.id != node or card.incarnation != incarnation or card.signature != signature):
        raise ValueError("gossip: an update has the card of another node")
    return Update(Word(word), node, incarnation, by, card, age / 50, signature)
