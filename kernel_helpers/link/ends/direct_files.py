"""The Python face of away/direct/direct_files.c: which numbers of a guest are direct files."""

from __future__ import annotations

import ctypes
import functools
import struct

from kernel_helpers.common import library

MOST = 4096
"""Numbers from here on are not direct (MOST of away/direct/direct_files.c)."""
POSITION = struct.Struct("<Qq")
"""A number and the position of its file, bytes: of Control.POSITIONS."""


@functools.cache
def _native() -> ctypes.CDLL:
    pointer, i, u32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
    return library.functions(
        ("direct_new", pointer, [ctypes.c_uint]), ("direct_free", None, [pointer]), ("direct_refuse", i, [pointer, i, u32]),
        ("direct_opened", i, [pointer, i, u32, i, i]),
        ("direct_positions", ctypes.c_uint, [pointer, pointer, ctypes.c_uint]),
        ("direct_own", ctypes.c_uint, [pointer, pointer, ctypes.c_uint]), ("direct_set_own", None, [pointer, i]),
    )  # fmt: skip


class Direct:
    """The numbers of one guest. A number is spoken of together with the serial of the question that home was asked about it: should it
    mean something else meanwhile, nothing comes of that."""

    def __init__(self, eager: int) -> None:
        """eager: after how many reads of a file home is asked about it. Errors: MemoryError."""
        self.handle: int | None = _native().direct_new(eager)
        """The C object, for away_set_direct()."""
        if not self.handle:
            raise MemoryError("no memory for direct files")

    def refuse(self, number: int, serial: int) -> None:
        """It stays home's alone."""
        _native().direct_refuse(self.handle, number, serial)

    def opened(self, number: int, serial: int, file: int, is_shared: bool) -> bool:
        """An open file on the node for it, which is not the caller's any more; is_shared: others have its position, too, and only what
        names its place is read by it. Whether it still means what was asked about."""
        return bool(_native().direct_opened(self.handle, number, serial, file, is_shared) == 0)

    def positions(self) -> list[tuple[int, int]]:
        """(number, position) of what is direct, while the guest stands still."""
        room = (ctypes.c_char * (POSITION.size * MOST))()
        count = _native().direct_positions(self.handle, room, MOST)
        return list(POSITION.iter_unpack(room.raw[: count * POSITION.size]))

    def own(self) -> list[int]:
        """Numbers of files that the guest has opened away, and shares with nobody."""
        room = (ctypes.c_uint32 * MOST)()
        return list(room[: _native().direct_own(self.handle, room, MOST)])

    def set_own(self, number: int) -> None:
        """Where the guest was before, this was such a number."""
        _native().direct_set_own(self.handle, number)

    def close(self) -> None:
        """After the link that it was given to. Once is enough, twice is no error."""
        if self.handle is not None:
            handle, self.handle = self.handle, None
            _native().direct_free(handle)
