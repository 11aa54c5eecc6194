"""The daemon's answers to its owner: about the policy, the owner's presence, and lent time; and who may ask which."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgpack
import pytest

from kernel_helpers.common.errors import FarhomeError
from node.common import config
from node.common.paths import Paths
from node.daemon import Daemon
from node.guests.cgroups import GuestGroups
from node.owner.ledger import BORROWED, LENT, Reading
from node.requests.commands import Commands
from node.requests.control import BadRequest, Client, NotPermitted

OTHER_USER = 65534


def ask(directory: Path, operation: str, uid: int = 0, **request: Any) -> dict[str, Any]:
    """The answer as it goes over the socket. Errors: FarhomeError."""
    paths = Paths(run=directory, state=directory, config=directory / "node.toml")
    paths.config.write_text(
        'name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n[lend]\nusers = ["anna"]\nmax_memory = "1G"\n[[lend.class]]\nname = "c"\n'
        f'[lend.owner]\ninput = ["{directory}/input"]\nlogins = false\n'
    )

    async def answer() -> dict[str, Any]:
        daemon = Daemon(paths, config.load(paths.config))
        daemon.parts.ledger.book(LENT, [Reading("n2-1", "anna", "n2", 3.5)])
        daemon.parts.ledger.book(BORROWED, [Reading("1-1", "root", "n2", 2.5), Reading("2-1", "anna", "n3", 1.5)])
        daemon.parts.lending.apply_policy()
        daemon.parts.lending.poll()
        try:
            return await Commands(daemon.parts).handle(Client(os.getpid(), uid, asyncio.Event()), operation, request)
        finally:
            daemon.parts.lending.close()
            daemon.parts.ledger.close()
            GuestGroups().remove_all()

    reply: dict[str, Any] = msgpack.unpackb(msgpack.packb(asyncio.run(answer())))
    return reply


def test_the_policy_is_shown_to_every_user_and_for_every_user(tmp_path: Path) -> None:
    general = ask(tmp_path, "policy", OTHER_USER)
    assert general["refusal"] == ""
    assert {"enabled", "memory", "lent to", "denied", "class c", "owner", "owner is back"} <= {line["rule"] for line in general["lines"]}
    assert ask(tmp_path, "policy", **{"as": "anna@n2"})["refusal"] == ""
    assert "user bert of n2" in ask(tmp_path, "policy", **{"as": "bert@n2"})["refusal"]
    assert "2G of memory" in ask(tmp_path, "policy", **{"as": "anna@n2", "memory": 2 << 30})["refusal"]


@pytest.mark.parametrize("wrong", [{"as": "anna"}, {"as": "@n2"}, {"as": 5}, {"memory": -1}, {"memory": True}])
def test_questions_without_sense_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        ask(tmp_path, "policy", **wrong)


def test_the_owner_says_that_he_is_back_and_only_he(tmp_path: Path) -> None:
    assert ask(tmp_path, "owner", OTHER_USER)["stage"] == "lending"
    with pytest.raises(NotPermitted):
        ask(tmp_path, "owner", OTHER_USER, back=True)
    with pytest.raises(FarhomeError):
        ask(tmp_path, "owner", back="yes")
    assert ask(tmp_path, "owner", back=True)["reason"] == "the owner has the node (mosctl owner back)"
    assert ask(tmp_path, "owner")["called"] is True
    assert "mosctl owner back" in ask(tmp_path, "policy", **{"as": "anna@n2"})["refusal"]
    assert ask(tmp_path, "owner", back=False)["stage"] == "lending"


def test_a_user_sees_only_their_own_borrowed_time(tmp_path: Path) -> None:
    def whose(uid: int) -> set[tuple[str, str]]:
        return {(entry["direction"], entry["user"]) for entry in ask(tmp_path, "ledger", uid)["entries"]}

    assert whose(0) == {(LENT, "anna"), (BORROWED, "root"), (BORROWED, "anna")}
    assert whose(OTHER_USER) == {(LENT, "anna")}
