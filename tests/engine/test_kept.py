"""A node tries moves by images before one is asked for, and remembers whether they work, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.criu import criu, inspection, kept
from remote.sandbox.rehearsal import try_images


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for images; what is found out is kept beside it."""
    monkeypatch.setattr(kept, "KEPT", tmp_path / "kept")
    assert kept.why_images_fail() is None
    directory = tmp_path / "images"
    directory.mkdir()
    return directory


def test_moves_by_images_work_on_this_machine(images: Path) -> None:
    assert try_images(images) == ""
    assert kept.why_images_fail() == ""


def test_a_field_that_a_newer_criu_writes_is_named(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(inspection._CORE["thread_info"]["fpregs"]["xsave"], "xstate_bv")  # type: ignore[index, call-overload]
    assert "xsave, xstate_bv: a process that moves does not have that" in try_images(images)
    assert "xstate_bv" in (kept.why_images_fail() or "")


def test_a_criu_that_fails_is_named(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criu, "tool", lambda: criu.Tool(("/bin/false",), "/", ("/bin/false",)))
    assert "CRIU: " in try_images(images)


def test_what_another_criu_or_kernel_gave_is_not_believed(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.keep_trial("")
    assert kept.why_images_fail() == ""
    monkeypatch.setattr(kept, "subject", lambda: "another")
    assert kept.why_images_fail() is None
    (kept.KEPT / kept.TRIAL).write_bytes(b"[1")
    assert kept.why_images_fail() is None
