"""CRIU's findings about the kernel in one lab are known in the nodes of the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.criu import kept
from lab import Lab, knowledge


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of built programs with the findings that are kept for each user."""
    made = tmp_path / "build"
    made.mkdir()
    (made / "criu").write_text("exec one\n")
    for module in (knowledge, kept):
        monkeypatch.setattr(module, "build_directory", lambda: made)
    return made


def root_with(path: Path, **found: bytes) -> Path:
    """The root of a node whose CRIU has made these findings."""
    directory = path / "run/farhome/criu"
    directory.mkdir(parents=True)
    for name, data in found.items():
        (directory / f"kept-{name}").write_bytes(data)
    return path


def handed(path: Path) -> dict[str, bytes]:
    """Returns the findings that a new node gets."""
    path.mkdir()
    knowledge.hand_over(path)
    return {one.name: one.read_bytes() for one in path.glob("criu/*")}


def test_findings_of_one_node_are_handed_on_as_long_as_criu_is_the_same(tmp_path: Path, build: Path) -> None:
    assert handed(tmp_path / "first") == {}
    knowledge.keep([root_with(tmp_path / "n0", **{"0": b"and not yet tried"})])
    assert handed(tmp_path / "early") == {}
    knowledge.keep([root_with(tmp_path / "n1"), root_with(tmp_path / "n2", **{"0": b"as root", "1": b"as another", "trial": b"{}"})])
    expected = {"kept-0": b"as root", "kept-1": b"as another", "kept-trial": b"{}"}
    assert handed(tmp_path / "second") == expected
    knowledge.keep([root_with(tmp_path / "n3", **{"0": b"something else", "trial": b"{}"})])
    assert handed(tmp_path / "third") == expected
    (build / "criu").write_text("exec another\n")
    assert handed(tmp_path / "fourth") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")
def test_a_node_begins_with_it(tmp_path: Path, build: Path, lab_name: Callable[[], str]) -> None:
    knowledge.keep([root_with(tmp_path / "n1", **{"0": b"known", "trial": b"{}"})])
    with Lab.up(1, name=lab_name(), mosd=False) as lab:
        directory = lab.node("n1").root / "run/farhome/criu"
        assert {one.name: one.read_bytes() for one in directory.iterdir()} == {"kept-0": b"known", "kept-trial": b"{}"}
        assert directory.stat().st_mode & 0o777 == 0o700
        assert not (lab.node("n1").root / "etc/farhome/criu").exists()
