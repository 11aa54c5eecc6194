"""What benches compare with is installed by themselves."""

from __future__ import annotations

import subprocess

import pytest

from bench.nodes import ROOT
from bench.peers import require
from bench.result import BenchFailed


def test_another_word_is_refused() -> None:
    done = subprocess.run([ROOT / "tools/peers", "all"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (2, "peers: say schedulers or files.\n")


def test_nothing_is_installed_where_all_is_there() -> None:
    require("nothing of the kind", ["sh", "mount"])


def test_what_cannot_be_had_is_named_with_the_reason() -> None:
    with pytest.raises(BenchFailed, match=r"^quicker, which this compares with, cannot be had: peers: say schedulers or files\.$"):
        require("nothing of the kind", ["sh", "quicker"])
