"""What a node's owner says about the cluster file tree: `[mfs]` of node.toml."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from balancer.lending.values import Table

DEVICE = Path("/dev/fuse")
DEFAULT_PORT = 7227
WHERE = ("mfs",)
MOST_ROOTS = 64
EACH = "*"
"""In the place of a node's name: each of them."""


@dataclass(frozen=True)
class Settings:
    """exports, read_only: directories that other nodes see; root: nodes whose root is root here as well, `*` for each; timeout: seconds
    for which a lost peer is waited for before its files give errors; setuid: whether setuid bits count on files of peers; direct: whether
    what a process that is away reads again and again is read where it is, as far as this node has to do with it; direct_after: reads of a
    file that go home before; encryption: the node's own key of that name; enabled None: if the kernel has what it needs."""

    enabled: bool | None = None
    port: int = DEFAULT_PORT
    exports: tuple[str, ...] = ("/home",)
    read_only: tuple[str, ...] = ()
    root: tuple[str, ...] = ()
    encryption: bool = True
    setuid: bool = False
    timeout: float = 10.0
    direct: bool = False
    direct_after: int = 16

    @classmethod
    def from_table(cls, value: object) -> Settings:
        """Of the table in the file. Errors: Mistake."""
        table = Table(value, WHERE)
        read = cls(
            enabled=table.truth("enabled", True) if table.has("enabled") else None,
            port=_port(table),
            exports=_directories(table, "exports", cls.exports),
            read_only=_directories(table, "read_only", cls.read_only),
            root=_root(table),
            setuid=table.truth("setuid", cls.setuid),
            timeout=table.number("timeout", 0.5, 3600, cls.timeout) or cls.timeout,
            direct=table.truth("direct", cls.direct),
            direct_after=table.count("direct_after", cls.direct_after, 1) or cls.direct_after,
        )
        table.close()
        return read

    @property
    def works(self) -> bool:
        """Whether the tree is to be there."""
        return DEVICE.exists() if self.enabled is None else self.enabled

    @property
    def is_direct(self) -> bool:
        """Whether the tree is there, and files may be direct."""
        return self.direct and self.works

    def trusts_root_of(self, node: str) -> bool:
        """Return whether that node's root is root here."""
        return EACH in self.root or node in self.root

    def shown(self) -> list[tuple[str, bool]]:
        """(directory, whether read-only) of all that is exported, those above others first."""
        exports = self.exports
        if exports == type(self).exports:  # nobody has asked for it: a node may do without such a directory
            exports = tuple(path for path in exports if os.path.isdir(path))
        return sorted({path: path in self.read_only for path in (*exports, *self.read_only)}.items())


def _port(table: Table) -> int:
    port = table.count("port", DEFAULT_PORT, 1) or DEFAULT_PORT
    if port > 65535:
        raise table.wrong("port", "is no port")
    return port


def _root(table: Table) -> tuple[str, ...]:
    """`nobody`, `root`, or a list of nodes whose root is root here."""
    if not table.is_list("root"):
        return (EACH,) if table.choice("root", ("nobody", "root"), "nobody") == "root" else ()
    nodes = table.names("root")
    if nodes is not None and len(nodes) > MOST_ROOTS:
        raise table.wrong("root", f'has more than {MOST_ROOTS} nodes; "root" is all of them')
    return (EACH,) if nodes is None else tuple(sorted(nodes))


def _directories(table: Table, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    paths = table.paths(key)
    if paths is None:
        return default
    for path in paths:
        if os.path.normpath(path) != path:
            raise table.wrong(key, f"has {path!r}, which is not written the short way ({os.path.normpath(path)})")
    return paths
