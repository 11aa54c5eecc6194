"""Peer systems that benches compare with are installed by the benches."""

from __future__ import annotations

import subprocess

import pytest

from bench.common.nodes import ROOT
from bench.common.peers import require
from bench.common.result import BenchFailed


def test_another_word_is_refused() -> None:
    done = subprocess.run([ROOT / "tools/peers", "all"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (2, "peers: say schedulers, files, calls or compilers.\n")


def test_nothing_is_installed_where_all_is_there() -> None:
    require("nothing of the kind", ["sh", "mount"])


def test_missing_peers_are_named_with_the_reason() -> None:
    with pytest.raises(
        BenchFailed, match=r"^quicker, which this compares with, cannot be had: peers: say schedulers, files, calls or compilers\.$"
    ):
        require("nothing of the kind", ["sh", "quicker"])
