"""`python -m remote.host DESCRIPTOR`: the remotes of several guests that have nothing to do with each other, in one program (wire/host.py);
started by mosd, which speaks on that descriptor."""

from __future__ import annotations

import socket
import sys

from remote.__main__ import prepare, tree
from wire.host import Host


def main() -> int:
    """Exit 0 when the last of them has ended."""
    prepare()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    return Host(connection, tree).run()


if __name__ == "__main__":
    sys.exit(main())
