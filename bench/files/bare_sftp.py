"""An sftp-server for anyone who connects, without encryption: `bare_sftp.py ADDRESS PORT SERVER`. Nothing stands between it and the
socket."""

from __future__ import annotations

import os
import signal
import socket
import sys


def main(address: str, port: int, server: str) -> None:
    """Serves until it is ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server((address, port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if os.fork() == 0:
                for descriptor in (0, 1):
                    os.dup2(connection.fileno(), descriptor)
                os.execv(server, [server])
            connection.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
