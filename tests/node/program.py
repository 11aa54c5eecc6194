"""A deputy and a remote for tests of the node daemon: real programs with the real sockets, which move nothing.

`deputy` connects to the remote that it is sent to, proves that it has the secret, and keeps that connection as long as the
"guest" is there; `remote` listens, and ends on request or when the deputy disconnects. What goes wrong on purpose is
written into the file `behaviour` in the node's run directory: a JSON object {"deputy": word, "remote": word}.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import PTRACE_O_EXITKILL
from kernel_helpers.stream.stream import Connection
from wire import frames
from wire.channel import connect, greet
from wire.frames import Message
from wire.local import LocalServer


class Program:
    """The common part of both programs: a socket for mosd and a loop."""

    def __init__(self, path: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.finished = False
        self.server = LocalServer(path, self.selector, self.on_message)
        self.path = path

    def on_message(self, message: Message) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        """Called after every event."""

    def run(self) -> int:
        while not self.finished:
            for key, _ in self.selector.select(5):
                key.data()
            self.tick()
        self.server.close()
        return 0


class Deputy(Program):
    def __init__(self, pid: int, path: Path, behaviour: str) -> None:
        super().__init__(path)
        self.pid, self.behaviour = pid, behaviour
        self.where = "home"
        self.link: Connection | None = None
        self.pidfd = os.pidfd_open(pid)
        self.selector.register(self.pidfd, selectors.EVENT_READ, self.ended)

    def ended(self) -> None:
        if self.behaviour == "last word lost":
            os._exit(0)
        self.server.send({"event": "exit", "status": None})
        self.finished = True

    def on_message(self, message: Message) -> None:
        number, operation = message["id"], message["op"]
        report = {"id": number, "ok": True, "frozen_ms": 1.5, "total_ms": 12.5, "bytes": 4096, "engine": "test"}
        if operation == "status":
            self.server.send({"id": number, "ok": True, "pid": self.pid, "where": self.where})
        elif operation == "move" and self.behaviour == "refuse":
            self.server.send({"id": number, "ok": False, "error": "it holds something that cannot move", "where": self.where})
            self.finished = self.where == "home"
        elif operation == "move" and self.behaviour == "die":
            os._exit(3)
        elif operation == "move" and self.behaviour == "hang":
            pass
        elif self.where != "home" and self.behaviour == "end, last word lost":
            os.kill(self.pid, signal.SIGKILL)
            os._exit(0)
        elif self.where != "home" and self.behaviour == "last word lost":
            os._exit(0)
        elif self.where != "home" and self.behaviour == "last word lost, others stay":
            self.leave_without_a_word()
        elif operation == "home" and self.behaviour == "call first":
            self.come_home("vfork")  # and goes, without having heard what it was asked
        elif operation == "move":
            old, self.link = self.link, connect(tuple(message["address"]), "move", message["secret"])
            self.selector.register(self.link, selectors.EVENT_READ, self.from_remote)
            if old is not None:
                self.selector.unregister(old)
                old.close()
            self.where = message["to"]
            self.server.send(report | {"where": self.where})
            self.server.send({"event": "state", "where": self.where, "reason": "moved", "frozen_ms": 1.5})
            if self.behaviour == "call at once":
                self.come_home("vfork")
            if self.behaviour == "hold":
                self.hold()
        elif operation == "home":
            self.server.send(report | {"where": "home"})
            self.come_home(str(message["reason"]))
        elif operation == "abort":
            self.finished = self.where == "home"

    def from_remote(self) -> None:
        assert self.link is not None
        try:
            message = frames.receive(self.link)
        except (frames.WireError, ConnectionError):  # a remote that is killed before it has read everything resets the connection
            self.selector.unregister(self.link)
            self.server.send({"event": "lost", "node": self.where, "reason": "is gone"})
            os.kill(self.pid, 9)
            return
        if self.behaviour == "last word lost":
            os._exit(0)
        if self.behaviour == "last word lost, others stay":
            self.leave_without_a_word()
        if message["op"] == "go-home":
            self.come_home(str(message["reason"]))

    def leave_without_a_word(self) -> None:
        """One process of a tree comes home; the program goes on for the others."""
        assert self.link is not None
        self.link.close()
        self.server.close()
        time.sleep(5)
        os._exit(0)

    def hold(self) -> None:
        """The process ends with us, as a stub does."""
        thread = Thread.seize(self.pid, self.pid, PTRACE_O_EXITKILL)
        thread.restore()
        thread.resume()

    def come_home(self, reason: str) -> None:
        assert self.link is not None
        self.selector.unregister(self.link)
        self.link.close()
        self.where = "home"
        self.server.send({"event": "state", "where": "home", "reason": reason, "frozen_ms": 2.5})
        self.finished = True


class Remote(Program):
    def __init__(self, path: Path, secret: bytes, address: str, behaviour: str) -> None:
        super().__init__(path)
        self.secret, self.since, self.behaviour = secret, time.time(), behaviour
        self.link: Connection | None = None
        self.listener = socket.create_server((address, 0))
        self.selector.register(self.listener, selectors.EVENT_READ, self.caller)
        self.server.greet({"event": "listening", "port": self.listener.getsockname()[1]})

    def caller(self) -> None:
        caller, _ = self.listener.accept()
        self.link = greet(caller, self.secret)
        self.selector.register(self.link, selectors.EVENT_READ, self.deputy_gone)
        self.server.send({"event": "running"})

    def deputy_gone(self) -> None:
        self.server.send({"event": "gone", "reason": "its home closed the link"})
        self.finished = True

    def on_message(self, message: Message) -> None:
        answer: Message = {"id": message["id"], "ok": True}
        if message["op"] == "status":
            answer |= {"running": self.link is not None, "since": self.since, "memory": 4096}
        elif message["op"] == "expel" and self.behaviour == "stay":
            pass
        elif message["op"] == "expel" and self.link is not None:
            frames.send(self.link, {"op": "go-home", "reason": message["reason"]})
        elif message["op"] == "kill" or self.link is None:
            self.finished = True
        self.server.send(answer)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("deputy", "remote"))
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--secret-fd", type=int)
    parser.add_argument("--address")
    arguments, _ = parser.parse_known_args()
    try:
        behaviour = json.loads((arguments.socket.parent.parent / "behaviour").read_text()).get(arguments.kind, "")
    except OSError:
        behaviour = ""
    if behaviour == "no start":
        print("the test does not want me to start", file=sys.stderr)
        return 1
    if arguments.kind == "deputy":
        return Deputy(arguments.pid, arguments.socket, behaviour).run()
    with os.fdopen(arguments.secret_fd, "rb") as source:
        secret = source.read(32)
    return Remote(arguments.socket, secret, arguments.address, behaviour).run()


if __name__ == "__main__":
    sys.exit(main())
