"""Calls that are seldom made and that the stub can make as well: natively and through the link they give the same."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pytest

from bench.calls.link_pair import GO_HOME, Pair
from kernel_helpers.calls.numbers import NUMBERS
from tests.link.conftest import Native

pytestmark = pytest.mark.timeout(120)

OWN_NAMESPACES = ("unshare", "--mount", "--uts", "--ipc")
FAMILIES = ("attributes", "objects", "filters", "mounts", "keys", "machine", "persona", "credentials")


WAYS = [
    *((family, "notify") for family in FAMILIES), ("filters", "ptrace"), ("credentials", "ptrace"),
    *(pytest.param(family, "ptrace", marks=pytest.mark.soak) for family in FAMILIES if family not in ("filters", "credentials")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "interception"), WAYS)
def test_family_is_the_same_as_native(family: str, interception: str, rare: Path, native_in: Native, tmp_path: Path) -> None:
    command = [*OWN_NAMESPACES, str(rare), family]
    directory = tmp_path / "away"
    directory.mkdir()
    with Pair(command, directory=str(directory), interception=interception) as pair:
        status, output = pair.run(30)
    away, native = output.decode().splitlines(), native_in(*command)[1].decode().splitlines()
    assert [pair for pair in zip_longest(native, away) if pair[0] != pair[1]] == []
    assert status == 7


@pytest.mark.parametrize("interception", ["notify", pytest.param("ptrace", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("beginning", "write"),
        ("handle", "name_to_handle_at"),
        ("text", "finit_module"),
        ("timex", "adjtimex"),
        ("zerocopy", "sendto"),
        ("options", "mount"),
    ],
)
def test_calls_that_only_homes_kernel_knows_go_home(what: str, call: str, interception: str, rare: Path, tmp_path: Path) -> None:
    with Pair([str(rare), "home", what], directory=str(tmp_path), interception=interception) as pair:
        pair.until(lambda: any(e.kind == GO_HOME for e in pair.events) or pair.status is not None, 20, "nothing happens")
        assert pair.status is None, pair.output
        assert next(e for e in pair.events if e.kind == GO_HOME).data == str(NUMBERS[call]).encode()
