"""A user with an account on a hosting node, and with the number of a guest's user, cannot reach the guest."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.context import capture
from engine.context.context import Identity
from engine.pour import postcopy
from engine.pour.arrival import become, drop_capabilities
from kernel_helpers.process import seizing
from remote.sandbox import identity
from remote.sandbox.sandbox import Sandbox
from tests.remote.ids import own_ids

ACCOUNT = pwd.getpwnam("farhome-a")

_ATTACK = """
import ctypes, errno, json, os, resource, signal, sys
pid, address = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
here, there = Vector(ctypes.addressof(buffer), 8), Vector(address, 8)
def call(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "done"
def attempt(act):
    try:
        act()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
found = {
    "read": call("process_vm_readv", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0),
    "write": call("process_vm_writev", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0),
    "trace": call("ptrace", 16, pid, 0, 0),
    "memory": attempt(lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR)),
    "signal": attempt(lambda: os.kill(pid, signal.SIGSTOP)),
    "limit": attempt(lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))),
    "environment": attempt(lambda: open(f"/proc/{pid}/environ").read()),
    "descriptors": attempt(lambda: os.listdir(f"/proc/{pid}/fd")),
    "priority": attempt(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)),
}
print(json.dumps(found))
"""


@pytest.fixture
def guest() -> Iterator[tuple[Sandbox, int]]:
    """A process of farhome-a's, as a guest is one."""
    sandbox = Sandbox.create("attacked", [("/sleep", "/bin/true")], identities=own_ids())
    try:
        pid = sandbox.vessel(4711)
        _become(pid, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
        yield sandbox, pid
    finally:
        sandbox.destroy()


def _become(pid: int, uid: int, gid: int) -> None:
    with seizing.seize(pid) as frozen:
        become(frozen, Identity("/", (uid,) * 3, (gid,) * 3, (gid, 65534), 0, {}))
        drop_capabilities(frozen)


def _attack(pid: int) -> dict[str, str]:
    stack = next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("[stack]"))
    done = subprocess.run(
        [sys.executable, "-c", _ATTACK, str(pid), str(int(stack.split("-")[0], 16))],
        capture_output=True, text=True, timeout=30, check=True, user=ACCOUNT.pw_uid, group=ACCOUNT.pw_gid, extra_groups=[],
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def test_the_account_with_a_guests_number_reaches_nothing_of_it(guest: tuple[Sandbox, int]) -> None:
    _, pid = guest
    assert capture.identity(pid).uids == (ACCOUNT.pw_uid,) * 3, "inside, its user is that of home"
    assert set(_attack(pid).values()) <= {"EPERM", "EACCES"}
    assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


def test_the_attack_succeeds_where_guests_have_the_ids_of_home() -> None:
    """Else the test above shows nothing."""
    sandbox = Sandbox.create("attacked", [])
    try:
        pid = sandbox.vessel(4711)
        _become(pid, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
        assert "done" in _attack(pid).values()
    finally:
        sandbox.destroy()


def test_no_account_is_a_guest(guest: tuple[Sandbox, int]) -> None:
    sandbox, pid = guest
    accounts = {entry.pw_uid for entry in pwd.getpwall()}
    for process in (sandbox.first, pid):
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        ids = {int(word) for line in status if line.startswith(("Uid:", "Gid:", "Groups:")) for word in line.split()[1:]}
        assert ids and ids.isdisjoint(accounts)


def test_groups_come_back_as_they_are_at_home(guest: tuple[Sandbox, int]) -> None:
    assert capture.identity(guest[1]).groups == tuple(sorted((ACCOUNT.pw_gid, 65534)))


def test_a_guest_does_not_count_for_the_account(guest: tuple[Sandbox, int]) -> None:
    """RLIMIT_NPROC counts all processes of a user."""
    count = (
        "import os, resource, sys; n = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_NPROC, (n, n))\n"
        "try: pid = os.fork()\nexcept BlockingIOError: sys.exit(11)\n"
        "os._exit(0) if not pid else sys.exit(os.waitpid(pid, 0)[1])"
    )

    def forks(limit: int) -> bool:
        done = subprocess.run(
            [sys.executable, "-c", count, str(limit)], timeout=30, check=False, user=_UNUSED, group=ACCOUNT.pw_gid, extra_groups=[]
        )
        return done.returncode == 0

    sandbox, _ = guest
    for number in range(4712, 4716):
        _become(sandbox.vessel(number), _UNUSED, ACCOUNT.pw_gid)
    assert forks(2), "guests count"
    assert not forks(1), "nothing counts"


_UNUSED = 48123
"""A user who has no process here."""


def test_memory_can_follow_a_guest_that_has_no_right_outside(guest: tuple[Sandbox, int]) -> None:
    with seizing.seize(guest[1]) as frozen:
        userfaultfd = postcopy.userfaultfd(frozen)
    os.close(userfaultfd)


def test_a_block_of_ids_is_given_only_once(tmp_path: Path) -> None:
    within = (identity.DEFAULT[0], identity.DEFAULT[0] + 2 * identity.BLOCK - 1)
    first, second = identity.take(within, file=tmp_path / "ids"), identity.take(within, file=tmp_path / "ids")
    assert abs(first.first - second.first) == identity.BLOCK
    with pytest.raises(identity.FarhomeError, match="in use"):
        identity.take(within, file=tmp_path / "ids")
    first.release()
    third = identity.take(within, file=tmp_path / "ids")
    assert third.first == first.first
    second.release()
    third.release()


def test_ids_of_accounts_are_not_given_to_guests(tmp_path: Path) -> None:
    lowest = min(entry.pw_uid for entry in pwd.getpwall())
    with pytest.raises(identity.FarhomeError, match="belong to accounts"):
        identity.take((lowest, lowest + identity.BLOCK - 1), file=tmp_path / "ids")


@pytest.mark.parametrize("ids", ["x", [-1], [2**32 - 1], [True], ["0"], list(range(70000, 70000 + 200))])
def test_ids_that_are_none_are_refused(ids: object) -> None:
    with pytest.raises(identity.FarhomeError):
        identity.greater_ids(ids)
