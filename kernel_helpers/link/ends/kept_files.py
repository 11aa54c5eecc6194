"""Files of home that the guests of one sandbox may map without a word, and the keys by which both sides know them."""

from __future__ import annotations

import hashlib
import os

from kernel_helpers.link.ends.native import native


def file_key(path: str, sha256: str) -> int:
    """Return what both sides call the file of that content which guests see at that path; never 0."""
    return int.from_bytes(hashlib.sha256(os.fsencode(path) + b"\0" + sha256.encode()).digest()[:8], "little") or 1


class KeptFiles:
    """Open files, closed with the last guest that may map them."""

    def __init__(self) -> None:
        self.handle = native().kept_files_new()
        if not self.handle:
            raise MemoryError("no memory for the files of a sandbox")

    def put(self, key: int, descriptor: int, size: int) -> None:
        """Keep a duplicate of an open file of `size` bytes, whose content was found to be what the key says. Errors: OSError."""
        native().kept_files_put(self.handle, key, os.dup(descriptor), size)

    def close(self) -> None:
        """No more guests come. Twice is no error."""
        if self.handle:
            native().kept_files_release(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()
