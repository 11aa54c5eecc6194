"""Differences that are known, each with its reason. An error of ours is called one, and stays in this table until it is mended."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.referee.compare import Difference


@dataclass(frozen=True)
class Explanation:
    """call: of the call that shows it, with its arguments; native, found: what the records say, from the result on."""

    call: str
    native: str
    found: str
    reason: str
    is_ours: bool

    def holds(self, difference: Difference) -> bool:
        step = difference.step()
        return all(
            re.fullmatch(pattern, text) is not None
            for pattern, text in ((self.call, step.text if step else ""), (self.native, difference.native), (self.found, difference.found))
        )


_HELPER_AND_OWN = r"\d+ 0( !17,2,@h,[0-9a-f]+| !\d+,0,@s,[0-9a-f]+){2}"
EXPLANATIONS = (
    Explanation(
        r"kill\(@[12], .*",
        r"\d+ 0( !.*)?",
        r"\d+ 0( !.*)?",
        "kill(2) with the id of a thread that is not the first: the signal is the process's, but the kernel prefers that thread, if it is"
        " free to take it; another can get it when the process has moved just before, for its threads are let go one after another: those"
        " that wait first, but when they have got to where they wait is the scheduler's affair",
        is_ours=True,
    ),
    Explanation(
        r"kill\(0, .*",
        _HELPER_AND_OWN,
        _HELPER_AND_OWN,
        "kill(2) of the group: the helper may have ended before the process takes its own signal. Of two that wait the handler of the"
        " lesser number is set up first, and so runs last",
        is_ours=False,
    ),
    Explanation(
        r"bears child .*",
        r"\d+ at [0-9a-f]+, for \S+: a fault of its own",
        r"\d+ at [0-9a-f]+, for \S+: a fault of its own",
        "the program cannot go on with the memory that its calls have left: the child or its parent reports that, whichever is first",
        is_ours=False,
    ),
    Explanation(
        r"flock\((0|2[1-58]), .*",
        r"\d+ (0|EAGAIN)( .*)?",
        r"\d+ (0|EAGAIN)( .*)?",
        "an event, timer, epoll or inotify descriptor has no inode of its own: all of the machine have one (fs/anon_inodes.c), as they have"
        " one of /dev/null and of /dev/zero, and locks on those are the machine's: another program's is met",
        is_ours=False,
    ),
    Explanation(
        r"fcntl\([0-9a-f]+, [67], .*",
        r"\d+ 0",
        r"\d+ (EAGAIN|EINTR WAITED)",
        "a record's lock on a descriptor without an inode of its own (fs/anon_inodes.c): another program's of this machine is met",
        is_ours=False,
    ),
    Explanation(
        r"(select|pselect6)\(.*",
        r"\d+ (EFAULT|EBADF) \+[0-9a-f]+8:0000",
        r"\d+ (EFAULT|EBADF) \+[0-9a-f]+0:01 \+[0-9a-f]+8:0000",
        "what is left of a limit of two seconds and some milliseconds: the call took so many",
        is_ours=False,
    ),
    Explanation(
        r"(select|pselect6|ppoll)\(.*",
        r"\d+ \d+( \+\S+)* \+[0-9a-f]+0:01 \+[0-9a-f]+8:0000",
        r"\d+ \d+( \+\S+)* \+[0-9a-f]+8:0000",
        "what is left of a limit of some microseconds: away the call takes as long, and nothing is left",
        is_ours=False,
    ),
    Explanation(
        r"(select|pselect6)\(.*",
        r"\d+ 0 .*",
        r"\d+ EINTR WAITED \+[0-9a-f]+0:0[0-9a-f] .*",
        "a wait of seconds, which one of the ticks that bound calls meets or not, as their phase is",
        is_ours=False,
    ),
    Explanation(
        r"select\(.*, 100000010[0-9a-f]{3}\).*|pselect6\(.*, 100000010[0-9a-f]{3}, [0-9a-f]+\).*",
        r"\d+ EINTR WAITED.*",
        r"\d+ EINTR",
        "where what is left of the time cannot be written, as that is read-only, the kernel makes no such call again after a stop"
        " (fs/select.c, poll_select_finish), and a move is one",
        is_ours=True,
    ),
    Explanation(
        r"clock_nanosleep\(2, 1, .*",
        r"\d+ EINTR WAITED.*",
        r"\d+ 0",
        "a sleep until the process has used so much processor time in all: a move uses some of it, and that may be enough",
        is_ours=False,
    ),
    Explanation(
        r"pselect6\(.*, ([0-9a-f]+), \1\).*",
        r"\d+ EINTR WAITED.*",
        r"\d+ EINVAL.*",
        "its time and its mask at one address: what is left of the time is written there, and read as a mask when the kernel makes the call"
        " again after a stop, as a move is one",
        is_ours=True,
    ),
    Explanation(
        r"getgroups\(.*",
        r"\d+ EFAULT",
        r"\d+ EFAULT \+.*",
        "a number that does not end before the memory does the kernel writes not at all (put_user), home's reply up to there",
        is_ours=True,
    ),
    Explanation(
        r"(recvfrom|recvmsg|read|readv)\(.*",
        r"\d+ (EFAULT|EINVAL) \+.*",
        r"\d+ (EFAULT|EINVAL)( .*)?",
        "what the kernel has written before it fails: a message, where then the length of the sender's address cannot be written"
        " (net/socket.c, __sys_recvfrom), or a number that does not end before the memory does; of a call that has failed home sends"
        " no bytes back",
        is_ours=True,
    ),
    Explanation(
        r"timer_settime\(.* in thread [1-9]\d*",
        r"\d+ 0 !\d+,-2,\d+,[0-9a-f]+( \+.*)?",
        r"\d+ 0( \+.*)?",
        "a timer whose time is over when it is set, and a tick for the process that another thread takes: natively that has it, as a rule,"
        " before the call ends (47 of 50 times), away tens of microseconds later, for it comes with home's answer",
        is_ours=True,
    ),
    Explanation(
        r"pkey_alloc\(.*",
        r"\d+ ENOSPC",
        r"\d+ EINVAL",
        "on a processor without keys the kernel says EINVAL to the first call of an address space, and ENOSPC from then on; a move makes a"
        " new one",
        is_ours=False,
    ),
    Explanation(
        r"get_robust_list\(@h, .*",
        r"\d+ (0( .*)?|EFAULT)",
        r"\d+ ESRCH",
        "the list of another process, which debuggers alone ask for: lists are kept where each process is, and there the others are not",
        is_ours=True,
    ),
)


def explain(difference: Difference) -> Explanation | None:
    return next((one for one in EXPLANATIONS if one.holds(difference)), None)
