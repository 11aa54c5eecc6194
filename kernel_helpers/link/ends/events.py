"""What a link says to Python: events, and calls that wait."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """Kinds of events that the link itself makes. Control frames keep their own kind, which is 16 or more."""

    CONTROL = 1  # never seen: a control frame's event has the frame's kind
    CONNECTION_LOST = 2
    """data: the reason; attach() a new one"""
    SILENT = 3
    """nothing was heard for the time of set_silence()"""
    HEARD = 4
    CONNECTED = 5
    """the other side has said how far it had come: frames flow"""
    GO_HOME_CALL = 6
    """code: the number of a call that only home can make; it stays parked"""
    GUEST_GONE = 7
    """the last thread under the filter has ended"""
    SUSPENDED = 8
    """code: the restart code with which home took a call back; it stays parked until answer(). See also AwayLink.part()"""
    READS = 9
    """a file is read again and again; data: READ"""
    READS_OPEN = 10
    """code: the number of a call that reads a file which is open on the node (direct_files.py), and stays parked; data: READ"""
    BUSY = 11
    """code: the number of a call that stays parked until others have come out of their reads (AwayLink.awaited())"""
    LETS_IN = 12
    """code: the number of a call that was sent home though a signal waits that its mask lets in: it is to be asked back"""
    WRITE_FAILED = 13
    """a write that the node had answered could not be made at home; code: an errno; data: DESCRIPTOR"""


DESCRIPTOR = struct.Struct("<i")
READ = struct.Struct("<4Q")
"""Of READS and READS_OPEN: a descriptor's number, the serial of the question about it, whether the guest has opened it away and shares it
with nobody, whether it is read by calls that name the place."""


@dataclass(frozen=True)
class Event:
    """kind: a Kind, or a control frame's number. tid as the program sees it, 0: none."""

    kind: int
    tid: int
    data: bytes
    code: int = 0


@dataclass(frozen=True)
class Parked:
    """A call that was caught and not answered. sigmask: what it wants blocked while it waits (ppoll and friends; rt_sigtimedwait: all but
    what it waits for)."""

    sequence: int
    number: int
    sent: bool
    """home is at it; otherwise it waits for answer()"""
    sigmask: int | None


@dataclass(frozen=True)
class Part:
    """A call that is half done: the thread (as the program sees it) that makes it again, its number, bytes that are done."""

    tid: int
    number: int
    done: int
