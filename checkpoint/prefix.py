"""The content of a file that a process writes, as of the moment of its checkpoint, without holding the process for as long as it takes
to read it.

What is in the file is read while the process runs, before and after that moment: if both are the same, so it was at the moment. Only what
it has written in between is read while it stands still.
"""

from __future__ import annotations

import hashlib
import os

MOST = 8 << 30
"""Bytes of one file; what is in a greater one is not known."""
MOST_MEANWHILE = 32 << 20
"""Bytes that are read while the process stands still."""
_CHUNK = 1 << 20


class Prefix:
    """Of one file, by a descriptor of ours. Errors: OSError."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._before = os.fstat(self._file).st_size
        self._digest = hashlib.sha256()
        self._is_known = self._before <= MOST
        self._at_moment = ""
        if self._is_known:
            self._before = _add(self._digest, self._file, 0, self._before)

    def freeze(self, size: int) -> None:
        """The process stands still, and the file has `size` bytes."""
        more = size - self._before
        self._is_known = self._is_known and 0 <= more <= MOST_MEANWHILE
        if self._is_known:
            digest = self._digest.copy()
            self._is_known = _add(digest, self._file, self._before, more) == more
            self._at_moment = digest.hexdigest()

    def settle(self) -> str:
        """Return the SHA-256 of what the file held when the process stood still, or nothing: it was written in where it had been read."""
        if not self._is_known:
            return ""
        again = hashlib.sha256()
        length = _add(again, self._file, 0, self._before)
        return self._at_moment if length == self._before and again.digest() == self._digest.digest() else ""

    def close(self) -> None:
        """Once."""
        os.close(self._file)


def sha256(file: int, size: int) -> str | None:
    """Of the first `size` bytes of an open file; None: it is shorter. Errors: OSError."""
    digest = hashlib.sha256()
    return digest.hexdigest() if _add(digest, file, 0, size) == size else None


def _add(digest: hashlib._Hash, file: int, offset: int, size: int) -> int:
    """Returns how many bytes there were."""
    done = 0
    while done < size:
        data = os.pread(file, min(_CHUNK, size - done), offset + done)
        if not data:
            break
        digest.update(data)
        done += len(data)
    return done
