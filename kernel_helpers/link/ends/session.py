"""What both ends of a link share: the session."""

from __future__ import annotations

import ctypes
import os
import select
from types import TracebackType
from typing import Self

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Event, Kind
from kernel_helpers.link.ends.native import check, native
from kernel_helpers.stream.stream import Connection, given

CONTROL_FIRST, CONTROL_LIMIT = 16, 1 << 20


class _Event(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("tid", ctypes.c_uint32),
        ("control", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("number", ctypes.c_uint64),
        ("value", ctypes.c_int64),
        ("length", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
    ]


class Branch:
    """One end of a connection inside of that of a session: of the link `trunk`, by a number that both sides know, and that no other one of
    it has or had. What comes before there is an end here is dropped, so the side that chooses the number makes its end first, and attaches
    it when the other side has attached its own. Of use as long as the session lasts; then it is broken. Errors: MemoryError."""

    def __init__(self, trunk: SessionLink, number: int) -> None:
        self._handle: int | None = native().session_branch(trunk.session, number)
        if not self._handle:
            raise MemoryError("no memory for a connection")

    def give(self) -> int:
        """The C object, which is the caller's from here on. Errors: FarhomeError: it has been given."""
        handle, self._handle = self._handle, None
        if handle is None:
            raise FarhomeError("the connection is given away")
        return handle

    def close(self) -> None:
        """Nobody wants it. After give() nothing."""
        if self._handle is not None:
            native().stream_close(self.give())


class SessionLink:
    """What all ends share: the session."""

    def __init__(self, has_session: bool = True) -> None:
        """has_session: else it is to have that of another one (_inherit())."""
        self.event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if has_session else -1
        """Readable when events() has something."""
        self._handle: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _session(self) -> int:
        raise NotImplementedError

    def _free(self, handle: int) -> None:
        raise NotImplementedError

    @staticmethod
    def _there(session: int | None) -> int:
        """Errors: FarhomeError: it is another link's by now."""
        if session is None:
            raise FarhomeError("the session is another link's")
        return session

    def _inherit(self, old: SessionLink) -> None:
        """The session of that one is this one's now."""
        self.event_fd, old.event_fd = old.event_fd, -1

    @property
    def handle(self) -> int:
        """The C object. Errors: FarhomeError after close()."""
        if self._handle is None:
            raise FarhomeError("the link is closed")
        return self._handle

    @property
    def session(self) -> int:
        """The C object of its session."""
        return self._session()

    def attach(self, connection: Connection | Branch | int) -> None:
        """Takes over a connection (or a socket's descriptor); one that was there before is given up. Both sides then
        say what they have received, and what the other lacks is sent again. Event: CONNECTED. Errors: OSError: it is closed."""
        stream = connection.give() if isinstance(connection, Branch) else given(connection)
        check(native().session_attach(self._session(), stream), "attach")

    def detach(self) -> None:
        """Gives up the connection. Frames are kept for the next one. Event: CONNECTION_LOST."""
        native().session_detach(self._session())

    def send(self, kind: int, tid: int = 0, data: bytes = b"", barrier: bool = False) -> None:
        """Queues a control frame, in order with calls and replies. With `barrier` the other side handles nothing that
        follows until its release(). Errors: ValueError, MemoryError."""
        if kind < CONTROL_FIRST or len(data) > CONTROL_LIMIT:
            raise ValueError(f"no control frame: kind {kind}, {len(data)} bytes")
        if native().session_control(self._session(), kind, int(barrier), tid, data, len(data)):
            raise MemoryError

    def hold(self) -> None:
        """From here on no frame is handled, as behind a barrier, until release(); one that is being handled may still be."""
        native().session_hold(self._session())

    def release(self) -> None:
        """Ends the hold of one barrier frame, or one hold(); nothing to release is no error."""
        native().session_release(self._session())

    def events(self) -> list[Event]:
        """What has happened since, in order. Never waits."""
        functions = native()
        found: list[Event] = []
        event, room = _Event(), ctypes.create_string_buffer(4096)
        while True:
            result = functions.session_next_event(self._session(), ctypes.byref(event), room, len(room))
            if result == 0:
                return found
            if result < 0:
                room = ctypes.create_string_buffer(event.length)
                continue
            kind = event.control if event.kind == Kind.CONTROL else event.kind
            found.append(Event(kind, event.tid, room.raw[: event.length], event.value))

    def wait(self, timeout: float) -> list[Event]:
        """events(), waiting up to `timeout` seconds for the first one."""
        found = self.events()
        poll = select.poll()
        poll.register(self.event_fd, select.POLLIN)
        if not found and poll.poll(timeout * 1000):
            found = self.events()
        return found

    def flush(self, timeout: float) -> bool:
        """Waits until everything queued was written to the connection."""
        return bool(native().session_flush(self._session(), int(timeout * 1000)) == 0)

    def set_silence(self, seconds: float) -> None:
        """After how long without any frame SILENT comes (a heartbeat is sent each second); 0: never."""
        native().session_set_silence(self._session(), int(seconds * 1000))

    @property
    def connected(self) -> bool:
        return bool(native().session_statistic(self._session(), 3))

    @property
    def kept_bytes(self) -> int:
        """Bytes that would be sent again after a break."""
        return int(native().session_statistic(self._session(), 0))

    @property
    def carried_bytes(self) -> int:
        """Bytes of all frames, both ways, those that were sent again too."""
        return int(native().session_statistic(self._session(), 5))

    def close(self) -> None:
        """Ends the threads and the connection. Once is enough, twice is no error."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._free(handle)
            if self.event_fd >= 0:
                os.close(self.event_fd)
