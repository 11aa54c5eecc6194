"""A guest that takes all it can get is bounded, independent of its owner's policy."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.lending.lending import Borrower
from balancer.lending.mistakes import Mistake
from balancer.lending.policy import LendingPolicy
from node.guests import foundation
from node.guests.cgroups import BASE, Bounds, GuestGroups
from remote.sandbox import identity
from remote.sandbox.sandbox import Sandbox
from tests.groups import own_points
from tests.remote.ids import own_ids

_BOMB = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words)
{
    if (count > 1) { /* so many MiB */
        for (long i = 0; i < atol(words[1]); i++)
            memset(malloc(1 << 20), 1, 1 << 20);
        return 0;
    }
    for (int born = 0; born < 2000; born++) {
        pid_t child = fork();
        if (child < 0) {
            printf("%d %d\n", born, errno == EAGAIN);
            return 0;
        }
        if (!child)
            for (close(1), close(2);;)
                pause();
    }
    puts("no end");
    return 0;
}
"""


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("bomb")
    (directory / "bomb.c").write_text(_BOMB)
    subprocess.run(["gcc", "-static", "-o", directory / "bomb", directory / "bomb.c"], check=True, timeout=60)
    return str(directory / "bomb")


@pytest.fixture
def bounded(bomb: str) -> Iterator[tuple[GuestGroups, Sandbox]]:
    """A guest in a control group, and the groups."""
    with own_points() as points:
        groups = GuestGroups(points.values())
        groups.prepare()
        groups.create("guest")
        name = next(iter(points.values())).name
        sandbox = Sandbox.create("bounded", [("/bomb", bomb)], cgroup=f"{name}/{BASE}/guest", identities=own_ids())
        try:
            yield groups, sandbox
        finally:
            sandbox.destroy()
            end = time.monotonic() + 10
            while not groups.remove("guest"):
                assert time.monotonic() < end
                os.sched_yield()
            groups.remove_all()


def test_a_fork_bomb_ends_at_the_bound_of_its_tree(bounded: tuple[GuestGroups, Sandbox]) -> None:
    groups, sandbox = bounded
    groups.bound_tasks("guest", 50)
    done = subprocess.run(sandbox.enter_argv(["/bomb"]), capture_output=True, text=True, timeout=60, check=True)
    born, is_refused = map(int, done.stdout.split())
    assert is_refused and 40 <= born < 50


def test_all_guests_together_are_bounded(bounded: tuple[GuestGroups, Sandbox]) -> None:
    groups, sandbox = bounded
    groups.bound(Bounds(tasks=30))
    done = subprocess.run(sandbox.enter_argv(["/bomb"]), capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout.split()[0]) < 30


def test_a_process_with_too_much_memory_is_killed_alone(bounded: tuple[GuestGroups, Sandbox]) -> None:
    groups, sandbox = bounded
    groups.bound(Bounds(most_memory=64 << 20))
    assert subprocess.run(sandbox.enter_argv(["/bomb", "16"]), timeout=60, check=False).returncode == 0
    done = subprocess.run(sandbox.enter_argv(["/bomb", "256"]), timeout=60, check=False)
    assert done.returncode in (128 + 9, -9), "it was not killed"
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000"


def test_guests_end_before_anything_else_where_memory_is_short() -> None:
    sandbox = Sandbox.create("short", [], identities=own_ids())
    try:
        for pid in (sandbox.first, sandbox.vessel(900)):
            assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    finally:
        sandbox.destroy()


def test_this_kernel_makes_user_namespaces() -> None:
    assert foundation.why_no_user_namespaces() == ""


def test_a_kernel_without_namespaces_is_reported_in_a_sentence() -> None:
    bound = "/proc/sys/user/max_user_namespaces"
    script = (
        f"before=$(cat {bound}); trap 'echo $before > {bound}' EXIT; echo 0 > {bound}; exec 3>&1; .build/sandbox try 2>&1; echo status $?"
    )
    # In a user namespace of its own, whose bound is its own.
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=30, check=True,
    )  # fmt: skip
    assert "a user namespace: No space left on device" in done.stdout and "status 125" in done.stdout


def test_the_policy_sets_ids_engines_and_administration() -> None:
    plain = LendingPolicy.from_table({})
    assert plain.ids == identity.DEFAULT and plain.engines == {"pour", "criu"} and plain.is_own("anybody")
    policy = LendingPolicy.from_table({"ids": "none", "engines": ["pour"], "administration": ["n1"], "max_tasks": 7, "memory_share": 0.5})
    assert policy.ids is None and policy.engines == {"pour"} and policy.is_own("n1") and not policy.is_own("n2")
    assert policy.max_tasks == 7 and policy.borrowers.includes(Borrower("anna", "n2"))
    for table in ({"ids": "0-70000"}, {"ids": "many"}, {"ids": "100000-100010"}, {"engines": ["fly"]}, {"engines": []}, {"max_tasks": 0},
                  {"memory_share": 2}, {"administration": "n1"}):  # fmt: skip
        with pytest.raises(Mistake):
            LendingPolicy.from_table(table)
