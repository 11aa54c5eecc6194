"""An mfs-server of the test's own, and callers of it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernel_helpers.common.library import build_directory
from node.cluster.keys.pki import KeyStore, new_key
from tests.mfs.caller import Caller


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Served:
    """A node n1 that shows some directories, and a node n2 that asks."""

    def __init__(
        self,
        base: Path,
        exports: Sequence[Path | str],
        read_only: Sequence[Path] = (),
        hide: Sequence[Path | str] = (),
        quiet: int = 0,
        root: bool = True,
        bounds: Sequence[str] = (),
    ) -> None:
        """root: whether n2's root is root on n1; bounds: of what peers may have, smaller than as a rule."""
        self.base = base
        self.port = free_port()
        self.own, self.others = KeyStore(base / "n1"), KeyStore(base / "n2")
        self.own.init("test", "n1")
        key = new_key()
        self.others.install(key, self.own.sign(key.public_key(), "n2"), self.own.authority_certificate.read_bytes())
        (base / "run").mkdir(mode=0o700)
        self._arguments = [str(word) for path in exports for word in ("--export", path)]
        self._arguments += [str(word) for path in read_only for word in ("--read-only", path)]
        self._arguments += [str(word) for path in hide for word in ("--hide", path)]
        self._arguments += ["--root-of", "n2"] if root else []
        self._arguments += [word for bound in bounds for word in ("--bound", bound)]
        self._arguments += ["--quiet", str(quiet)] if quiet else []
        self.start()

    def keys(self, name: str) -> KeyStore:
        """Makes the keys of one more node of the cluster."""
        keys, key = KeyStore(self.base / name), new_key()
        keys.install(key, self.own.sign(key.public_key(), name), self.own.authority_certificate.read_bytes())
        return keys

    def start(self, *more: str) -> None:
        """(Again.)"""
        self.process = subprocess.Popen(
            [build_directory() / "mfs-server", "--listen", "127.0.0.1", "--port", str(self.port), "--pki", self.own.directory,
             "--run", self.base / "run", *self._arguments, *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.communicate(timeout=10)

    def caller(self, session: bytes | None = None, *, encrypted: bool = True) -> Caller:
        """A mount on n2."""
        return Caller(self.others, self.port, session=session, encrypted=encrypted)
