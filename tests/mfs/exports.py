"""Nodes with exports, for the tests of files."""

from __future__ import annotations

from pathlib import Path

from lab import Lab, Node, cgroups
from lab.cluster import start
from tests.sanitizers.slower import bound

INSIDE = "/opt/farhome"
PYTHON = f"{INSIDE}/.venv/bin/python"
KEYS = "/var/lib/farhome/pki"
EXPORTS, READ_ONLY = "/tmp/open", "/tmp/frozen"
PORT = 7227
TIMEOUT = round(bound(2))
"""Seconds after which a server that does not answer is an error."""
CONFIGURATION = f'speed = 1.0\n[mfs]\nexports = ["{EXPORTS}"]\nread_only = ["{READ_ONLY}"]\ntimeout = {TIMEOUT}\nroot = "root"\n'


def with_exports(count: int, name: str, **options: float) -> Lab:
    """A lab whose nodes export what is in CONFIGURATION."""
    lab = Lab.up(count, name=name, mosd=False, configuration=CONFIGURATION, **options)  # type: ignore[arg-type]
    try:
        for node in lab.nodes():
            node.run(["mkdir", EXPORTS, READ_ONLY], check=True)
        start(lab.nodes())
        for away in lab.nodes():
            for home in lab.nodes():
                if home.name != away.name:
                    until_mounted(away, home)
    except BaseException:
        lab.down()
        raise
    return lab


def until_mounted(away: Node, home: Node, directory: str = EXPORTS, seconds: int = 20) -> None:
    """Waits until a node sees a directory of another's. Errors: CalledProcessError."""
    point = f"/mfs/{home.name}{directory}"
    away.run(f"for n in $(seq {seconds * 20}); do test -d {point} && exit 0; sleep 0.05; done; exit 1", check=True, timeout=seconds + 30)


def running(node: Node, program: str) -> list[int]:
    """The host's process ids of a program in a node."""
    found = []
    for pid in cgroups.processes(node.lab, node.name):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == program:
                found.append(pid)
        except OSError:
            continue  # it has just ended
    return found
