"""Listens on a network: `sniffer.py PATTERN...` examines every packet of eth0 until its standard input ends. Then it prints, as JSON, in
how many packets each pattern was, and how many packets there were, by port of either end. It says `ready` when it listens."""

from __future__ import annotations

import collections
import json
import select
import socket
import sys

ALL = socket.htons(3)


def main() -> int:
    patterns = [pattern.encode() for pattern in sys.argv[1:]]
    found = dict.fromkeys(sys.argv[1:], 0)
    ports: collections.Counter[int] = collections.Counter()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, ALL) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 20)
        listener.bind(("eth0", 0))
        print("ready", flush=True)
        while True:
            readable = select.select([listener, sys.stdin], [], [])[0]
            if listener in readable:
                packet = listener.recv(1 << 17)
                if packet[12:14] == b"\x08\x00" and packet[23] == socket.IPPROTO_TCP:
                    start = 14 + (packet[14] & 15) * 4
                    ports[int.from_bytes(packet[start : start + 2])] += 1
                    ports[int.from_bytes(packet[start + 2 : start + 4])] += 1
                for pattern in patterns:
                    if pattern in packet:
                        found[pattern.decode()] += 1
            elif sys.stdin in readable:
                break
    print(json.dumps({"found": found, "ports": ports}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
