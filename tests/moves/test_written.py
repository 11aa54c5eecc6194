"""Files that a process has mapped, and that are written, truncated or punched while it is away: it sees that as it would have at home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.moves.cluster import Cluster, until
from tests.moves.test_mappings import PRIVATE, SHARED, Listener, directory

__all__ = ["directory"]
pytestmark = pytest.mark.timeout(120)
WHY = "a file that it has mapped is about to be written"
MAP = """exec("import mmap, os; f = os.open({path!r}, os.O_RDONLY); m = mmap.mmap(f, 0, {kind}); os.close(f)", globals())"""
WAYS = {
    "write": "dd if=/dev/zero of={path} bs=1 count=1 seek=4096 conv=notrunc",
    "truncate": "python3 -c \"import os; [os.truncate('{path}', size) for size in (4096, 8192)]\"",
    "punch": "fallocate --punch-hole --offset 4096 --length 4096 {path}",
    "itself": "",
}


def _file(directory: Path) -> tuple[Path, str]:
    made = directory / "mapped"
    made.write_bytes(b"o" * 8192)
    made.chmod(0o666)
    return made, f"/tmp/{directory.name}/{made.name}"


@pytest.mark.parametrize(("way", "kind"), [*((way, PRIVATE) for way in WAYS), ("write", SHARED)])
def test_changes_by_write_show_in_untouched_mapped_pages(cluster: Cluster, directory: Path, way: str, kind: str) -> None:
    made, path = _file(directory)
    made.chmod(0o644)
    user = "" if kind == PRIVATE else "farhome-a"
    with Listener(cluster, user) as program:
        program.ask(MAP.format(path=path, kind=kind))
        program.moved("n2")
        assert program.ask("m[4096]") == str(ord("o"))
        if way == "itself":
            program.ask(f"open({path!r}, 'r+b', 0).truncate(4096), open({path!r}, 'ab', 0).write(bytes(4096))")
        else:
            cluster.home.run("sh", "-c", WAYS[way].format(path=path))
        assert program.ask("m[4096]") == "0"
        assert program.ask("m[0]") == str(ord("o"))
        assert program.went_home_for() == {WHY}
        program.moved("n2")
        assert program.ask("m[4096]") == "0"


def test_files_mapped_away_are_watched_as_well(cluster: Cluster, directory: Path) -> None:
    _, path = _file(directory)
    with Listener(cluster) as program:
        program.moved("n2")
        program.ask(MAP.format(path=path, kind=PRIVATE))
        program.stays_at("n2", 1)
        cluster.home.run("sh", "-c", WAYS["write"].format(path=path))
        assert program.ask("m[4096]") == "0"


def test_a_file_that_is_open_for_writing_keeps_its_process_at_home(cluster: Cluster, directory: Path) -> None:
    made, path = _file(directory)
    with Listener(cluster) as program, made.open("r+b"):
        program.ask(MAP.format(path=path, kind=PRIVATE))
        said = cluster.home.run("migrate", str(program.pid), "n2").stderr
        assert f"it has {path} mapped, which is open for writing" in said
        assert f"it has {path} mapped, which is open for writing" in cluster.home.run("moscheck", str(program.pid)).stdout


def test_a_file_open_for_writing_only_in_its_own_mapping_does_not_prevent_a_move(cluster: Cluster, directory: Path) -> None:
    _, path = _file(directory)
    with Listener(cluster) as program:
        program.ask(MAP.format(path=path, kind=PRIVATE).replace("O_RDONLY", "O_RDWR"))
        assert f"it has {path} mapped, which is open for writing" in cluster.home.run("migrate", str(program.pid), "n2").stderr
        program.ask("os.closerange(3, 64)")  # the one that mmap.mmap has as well
        program.moved("n2")
        assert program.ask("m[4096]") == str(ord("o"))


def test_a_returned_process_is_not_waited_for(cluster: Cluster, directory: Path) -> None:
    _, path = _file(directory)
    with Listener(cluster) as program:
        program.ask(MAP.format(path=path, kind=PRIVATE))
        program.moved("n2")
        program.moved("home")
        assert cluster.home.run("sh", "-c", WAYS["write"].format(path=path)).returncode == 0
        assert program.ask("m[4096]") == "0"
        program.moved("n2")
        until("it is there", lambda: (shown := program.shown()) is not None and shown["where"] == "n2")
