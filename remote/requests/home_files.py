"""Files of the home, for the guests of one tree: a mount of its own, which nobody else sees, and which waits for a home that is lost.

The mount has no place: nobody but who has its root open gets there, and it is gone when nobody has anything of it open any more. Should
what serves it die, another goes on (kernel_helpers/mfs/client/supervisor.c).
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import stat
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.common.library import build_directory

log = logging.getLogger("remote")

PREFIX = ".farhome-direct-"
"""Of names in the root (kernel_helpers/mfs/server/operations/direct_files.c)."""
END_TIMEOUT = 3.0
"""Seconds that the client has to end."""
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class HomeFiles:
    """See the module. It is made in the loop of the tree, in whose thread the client is started: it ends with that."""

    def __init__(self, home: str, address: str, port: int, pki: Path, plain: bool, room: Path) -> None:
        """room: a directory in which the mount may be for a moment. Errors: OSError."""
        room.mkdir(mode=0o700, exist_ok=True)
        self._place = Path(tempfile.mkdtemp(dir=room))
        self._root = -1
        self._opening = threading.Lock()
        self._client = subprocess.Popen(
            [build_directory() / "mfs-client", "--mount", self._place, "--peer", home, "--address", address, "--port", str(port),
             "--pki", pki, "--timeout", "0", "--with-parent", "--keep",
             *(["--plain"] if plain else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/", env={},
        )  # fmt: skip

    def open(self, token: str) -> int:
        """Return a descriptor of the file that home has under that token. It may wait for home without end. Errors: OSError,
        FarhomeError."""
        with self._opening:
            if self._root < 0:
                self._begin()
        found = os.open(f"{PREFIX}{token}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._root)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise FarhomeError("home has given something else than a file")
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(found)

    def _begin(self) -> None:
        assert self._client.stdout is not None
        try:
            if self._client.stdout.readline() != b"ready\n":
                raise FarhomeError("files of the home cannot be had")
            self._root = os.open(self._place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            _libc.umount2(os.fsencode(self._place), _MNT_DETACH)
            self._place.rmdir()

    def hang_up(self) -> None:
        """Ends all waiting for the home: reads fail from now on."""
        if self._client.poll() is None:
            self._client.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends it."""
        self.hang_up()
        try:
            self._client.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._client.kill()
            with suppress(subprocess.TimeoutExpired):
                self._client.wait(END_TIMEOUT)
        for pipe in (self._client.stdin, self._client.stdout):
            if pipe is not None:
                pipe.close()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1
