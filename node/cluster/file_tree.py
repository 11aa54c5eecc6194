"""The cluster file tree as mosd keeps it: the server of this node's files, and a mount for each peer that is known."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_helpers.common.errors import FarhomeError
from mfs import figures
from mfs.programs import Helper, HelperFailed
from mfs.settings import Settings
from mfs.tree import Tree
from node.cluster.front.connections import PeerError
from node.cluster.keys.pki import KeyStore
from node.cluster.peers import Peers
from node.common.config import Config
from node.common.paths import Paths, write_atomically

PERIOD = 0.5
SERVERS_OWN = (".nodes", ".files", ".done")
NOT_OURS = (Path("/"), Path("/etc"))
"""Directories that a configuration may be in, and are not farhome's."""
PEER_TIMEOUT = 5.0
"""Seconds that a peer has to report where its server is."""

Place = tuple[str, int]
log = logging.getLogger("mosd.mfs")


class FileTree:
    """/mfs of this node."""

    def __init__(
        self, paths: Paths, config: Callable[[], Config], keys: KeyStore, peers: Peers, known: Callable[[], dict[str, tuple[str, int]]]
    ) -> None:
        """known: names and addresses of the nodes that are known, this one perhaps among them."""
        self._paths = paths
        self._config = config
        self._keys = keys
        self._peers = peers
        self._known = known
        self._tree = Tree(paths.mfs)
        self._server: Helper | None = None
        self._clients: dict[str, Helper] = {}
        self._places: dict[str, Place] = {}
        self._mounted: dict[str, Place] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._made_for: Settings | None = None
        self._complaint = ""
        self._changing = asyncio.Lock()

    def port(self) -> int:
        """Return where peers find this node's files; 0: nowhere."""
        settings = self._config().mfs
        return settings.port if settings.works else 0

    def learn(self, name: str, address: object, port: object) -> None:
        """A peer has reported where its files are."""
        if isinstance(address, str) and isinstance(port, int) and 0 <= port < 65536:
            self._places[name] = (address, port)

    def forget(self, name: str) -> None:
        """A peer was taken out of the cluster."""
        self._places.pop(name, None)

    # -- what there is, and what there should be ------------------------------------------------------------------------------

    async def poll(self) -> None:
        """Starts what should run, ends what should not."""
        async with self._changing:
            try:
                await self._follow()
                self._complaint = ""
            except (FarhomeError, OSError) as error:
                if str(error) != self._complaint:
                    log.warning("the file tree is not whole: %s", error)
                self._complaint = str(error)

    async def _follow(self) -> None:
        settings = self._config().mfs if self._keys.exists() else None
        if settings is not None and not settings.works:
            settings = None
        if settings != self._made_for:
            await self._end_all()
        if settings is None:
            return
        if self._made_for is None:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._forget_other_exports(settings)
            self._tree.make()
            self._tree.show_here(self._config().name, settings.shown(), self._hidden(), setuid=settings.setuid)
            self._made_for = settings
        if self._server is None or not self._server.runs:
            self._server = await self._start_server(settings)
        await self._follow_peers(settings)

    async def _follow_peers(self, settings: Settings) -> None:
        known = {name for name in self._known() if name != self._config().name}
        for name in known - set(self._places):
            self._ask(name)
        for name, client in list(self._clients.items()):
            if not client.runs or name not in known or self._mounted[name] != self._places.get(name):
                await self._end_client(name, stays=name in known)
        complaints = []
        for name in sorted(known & set(self._places) - set(self._clients)):
            if self._places[name][1]:
                try:
                    await self._start_client(name, settings)
                except HelperFailed as error:
                    complaints.append(str(error))  # the files of all others are there
        if complaints:
            raise HelperFailed("; ".join(complaints))

    def _ask(self, name: str) -> None:
        """Asks a peer where its files are, beside everything else: it may be dead."""
        if name not in self._asking:
            self._asking[name] = task = asyncio.get_running_loop().create_task(self._ask_where(name))
            task.add_done_callback(lambda _: self._asking.pop(name))

    async def _ask_where(self, name: str) -> None:
        try:
            async with asyncio.timeout(PEER_TIMEOUT):
                hello = (await self._peers.connection(name)).hello
        except (PeerError, TimeoutError) as error:
            log.debug("%s does not say where its files are: %s", name, error)
            return
        self.learn(name, hello.get("address"), hello.get("mfs_port", 0))

    # -- programs --------------------------------------------------------------------------------------------------------------

    @property
    def _directory(self) -> Path:
        return self._paths.run / "mfs"

    def _forget_other_exports(self, settings: Settings) -> None:
        """What a server before this one has promised peers is good only if it showed the same, to the same: else they would keep what they
        have in hand."""
        shown, note = json.dumps([settings.shown(), settings.root, [*map(str, self._hidden())]]).encode(), self._directory / "exports"
        if not note.exists() or note.read_bytes() != shown:
            for old in self._directory.iterdir():
                if old.suffix in SERVERS_OWN:
                    old.unlink()
            write_atomically(note, shown)

    def _hidden(self) -> list[Path]:
        """What is never shown, without links: the tree itself, keys, state, configuration, and what is kept while the node is up."""
        paths, keys = self._paths, self._keys.directory
        configuration = paths.config if paths.config.parent in NOT_OURS else paths.config.parent
        named = [paths.mfs, paths.run, paths.state, configuration, keys, *([paths.config] if paths.config.is_symlink() else [])]
        return sorted({place for path in named for place in (path.absolute(), path.resolve())})

    async def _start_server(self, settings: Settings) -> Helper:
        exports = list[str]()
        for path, read_only in settings.shown():
            exports += ["--read-only" if read_only else "--export", path]
        for hidden in self._hidden():
            exports += ["--hide", str(hidden)]
        for node in settings.root:
            exports += ["--root-of", node]
        plain = [] if settings.encryption else ["--plain"]
        return await Helper.start(
            "mfs-server", "mfs-server",
            ["--listen", self._config().address, "--port", str(settings.port), "--pki", self._keys.directory, "--run", self._directory,
             *exports, *plain],
        )  # fmt: skip

    async def _start_client(self, name: str, settings: Settings) -> None:
        address, port = self._places[name]
        flags = [*(["--setuid"] if settings.setuid else []), *([] if settings.encryption else ["--plain"])]
        self._clients[name] = await Helper.start(
            "mfs-client", f"mfs-client {name}",
            ["--mount", self._tree.place(name), "--peer", name, "--address", address, "--port", str(port), "--pki", self._keys.directory,
             "--figures", self._figures(name), "--timeout", str(settings.timeout), *flags],
        )  # fmt: skip
        self._mounted[name] = (address, port)

    def _figures(self, name: str) -> Path:
        return self._directory / f"{name}.figures"

    async def _end_client(self, name: str, *, stays: bool) -> None:
        client = self._clients.pop(name)
        self._mounted.pop(name, None)
        if not client.runs:
            log.warning("%s has ended", client.name)
        client.hang_up()
        self._tree.unmount(name)  # processes that wait for it go on, even if this fails
        await client.end()
        if not stays:
            self._tree.drop(name)
            self._places.pop(name, None)

    async def _end_all(self) -> None:
        await asyncio.gather(*(self._end_client(name, stays=True) for name in list(self._clients)))
        if self._server is not None:
            await self._server.end()
            self._server = None
        if self._made_for is not None:
            self._tree.remove()
            self._made_for = None

    async def close(self) -> None:
        """Nothing is mounted any more."""
        for task in self._asking.values():
            task.cancel()
        async with self._changing:
            await self._end_all()

    # -- reports ---------------------------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Of the server and the clients."""
        programs = [*self._clients.values(), *([self._server] if self._server is not None else [])]
        return [program.pid for program in programs if not program.has_ended]

    def row(self) -> dict[str, Any]:
        """Return what `mosctl mfs status` shows."""
        settings = self._config().mfs
        mounts = [
            {"node": name, "path": str(self._paths.mfs / name), "pid": client.pid, **figures.of_client(self._figures(name))}
            for name, client in sorted(self._clients.items())
        ]
        return {
            "enabled": self._made_for is not None, "root": str(self._paths.mfs), "own": self._config().name, "port": settings.port,
            "encryption": settings.encryption, "root_of": settings.root,
            "exports": [{"path": path, "read_only": only} for path, only in settings.shown()],
            "server": self._server.pid if self._server is not None and self._server.runs else 0,
            "mounts": mounts, "served": figures.of_server(self._directory / "server.figures"), "complaint": self._complaint,
        }  # fmt: skip
