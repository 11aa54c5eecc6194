"""Gossip with the other nodes: what the pure part wants to have sent goes out, what comes is given to it.

It goes by datagrams; where those do not get through, by the call `gossip` of the peers, whose answer has what is to go back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable

from balancer.gossip.datagram import LIMIT, Datagram, Word
from balancer.gossip.gossip import Gossip
from balancer.gossip.letters import Letter, Sent
from balancer.gossip.plain import taken
from balancer.load.load import LoadVector
from node.cluster.front.connections import PeerError
from node.cluster.front.datagrams import Datagrams
from node.cluster.front.front import Front
from node.cluster.peers import Peers
from node.common.tasks import Tasks

CALL_TIMEOUT = 3.0
LEAVE_TIMEOUT = 1.0
CALLS = 32
"""Calls that are under way at most; further ones are lost as datagrams may be."""
ANSWERS = 16
"""Datagrams that one answer to such a call has room for."""
KEY_PERIOD, KEY_TRIES, KEY_BY_CALL = 1.0, 6, 2
"""Seconds after which a node is asked again for its certificate, how often it is, and which time over TCP."""
KEYS_AT_ONCE = 8
LATER = 0.01
"""Seconds: what is due soon after goes with it."""

_WORDS = {
    Word.ALIVE: "is there again", Word.SUSPECT: "does not answer", Word.DEAD: "counts as dead", Word.LEFT: "has left",
}  # fmt: skip

log = logging.getLogger("mosd.gossip")


class Gossiping:
    """Carries the letters of one node's gossip."""

    def __init__(self, gossip: Gossip, peers: Peers, due: Callable[[], None]) -> None:
        """due: is called when tick() has something to do."""
        self._asked: dict[bytes, tuple[int, float]] = {}
        self.gossip = gossip
        self._peers = peers
        self._due = due
        self._timer: tuple[float, asyncio.TimerHandle] | None = None
        self._socket: Datagrams | None = None
        self._tasks = Tasks()
        self._deaf: set[str] = set()
        peers.front.hear_answer = self._hear_answer

    async def open(self, front: Front, incarnation: int, address: str, port: int) -> None:
        """Speaks by datagrams from now on. Errors: OSError."""
        await front.listen_to_datagrams(address, port, incarnation)
        if self._socket is None:
            self._socket = Datagrams(front, self.gossip.membership.address_of, self._hear_datagram, self.gossip.allowance.spend)

    @property
    def dropped(self) -> Counter[str]:
        """Datagrams that nothing was taken of, by why."""
        return self._socket.dropped if self._socket is not None else Counter()

    def tick(self) -> None:
        """Sends what is due."""
        self.send(self.gossip.tick())
        self._log_changes()
        self._log_deaf()
        self._ask_for_keys()
        self._set_timer()

    def _ask_for_keys(self) -> None:
        """Asks nodes that others have reported for their certificates, without which reports about them do not count."""
        unproven, now = self.gossip.unproven, self.gossip.clock()
        if not unproven:
            self._asked.clear()
            return
        self._asked = {node: asked for node, asked in self._asked.items() if node in unproven}
        due = [node for node in unproven if now - self._asked.get(node, (0, -math.inf))[1] >= KEY_PERIOD]
        for node in due[:KEYS_AT_ONCE]:
            tries = self._asked.get(node, (0, 0.0))[0]
            card = unproven[node].card
            if card is None or tries >= KEY_TRIES:
                del unproven[node]  # a node that reports it again will have it asked again
                continue
            self._asked[node] = tries + 1, now
            if self._socket is not None and tries != KEY_BY_CALL:
                self._socket.ask((card.address, card.port))
            else:
                self._tasks.spawn(self._dial(card.address, card.port))

    async def _dial(self, address: str, port: int) -> None:
        try:
            await self._peers.dial(address, port)
        except PeerError as error:
            log.debug("who is said to be at %s: %s", address, error)

    def drop(self, name: str) -> None:
        """Forgets a node that was taken out of the cluster; the front does not hear it any more."""
        self.gossip.forget(name)

    def update_self(self, vector: LoadVector) -> None:
        """Takes this node's newest load vector."""
        self.gossip.update_self(vector)
        self._set_timer()

    def _receive(self, name: str, datagram: Datagram, surely: bool = False) -> Sent:
        """What to send because of what another node says. Errors: ValueError."""
        letters = self.gossip.receive(datagram, name, surely)
        if self.gossip.unproven:
            self._ask_for_keys()
        self._set_timer()
        return letters

    def _set_timer(self) -> None:
        """To the moment at which there is something to do."""
        due = self.gossip.due
        if self._timer is not None:
            if self._timer[0] == due:
                return
            self._timer[1].cancel()
            self._timer = None
        if due < math.inf:
            pause = max(0.0, due - self.gossip.clock()) + LATER
            self._timer = due, asyncio.get_running_loop().call_later(pause, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._due()

    def send(self, letters: Sent) -> None:
        """Sends letters of our gossip."""
        for letter in letters:
            if not letter.surely and self._socket is not None:
                self._socket.send(letter.to, letter.data)
            elif len(self._tasks) < CALLS:
                self._tasks.spawn(self._call(letter))

    async def _call(self, letter: Letter) -> None:
        try:
            answer = await self._peers.call(letter.to, "gossip", {"payload": letter.data}, CALL_TIMEOUT)
        except PeerError as error:
            log.debug("gossip to %s: %s", letter.to, error)
            return
        for payload in answer[:ANSWERS] if isinstance(answer, list) else ():
            if isinstance(payload, bytes) and len(payload) <= LIMIT:
                self._peers.front.open(letter.to, payload)  # who has no rights takes it apart

    def _hear_answer(self, name: str, datagram: Datagram) -> None:
        try:
            self.send(self._receive(name, datagram, surely=True))
        except ValueError as error:
            log.debug("gossip to %s: %s", name, error)

    def _hear_datagram(self, name: str, datagram: Datagram) -> None:
        self.send(self._receive(name, datagram))

    def receive_call(self, name: str, payload: object) -> list[bytes]:
        """Takes what a peer says in a call, as the front has taken it apart; returns what to answer. Errors: ValueError, one sentence."""
        letters = self._receive(name, taken(payload), surely=True)
        self.send([letter for letter in letters if letter.to != name])
        return [letter.data for letter in letters if letter.to == name]

    def _log_changes(self) -> None:
        changes = self.gossip.membership.changes
        while changes:
            name, word = changes.popleft()
            log.log(logging.WARNING if word is Word.DEAD else logging.INFO, "node %s %s", name, _WORDS[word])

    def _log_deaf(self) -> None:
        deaf = set(self.gossip.membership.deaf())
        for name in sorted(deaf - self._deaf):
            log.warning("datagrams (UDP) to or from %s do not get through; it is spoken to over TCP, which is slower", name)
        for name in sorted(self._deaf - deaf):
            log.info("datagrams to and from %s get through again", name)
        self._deaf = deaf

    async def leave(self) -> None:
        """Inform peers that this node goes, so that it is not looked for; within a moment."""
        self.send(self.gossip.leave())
        await self._tasks.wait(LEAVE_TIMEOUT)

    def close(self) -> None:
        """Says and hears nothing any more."""
        if self._timer is not None:
            self._timer[1].cancel()
        self._tasks.cancel()
        if self._socket is not None:
            self._socket.close()
