"""Several trees in one program, a thread for each: what they share (the interpreter, its modules, their memory) is there once.

They know nothing of each other: each has its own loop, socket towards the node daemon, and log. The daemon says on a socket of
datagrams (msgpack) which trees there are to be, and hears how they ended; the program lives until it has none, and can get none any more.

    daemon  -- {"number", "argv": [...], "numbers": [...]}, with the descriptors, the log first; {"number"}: end it -->  host
            <-- {"number", "status"} -------------------------------------------------------------------------------
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgpack

from wire import logs
from wire.waking import Turns, Waker

MOST_REQUEST = 1 << 16
"""Bytes of a datagram."""
MOST_DESCRIPTORS = 16
PAUSE = 0.002
"""Seconds between two times that all trees are waked by signals, which may be any one's: one tree's move is many of them."""
_PATIENCE = 60.0
_STACK = 1 << 20
"""Bytes: less than a huge page, of which a thread's stack is not to be made."""
_M_ARENA_MAX, _ARENAS = -8, 2

log = logging.getLogger("host")


class HostedTree(Protocol):
    """What a host needs of a tree (wire/tree.py); made and run in a thread of its own."""

    waker: Waker

    def run(self) -> int:
        """Until it is over. Returns its exit status."""

    def stop(self) -> None:
        """Has it end at once."""

    def close(self) -> None:
        """What is left of it."""


class Host:
    """The program. `make`: a tree by the words of its command line, as if it were a program of its own; it may raise SystemExit."""

    def __init__(self, connection: socket.socket, make: Callable[[Sequence[str]], HostedTree]) -> None:
        self._connection: socket.socket | None = connection
        self._make = make
        self._selector = selectors.DefaultSelector()
        self._waker = Waker(self._selector)
        self._threads: dict[int, threading.Thread] = {}
        self._trees: dict[int, HostedTree] = {}
        self._unwanted: set[int] = set()
        self._lock = threading.Lock()
        """of the two before"""
        self._over: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._selector.register(connection, selectors.EVENT_READ, self._hear)
        threading.stack_size(_STACK)
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)

    def run(self) -> int:
        """Until there is no tree and no daemon."""
        turns = Turns(self._selector, log)
        while self._connection is not None or self._threads:
            turns.turn(_PATIENCE, self._tick)
        return 0

    def _tick(self) -> None:
        with self._lock:
            trees = list(self._trees.values())
        for tree in trees:
            tree.waker.wake()
        while not self._over.empty():
            number, status = self._over.get()
            self._threads.pop(number).join()
            self._report({"number": number, "status": status})
        if len(trees) > 1:
            time.sleep(PAUSE)

    def _hear(self) -> None:
        assert self._connection is not None
        try:
            data, received, _, _ = socket.recv_fds(self._connection, MOST_REQUEST, MOST_DESCRIPTORS)
        except OSError:
            data, received = b"", []  # it was killed
        if not data:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None
            return
        request = msgpack.unpackb(data)
        number = request["number"]
        if "argv" in request:
            for descriptor in received:
                os.set_inheritable(descriptor, False)
            words = _renamed(request["argv"], dict(zip(request["numbers"], received[1:], strict=True)))
            name = f"tree {number}"
            self._threads[number] = threading.Thread(target=self._live, args=(number, words, received[0]), name=name, daemon=True)
            self._threads[number].start()
        else:
            with self._lock:
                self._unwanted.add(number)
                tree = self._trees.get(number)
            if tree is not None:
                tree.stop()

    def _live(self, number: int, words: Sequence[str], output: int) -> None:
        """The life of one tree, in its thread."""
        status, tree = 1, None
        try:
            logs.write_to(os.fdopen(output, "w", buffering=1, errors="replace"))  # closed when nobody speaks any more
            tree = self._make(words)
            with self._lock:
                self._trees[number] = tree
                unwanted = number in self._unwanted
            if unwanted:
                tree.stop()
            status = tree.run()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            log.exception("a tree ends, and the others go on")
        finally:
            with self._lock:
                self._trees.pop(number, None)
                self._unwanted.discard(number)
            if tree is not None:
                tree.close()
            self._over.put((number, status))
            self._waker.wake()

    def _report(self, message: dict[str, Any]) -> None:
        if self._connection is not None:
            try:
                self._connection.send(msgpack.packb(message))
            except OSError as error:
                log.debug("the daemon does not hear: %s", error)


def _renamed(words: Sequence[str], descriptors: dict[int, int]) -> list[str]:
    """The command line, whose options --...-fd are followed by the number that a descriptor has here."""
    return [str(descriptors[int(word)]) if before.endswith("-fd") else word for before, word in zip(["", *words], words, strict=False)]
