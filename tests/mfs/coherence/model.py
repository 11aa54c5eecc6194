"""The expected state of the files: a small model of a tree of files, and the random changes that it allows.

It knows nothing of file systems: what an actor sees is compared with what follows from the changes that have been made.
"""

from __future__ import annotations

import copy
import errno
import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.mfs.coherence.actor import digest

DIRECTORIES = ("", "d")
NAMES = ("a", "b", "c", "e", "f")
MODES = (0o600, 0o640, 0o644, 0o660, 0o700, 0o755)
ATTRIBUTES = ("user.one", "user.two")
TEXT = "abcdefghijklmnopqrstuvwxyz"
KINDS = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
LARGEST = 40_000
"""Bytes of a file: some pages, and more than one request of a small reader."""

Change = list[Any]
Check = list[Any]


@dataclass(eq=False)
class Node:
    """A file, a symbolic link or a directory."""

    kind: int
    mode: int
    data: bytes = b""
    names: int = 1
    changed: int | None = None
    """mtime in ns, as long as it is the one that was set"""
    attributes: dict[str, str] = field(default_factory=dict)

    def shown(self) -> dict[str, int]:
        shown = {"kind": self.kind, "mode": self.mode}
        if self.kind != stat.S_IFDIR:
            shown |= {"size": len(self.data), "nlink": self.names}
        return shown | ({} if self.changed is None else {"mtime": self.changed})


@dataclass
class Held:
    """A file that an actor holds open; `mapped` bytes of it are mapped."""

    node: Node
    writable: bool
    mapped: int


def _split(name: str) -> tuple[str, str]:
    directory, _, last = name.rpartition("/")
    return directory, last


class Tree:
    """All files, and what each actor holds."""

    def __init__(self, actors: int) -> None:
        self.directories: dict[str, dict[str, Node]] = {name: {} for name in DIRECTORIES}
        self.held: list[dict[int, Held]] = [{} for _ in range(actors)]

    def copy(self) -> Tree:
        """Returns a copy that can be changed without changing this one."""
        return copy.deepcopy(self)

    def entries(self, *kinds: int) -> list[str]:
        """Names of all files of those kinds."""
        return [
            f"{directory}/{name}" if directory else name
            for directory, entries in self.directories.items()
            for name, node in entries.items()
            if node.kind in kinds
        ]

    def find(self, name: str) -> Node | None:
        directory, last = _split(name)
        return self.directories[directory].get(last)

    def at(self, name: str) -> Node:
        node = self.find(name)
        assert node is not None, name
        return node

    def _put(self, name: str, node: Node | None) -> None:
        directory, last = _split(name)
        before = self.directories[directory].pop(last, None)
        if before is not None:
            before.names -= 1
        if node is not None:
            self.directories[directory][last] = node

    # changes

    def apply(self, actor: int, change: Change) -> None:
        """Makes the change that an actor has made."""
        getattr(self, f"_{change[0]}")(actor, *change[1:])

    @staticmethod
    def _store(node: Node, offset: int, text: str) -> None:
        data = text.encode()
        start = node.data[:offset].ljust(offset, b"\0")
        node.data, node.changed = start + data + node.data[offset + len(data) :], None

    @staticmethod
    def _cut(node: Node, size: int) -> None:
        node.data, node.changed = node.data[:size].ljust(size, b"\0"), None

    def _create(self, actor: int, name: str, text: str, mode: int) -> None:
        self._put(name, Node(stat.S_IFREG, mode, text.encode()))

    def _replace(self, actor: int, name: str, text: str) -> None:
        node = self.at(name)
        node.data, node.changed = text.encode(), None

    def _write(self, actor: int, name: str, offset: int, text: str) -> None:
        self._store(self.at(name), offset, text)

    def _append(self, actor: int, name: str, text: str) -> None:
        self._store(self.at(name), len(self.at(name).data), text)

    def _truncate(self, actor: int, name: str, size: int) -> None:
        self._cut(self.at(name), size)

    def _rename(self, actor: int, old: str, new: str) -> None:
        node = self.at(old)
        if self.find(new) is node:
            return  # two names of one file: POSIX leaves both
        node.names += 1
        self._put(new, node)
        self._put(old, None)

    def _exchange(self, actor: int, one: str, other: str) -> None:
        (first, a), (second, b) = _split(one), _split(other)
        self.directories[first][a], self.directories[second][b] = self.at(other), self.at(one)

    def _unlink(self, actor: int, name: str) -> None:
        self._put(name, None)

    def _link(self, actor: int, old: str, new: str) -> None:
        self.at(old).names += 1
        self._put(new, self.at(old))

    def _symlink(self, actor: int, target: str, name: str) -> None:
        self._put(name, Node(stat.S_IFLNK, 0o777, target.encode()))

    def _chmod(self, actor: int, name: str, mode: int) -> None:
        self.at(name).mode = mode

    def _utimes(self, actor: int, name: str, changed: int) -> None:
        self.at(name).changed = changed

    def _setxattr(self, actor: int, name: str, attribute: str, value: str) -> None:
        self.at(name).attributes[attribute] = value

    def _removexattr(self, actor: int, name: str, attribute: str) -> None:
        del self.at(name).attributes[attribute]

    def _mkdir(self, actor: int, name: str) -> None:
        self._put(name, Node(stat.S_IFDIR, 0o755))

    def _rmdir(self, actor: int, name: str) -> None:
        self._put(name, None)

    def _hold(self, actor: int, slot: int, name: str, writable: bool, mapped: int) -> None:
        self.held[actor][slot] = Held(self.at(name), writable, mapped)

    def _release(self, actor: int, slot: int) -> None:
        self.held[actor].pop(slot, None)

    def _pwrite(self, actor: int, slot: int, offset: int, text: str) -> None:
        self._store(self.held[actor][slot].node, offset, text)

    def _ftruncate(self, actor: int, slot: int, size: int) -> None:
        self._cut(self.held[actor][slot].node, size)

    def touched(self, actor: int, change: Change) -> tuple[set[str], list[Node]]:
        """Names and files that a change of an actor's is about; all names of those files."""
        two = slice(1, 3)
        named: dict[str, slice] = {"rename": two, "exchange": two, "link": two, "hold": two, "symlink": slice(2, 3)}
        words = change[named.get(change[0], slice(1, 2))]
        nodes = [self.held[actor][slot].node for slot in words if isinstance(slot, int) and slot in self.held[actor]]
        names = {name for name in words if isinstance(name, str)}
        nodes += [node for name in names if (node := self.find(name)) is not None]
        return names | {name for name in self.entries(*KINDS) if self.find(name) in nodes}, nodes

    def concerned(self, actor: int, check: Check, names: frozenset[str]) -> bool:
        """Returns whether the result of an actor's check depends on one of those names."""
        if isinstance(check[1], int):
            return any(self.find(name) is self.held[actor][check[1]].node for name in names)
        if check[0] == "names":
            return any(_split(name)[0] == check[1] for name in names)
        node = self.find(check[1])
        return check[1] in names or (check[0] == "read" and node is not None and node.kind == stat.S_IFLNK)

    # checks

    def expected(self, actor: int, check: Check) -> dict[str, Any]:
        """Returns what an actor must see: a value, or an error's number."""
        try:
            return {"value": getattr(self, f"_see_{check[0]}")(actor, *check[1:])}
        except OSError as error:
            return {"error": error.errno}

    def _there(self, name: str) -> Node:
        node = self.find(name)
        if node is None:
            raise OSError(errno.ENOENT, name)
        return node

    def _see_stat(self, actor: int, name: str) -> dict[str, int]:
        return self._there(name).shown()

    def _see_fstat(self, actor: int, slot: int) -> dict[str, int]:
        return self.held[actor][slot].node.shown()

    def _see_read(self, actor: int, name: str) -> list[object]:
        for _ in range(41):
            node = self._there(name)
            if node.kind == stat.S_IFDIR:
                raise OSError(errno.EISDIR, name)
            if node.kind == stat.S_IFREG:
                return digest(node.data)
            name = "/".join(filter(None, (_split(name)[0], node.data.decode())))  # its target is in its own directory
        raise OSError(errno.ELOOP, name)

    def _see_pread(self, actor: int, slot: int) -> list[object]:
        return digest(self.held[actor][slot].node.data)

    def _see_map(self, actor: int, slot: int, size: int) -> list[object]:
        return digest(self.held[actor][slot].node.data[:size])

    def _see_names(self, actor: int, name: str) -> list[str]:
        return sorted([*self.directories[name], *(["d"] if name == "" else [])])

    def _see_readlink(self, actor: int, name: str) -> str:
        node = self._there(name)
        if node.kind != stat.S_IFLNK:
            raise OSError(errno.EINVAL, name)
        return node.data.decode()

    def _see_xattr(self, actor: int, name: str, attribute: str) -> str:
        node = self._there(name)
        if attribute not in node.attributes:
            raise OSError(errno.ENODATA, attribute)
        return node.attributes[attribute]


class Chance:
    """Random changes and checks; the same again with the same seed."""

    def __init__(self, seed: int, attributes: bool, maps: bool) -> None:
        self.random = random.Random(seed)
        self.attributes, self.maps = attributes, maps

    def text(self, most: int = LARGEST) -> str:
        size = min(most, self.random.choice((1, 10, 100, 4096, self.random.randrange(1, most))))
        start = self.random.randrange(1 << 30)
        piece = f"{start:x}-{TEXT}"
        return (piece * (size // len(piece) + 1))[:size]

    def change(self, tree: Tree, actor: int, without: frozenset[str] = frozenset()) -> Change:
        """Returns a change that this actor can make, to no file of which a name is in `without`."""
        while True:
            makers = list(self._changes(tree, actor))
            change = self.random.choice(makers)()
            names, _ = tree.touched(actor, change)
            if not names & without:
                return change

    def _changes(self, tree: Tree, actor: int) -> Iterator[Callable[[], Change]]:
        pick, number = self.random.choice, self.random.randrange
        files, links = tree.entries(stat.S_IFREG), tree.entries(stat.S_IFLNK)
        all_names = [f"{directory}/{name}" if directory else name for directory in DIRECTORIES for name in NAMES]
        free = [name for name in all_names if tree.find(name) is None]
        if free:
            yield lambda: ["create", pick(free), self.text(), pick(MODES)]
            yield lambda: ["mkdir", pick(free)]
            yield lambda: ["symlink", pick(NAMES), pick(free)]
        if directories := tree.entries(stat.S_IFDIR):
            yield lambda: ["rmdir", pick(directories)]
            if free:
                yield lambda: ["rename", pick(directories), pick(free)]
        if files or links:
            yield lambda: ["unlink", pick([*files, *links])]
        if files:
            yield lambda: ["replace", pick(files), self.text()]
            yield lambda: ["write", pick(files), number(LARGEST // 2), self.text(LARGEST // 2)]
            yield lambda: ["append", pick(files), self.text(1000)]
            yield lambda: ["truncate", pick(files), number(LARGEST)]
            yield lambda: ["chmod", pick(files), pick(MODES)]
            yield lambda: ["utimes", pick(files), number(1 << 30) * 10**9 + number(10**9)]
            yield lambda: ["rename", pick(files), pick([*files, *links, *free])]
            yield lambda: ["exchange", pick(files), pick([*files, *links])]
            if free:
                yield lambda: ["rename", pick([*files, *links]), pick(free)]
                yield lambda: ["link", pick(files), pick(free)]
        if files and self.attributes:
            yield lambda: ["setxattr", pick(files), pick(ATTRIBUTES), self.text(100)]
            if named := [(name, one) for name in files for one in tree.at(name).attributes]:
                yield lambda: ["removexattr", *pick(named)]
        if writable := [slot for slot, held in tree.held[actor].items() if held.writable]:
            yield lambda: ["pwrite", pick(writable), number(LARGEST // 2), self.text(LARGEST // 2)]
            yield lambda: ["ftruncate", pick(writable), number(LARGEST)]

    def hold(self, tree: Tree) -> Change | None:
        """A file to be held by an actor, or not any more."""
        pick = self.random.choice
        slot, files = self.random.randrange(3), tree.entries(stat.S_IFREG)
        if not files or self.random.random() < 0.2:
            return ["release", slot]
        name = pick(files)
        mapped = len(tree.at(name).data) if self.maps and self.random.random() < 0.5 else 0
        return ["hold", slot, name, self.random.random() < 0.4, mapped]

    def checks(
        self, before: Tree, after: Tree, writer: int, change: Change, actor: int, without: frozenset[str], count: int = 5
    ) -> list[Check]:
        """Returns what an actor has to check before and after the writer's change: above all what the change touches."""
        pick = self.random.choice
        names, nodes = before.touched(writer, change)
        more, _ = after.touched(writer, change)
        possible: list[Check] = []
        for name in sorted(names | more):
            possible += [["stat", name], ["read", name], ["names", _split(name)[0]], ["readlink", name]]
            if self.attributes:
                possible.append(["xattr", name, change[2] if change[0].endswith("xattr") else pick(ATTRIBUTES)])
        for slot, held in before.held[actor].items():
            own: list[Check] = [["fstat", slot], ["pread", slot]]
            if size := min(held.mapped, len(held.node.data), len(after.held[actor][slot].node.data)):
                own.append(["map", slot, size])
            possible += own * (2 if held.node in nodes else 1)
        possible += [["stat", pick(NAMES)], ["read", "d/" + pick(NAMES)], ["names", pick(DIRECTORIES)]]
        if without:
            possible = [check for check in possible if not any(tree.concerned(actor, check, without) for tree in (before, after))]
        self.random.shuffle(possible)
        return possible[:count]
