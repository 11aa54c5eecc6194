"""Control frames of the link between a deputy and a remote, and their payloads (msgpack maps, opaque to the C session).

They share one ordered stream with calls and replies: a result computed before a signal is delivered before it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgpack

from wire.frames import WireError


class Control(IntEnum):
    """Frame kinds from 32 on; below is the C session's own business."""

    # deputy -> remote
    SIGNAL = 32
    """a signal came to the stub: number, info, tid (0: to the process); asks: what the threads block that are in a call is to be reported
    (BLOCKS); of SIGCONT continued: its number among those of the process"""
    STOPPED = 33
    """the stub is in a group stop: the guest must not run"""
    CONTINUED = 34
    """the stub goes on"""
    PAUSE = 35
    """take no more calls; answered by PAUSED"""
    QUIET = 36
    """every call that was under way has been replied to or suspended: freeze; answered by FROZEN; watch:
    signals that are to wait at home, or 0"""
    THAW = 37
    """the move is off: run on; watched: if not 0, the signals that wait at home from now on where they are blocked
    (remote/tracee/masks.py)"""
    KILL = 38
    """the process has ended at home: end the guest"""
    THREAD_EXITED = 39
    """a stub thread made exit(2): so may the guest's"""
    CARRIED = 40
    """the first frame of a link; what the guest has used on the nodes that it was on before: used; what its limit on processor time
    leaves beyond what it has used at home: limit; see kernel_helpers/usage/account.py; own: numbers of files that it shares with nobody"""
    BORN = 41
    """to tid, which wants a thread or a child: the stub has it, thread is its id; or thread is 0 and again reports whether to ask again"""
    SNAPSHOT = 48
    """to tid, which opens a file of /proc that describes itself: number, as in OWN_PROC; path, what it shall open in its place, empty: the
    file as it is; home: only home can open it"""
    MAPPED = 50
    """what comes of MAP, one of: error (an errno; 0: none), again (ask again), home (why only home can map it), file (what the guest
    maps; see engine/files/files.py) and whole (any part of it may be mapped, privately, without asking)"""
    CONTENT = 51
    """the answer to FETCH: path, offset, data; no data: it cannot be had any more"""
    DIRECTED = 52
    """the answer to READS: number, serial; port of home's file server and the token under which it has the file, or path and inode of
    one of the node's own; shared: others have its position, too; neither: it stays home's alone"""
    POSITIONED = 53
    """the answer to POSITION: number, serial; position; -1: it is not what it was"""
    OVERRUNS = 54
    """to tid, which is about to take a tick: overruns, how often that timer has expired since"""
    MASKED = 55
    """the answer to MASK, when what its thread lets in has been sent: pending, the signals that wait for it at home (a mask)"""
    EXECUTED = 42
    """the stub is another program, by the call of tid: the guest is over; answered by OVER"""
    PROGRAM = 43
    """what that program is: context, pages (as sent by kernel_helpers/pages/pages.py), and the fields of `prepare`; answered by PREPARED"""
    COMMIT = 44
    """the program runs where it is ready: pending, stopped, as in the message of that name"""
    # remote -> deputy
    PAUSED = 64
    FROZEN = 65
    """error: empty when every thread of the guest stands still; again: that it cannot now, but soon may;
    pending: signals; used: in all, here and on nodes before; positions of its direct files: pairs (number, bytes); own: numbers of files
    that it has opened away, and shares with nobody; blocked, if QUIET was to watch: pairs of each thread and what it blocks"""
    GO_HOME = 66
    """a call that only home can make: tid, number, name"""
    CANCEL = 67
    """a signal waits for this thread: suspend its call if it blocks: tid"""
    STOP_BY_DEFAULT = 68
    """a stop signal met its default action: number; continued: of the last SIGCONT that came here, if one has"""
    GUEST_DIED = 69
    """the guest was killed by a signal of its own: number, core"""
    DUMPS = 78
    """tid is about to end the guest by a signal that dumps core, and nothing of it runs: info, the siginfo; home fetches it, or ends it"""
    EXPEL = 70
    """this node wants the guest gone: reason"""
    NEW_THREAD = 71
    """tid is about to make a thread: so shall the stub; answered by BORN"""
    UNBORN = 72
    """the guest has no such thread or child after all: thread"""
    NEW_PROCESS = 73
    """tid is about to make a child: so shall the stub; answered by BORN. Where the child's deputy will find its remote: port, secret;
    exit_signal: what its parent gets at its end; shares: it has its parent's memory, who waits for it"""
    WATCH = 93
    """tid is about to make a signalfd: mask, the signals that are to wait at home where the guest blocks them; QUIET and THAW come"""
    MASK = 94
    """tid is about to block others of those signals, or wants to know what waits: mask, those that it will block; dropped: one that
    the program comes to ignore, so that none of it waits any more; answered by MASKED"""
    ALL_HERE = 92
    """memory that followed the guest is here: it may be moved again, and what has it elsewhere need not"""
    TRACED = 91
    """what the guest's user is to see: lines; held: home handles nothing that follows before they are written"""
    OWN_PROC = 90
    """tid is about to open a file of /proc that describes itself, answered by SNAPSHOT: number; name and thread (0: of the process),
    text of it as the guest's node has it (zlib), used; or a path that may lead to one: relative, at"""
    MAP = 80
    """tid is about to map a file: so shall the stub; arguments: those of mmap(2); answered by MAPPED"""
    FETCH = 81
    """a part of a file that was named in MAPPED: path, offset; answered by CONTENT"""
    READS = 82
    """the guest reads a file again and again: number, serial, own (it has opened it away, and shares it with nobody), placed (it
    is read by calls that name the place); answered by DIRECTED"""
    POSITION = 83
    """where is the file: number, serial; answered by POSITIONED"""
    POSITIONS = 84
    """a direct file is home's again, and is there: no map, but kernel_helpers/link/ends/direct_files.py, POSITION"""
    EXECUTE = 74
    """tid is about to execute a program, its CALL comes next: blocked, ignored (masks of signals)"""
    BLOCKS = 76
    """the answer to a SIGNAL that asks: masks: pairs of each thread that is in a call and what it blocks; ignored: what is by the guest"""
    TAKEN = 77
    """the guest has taken the last tick of a timer: timer (ticks.py); late: it had waited, and its thread tid waits for OVERRUNS"""
    OVER = 75
    """what the new program takes over: pending, used (as in FROZEN), ignored; kernel, lockable (of `ready`), if a place for it is made"""
    PREPARED = 79
    """the program is ready; or error, why not, and again: it may come by a conversation"""


def pack(**fields: Any) -> bytes:
    """Return the payload of a control frame."""
    return bytes(msgpack.packb(fields, use_bin_type=True))


def unpack(data: bytes) -> dict[str, Any]:
    """Return the fields of a payload. Errors: WireError."""
    if not data:
        return {}
    try:
        fields = msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"a broken control frame: {error}") from None
    if not isinstance(fields, dict):
        raise WireError("a broken control frame: no map")
    return fields
