"""A home that speaks by itself, from a node that has keys of the cluster: what it asks of the node where its process is to be.

home.py ADDRESS WHAT...: prints what it got as JSON, one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import struct
import sys
import time
from pathlib import Path
from typing import Any

import msgpack

from wire import channel
from wire.channel import Channel, Refused

KEYS = Path("/var/lib/farhome/pki")
PORT = 7226
ME = os.uname().nodename


class Home:
    """The control connection."""

    def __init__(self, address: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_cert_chain(KEYS / "node.pem", KEYS / "node.key")
        context.load_verify_locations(KEYS / "authority.pem")
        self.stream = context.wrap_socket(socket.create_connection((address, PORT), 10))
        self.ask("hello", version=1, name=ME)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.stream.recv(size - len(data))
            if not part:
                raise ConnectionError("the node has hung up")
            data += part
        return data

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """The answer, an error included."""
        body = msgpack.packb({"id": 1, "method": method, "params": parameters})
        self.stream.sendall(struct.pack("!I", len(body)) + body)
        answer: dict[str, Any] = msgpack.unpackb(self._exactly(struct.unpack("!I", self._exactly(4))[0]))
        return answer

    def place(self, pid: int, memory: int = 1 << 20) -> Channel:
        """A conversation about a move of a process that there is not."""
        answer = self.ask("reserve", pid=pid, home=ME, uid=1001, user="anna", memory=memory)
        place = answer["result"]
        return Channel(channel.connect((place["address"][0], place["address"][1]), "move", place["secret"], timeout=30))


def prepare(talk: Channel, pid: int, files: list[dict[str, object]], engine: str = "criu") -> list[str]:
    """The contents that the node wants."""
    talk.send("prepare", pid=pid, home=ME, nodename=ME, uid=1001, command="x", files=files, engine=engine, trace=False)
    return list(talk.expect("wanted", timeout=20)["sha256"])


def ready(talk: Channel) -> None:
    """The conversation up to where images are due."""
    while (message := talk.next(timeout=30))["op"] == "clocks":
        talk.send("clocks", monotonic=time.clock_gettime_ns(time.CLOCK_MONOTONIC), boottime=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    assert message["op"] == "ready", message


def answer(talk: Channel) -> str:
    """Returns the node's message, or that it has hung up."""
    try:
        return f"says {talk.next(timeout=30)['op']}"
    except Refused as refused:
        return str(refused)
    except (OSError, channel.WireError) as error:
        return f"hung up: {error}"


def wanted(home: Home, descriptions: str) -> list[bool]:
    """Returns for each of the files, [path, size, sha256], whether it would have to be sent."""
    files = [{"path": path.encode(), "size": size, "sha256": sha256} for path, size, sha256 in json.loads(descriptions)]
    contents = set(prepare(home.place(40001), 40001, files))  # type: ignore[arg-type]
    return [file["sha256"] in contents for file in files]


def fill(home: Home, name: str, size: str, count: str) -> str:
    """Images without end: `count` of that size, for a process of a MiB."""
    talk = home.place(40002)
    prepare(talk, 40002, [])
    ready(talk)
    talk.send("images", beside=[])
    try:
        for number in range(int(count)):
            talk.send("file", name=name.replace("#", str(number)), size=int(size))
            for _ in range(int(size) >> 20):
                talk.connection.sendall(bytes(1 << 20))
            talk.connection.sendall(bytes(max(0, int(size)) & (1 << 20) - 1))
    except OSError:
        pass
    return answer(talk)


def files(home: Home, size: str, rounds: str) -> str:
    """Files without end, that a process has mapped: as many as there are rounds, each of that size, those after the first late."""
    talk = home.place(40003)
    for number in range(int(rounds)):
        content = os.urandom(min(int(size), 1 << 20))
        digest = hashlib.sha256()
        for _ in range(max(1, int(size) // len(content))):
            digest.update(content)
        file = {"path": b"/tmp/absent-%d" % number, "size": max(1, int(size) // len(content)) * len(content), "sha256": digest.hexdigest()}
        try:
            if number == 0:
                prepare(talk, 40003, [file], engine="pour")
            else:
                talk.send("files", files=[file])
                talk.expect("wanted", timeout=20)
            talk.send("content", sha256=file["sha256"], size=file["size"])
            for _ in range(int(file["size"]) // len(content)):  # type: ignore[call-overload]
                talk.connection.sendall(content)
            if number == 0:
                ready(talk)
            else:
                talk.expect("ready", timeout=20)
        except Refused as refused:
            return str(refused)
        except (OSError, channel.WireError):
            return answer(talk)
    return "took all"


if __name__ == "__main__":
    work = {"wanted": wanted, "fill": fill, "files": files}[sys.argv[2]]
    print(json.dumps(work(Home(sys.argv[1]), *sys.argv[3:])))  # type: ignore[operator]
