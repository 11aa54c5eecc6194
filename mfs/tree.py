"""The directory /mfs: a small file system of our own in which every node has a directory, on which its files are mounted.

This node's own are a bind mount: they are as quick as without it. `here` and `home` lead to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from mfs import mounts

SOURCE = "farhome-mfs"
LINKS = ("here", "home")
KERNELS_OWN = frozenset({
    "proc", "sysfs", "devpts", "debugfs", "tracefs", "securityfs", "cgroup", "cgroup2", "bpf", "efivarfs", "binfmt_misc", "mqueue",
    "configfs", "fusectl", "pstore", "selinuxfs", "nsfs",
})  # fmt: skip
"""Kinds of file systems that describe a kernel, and hold no files: they are not shown to others (the same in
kernel_helpers/mfs/server/files/exports.c)."""

log = logging.getLogger("mosd.mfs")


class Tree:
    """The tree at that directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        """An empty tree, whatever was left of one before. Errors: OSError."""
        self.remove()
        self.root.mkdir(mode=0o755, exist_ok=True)
        mounts.mount(SOURCE, self.root, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=755,size=1m")

    def show_here(self, name: str, exports: Iterable[tuple[str, bool]], hidden: Iterable[Path], *, setuid: bool) -> None:
        """Shows what this node exports, (directory, whether read-only), as its own part of the tree, without what is hidden from others.
        Errors: OSError."""
        own = self.place(name)
        for directory, read_only in exports:
            point = own if directory == "/" else own / directory[1:]
            point.mkdir(parents=True, exist_ok=True)
            mounts.bind(directory, point, read_only=read_only, setuid=setuid)
        for kernels in [mount.point for mount in mounts.mounts(str(own)) if mount.kind in KERNELS_OWN]:
            mounts.detach(kernels)
        mounts.detach(Path(f"{own}{self.root}"))  # the tree is not within itself
        for secret in hidden:
            place = Path(f"{own}{secret}")
            if secret != self.root and place.is_dir():
                mounts.mount(SOURCE, place, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_RDONLY, "mode=000,size=4k")
        for link in LINKS:
            if not (self.root / link).is_symlink():
                (self.root / link).symlink_to(name)

    def place(self, name: str) -> Path:
        """Return the directory of that node, made if need be. Errors: OSError."""
        place = self.root / name
        if name not in [entry.name for entry in self.root.iterdir()]:  # one that is dead cannot be asked itself
            place.mkdir()
        return place

    def unmount(self, name: str) -> None:
        """What is mounted in that node's place is not any more; processes that wait there get an error. No error."""
        place = str(self.root / name)
        for mount in reversed(mounts.mounts(place)):
            if mount.kind == mounts.MFS:
                mounts.abort(mount.device)
            mounts.detach(mount.point)

    def drop(self, name: str) -> None:
        """The node has no place any more. No error."""
        self.unmount(name)
        try:
            (self.root / name).rmdir()
        except OSError as error:
            log.warning("%s/%s stays: %s", self.root, name, error)

    def remove(self) -> None:
        """All that is there goes. No error."""
        for mount in reversed(mounts.mounts(str(self.root))):
            if mount.kind == mounts.MFS:
                mounts.abort(mount.device)
            if mount.point != str(self.root) or mount.source == SOURCE:
                mounts.detach(mount.point)
