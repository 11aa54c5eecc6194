"""Figures of the programs of the file tree are read as they are written."""

from __future__ import annotations

from pathlib import Path

from mfs import figures
from tests.mfs.served import Served


def test_a_servers_figures_can_be_read(served: Served, area: Path) -> None:
    peer = served.caller()
    file = peer.walk(area / "shown" / "file").node
    handle = peer.open(file, 2)
    peer.write(file, handle, b"12345")
    peer.read(file, handle, 3)
    (row,) = figures.of_server(served.base / "run" / "server.figures")
    assert (row["peer"], row["connected"], row["bytes_written"], row["bytes_read"]) == ("n2", 1, 5, 3)
    assert row["requests"] == len((area / "shown" / "file").parts) - 1 + 3


def test_a_missing_or_short_file_has_no_figures(tmp_path: Path) -> None:
    assert figures.of_client(tmp_path / "none") == {}
    (tmp_path / "short").write_bytes(b"12345678")
    assert figures.of_client(tmp_path / "short") == {}
    assert figures.of_server(tmp_path / "short") == []
