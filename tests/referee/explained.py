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


EXPLANATIONS = (
    Explanation(
        r"kill\(@[12], .*",
        r"\d+ 0( !.*)?",
        r"\d+ 0( !.*)?",
        "kill(2) with the id of a thread that is not the first: the signal is the process's, but the kernel prefers that thread, if it is"
        " free to take it; another can get it when the process has come home just before, for its threads are let go one after another",
        is_ours=True,
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
        r"recvfrom\(.*",
        r"\d+ EFAULT \+.*",
        r"\d+ EFAULT( .*)?",
        "the kernel writes the bytes of a message first and fails then at the length of the sender's address (net/socket.c,"
        " __sys_recvfrom); of a call that has failed home sends no bytes back",
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
        r"\d+ 0( .*)?",
        r"\d+ ESRCH",
        "the list of another process, which debuggers alone ask for: lists are kept where each process is, and there the others are not",
        is_ours=True,
    ),
)


def explain(difference: Difference) -> Explanation | None:
    return next((one for one in EXPLANATIONS if one.holds(difference)), None)
