"""Several nodes on one machine for tests: each has a loopback address, a run, a state and a configuration directory of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from lab.cluster import fill
from lab.node import ask
from node.cluster.keys.pki import KeyStore
from node.guests.cgroups import BASE, GuestGroups

ROOT = Path(__file__).resolve().parents[2]
PORT = 7226
NO_FILES = "[mfs]\nenabled = false\n"
"""These nodes share their directories, /mfs among them."""


def wait_for(what: Callable[[], Any], timeout: float = 15.0, message: str = "") -> Any:
    """The first true value of what(). Errors: AssertionError after timeout seconds."""
    deadline = time.monotonic() + timeout
    while True:
        if value := what():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {message or what}")
        time.sleep(0.02)


class Node:
    """One node. The daemon is the real one; with real=False its deputies and remotes are those of program.py."""

    def __init__(self, base: Path, name: str, network: str, number: int, settings: str = "") -> None:
        self.name = name
        self.address = f"{network}.{number}"
        self.base = base / name
        self.base.mkdir()
        self.run = self.base / "run"
        self.log = self.base / "log"
        self.log.touch()
        self.daemon: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ, "FARHOME_RUN": str(self.run), "FARHOME_STATE": str(self.base / "state"),
            "FARHOME_CONFIG": str(self.base / "node.toml"), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        self.peers = [f"{network}.1:{PORT}"]
        self.configure(settings)

    def configure(self, settings: str = "") -> None:
        """Writes the configuration; settings are further lines (top-level keys first)."""
        (self.base / "node.toml").write_text(
            f'name = "{self.name}"\naddress = "{self.address}"\npeers = {json.dumps(self.peers)}\nspeed = 1.0\n{settings}\n{NO_FILES}'
        )

    def command(self, *argv: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Runs a command of farhome on this node."""
        program = [str(ROOT / "bin" / "mosrun")] if argv[0] == "mosrun" else [sys.executable, "-P", "-m", f"cli.{argv[0]}"]
        return subprocess.run(
            [*program, *argv[1:]], env=self.environment, cwd="/", text=True, capture_output=True, timeout=timeout, check=False
        )

    def ok(self, *argv: str) -> str:
        """The output of a command that must succeed."""
        done = self.command(*argv)
        assert done.returncode == 0, (argv, done.returncode, done.stderr, self.log.read_text()[-3000:])
        return done.stdout

    def start(self) -> None:
        """Starts the daemon and waits until it answers."""
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("mosd_for_tests.py"))],
                env=self.environment, stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        wait_for(lambda: " is ready " in self.log.read_text().rpartition("start of test daemon")[2] and (self.run / "mosd.sock").exists())

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Ends the daemon."""
        if self.daemon is not None:
            self.daemon.send_signal(number)
            self.daemon.wait(10)
            self.daemon = None

    def restart(self) -> None:
        """Kills the daemon and starts another."""
        self.kill()
        with self.log.open("a") as log:
            log.write("start of test daemon\n")
        self.start()

    def processes(self) -> list[dict[str, Any]]:
        """Returns the output of mosps."""
        return list(self.ask("ps", all=True)["processes"])

    def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Returns the daemon's answer to a command, without starting the command: it is polled."""
        answer = ask(self.run / "mosd.sock", operation, 30.0, **fields)
        assert answer.get("ok"), (operation, answer, self.log.read_text()[-3000:])
        return answer

    def process(self, pid: int) -> dict[str, Any]:
        """Returns the row of one process."""
        return next(row for row in self.processes() if row["pid"] == pid)

    def guests(self) -> list[str]:
        """Keys of the guests here."""
        return [guest["key"] for guest in self.ask("ps", guests=True)["guests"]]

    def nodes(self) -> set[str]:
        """Names of the nodes that this one has a load vector of."""
        return {node["name"] for node in self.ask("nodes")["nodes"]}

    def mosrun(self, *argv: str) -> subprocess.Popen[bytes]:
        """A process under mosrun."""
        return subprocess.Popen([ROOT / "bin" / "mosrun", *argv], env=self.environment, cwd="/", stdin=subprocess.DEVNULL)

    def wait_started(self, pid: int) -> None:
        """Waits until mosrun has registered itself and executed the program."""
        wait_for(lambda: any(row["pid"] == pid and row["state"] != "starting" for row in self.processes()))

    def behave(self, **behaviour: str) -> None:
        """Sets the behaviour of the tests' deputies and remotes from now on."""
        (self.run / "behaviour").write_text(json.dumps(behaviour))

    def programs(self) -> list[int]:
        """Pids of the deputies and remotes of this node."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"program.py" in words and str(self.run).encode() in words:
                found.append(int(entry.name))
        return found


class Cluster:
    """Nodes n1, n2, … of one cluster, all known to one another."""

    def __init__(self, base: Path, count: int, settings: str = "[balance]\nenabled = false", days: float | None = None) -> None:
        """days: that certificates last."""
        self.network = f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}"
        self.base = base
        self.settings = settings
        self.children: list[subprocess.Popen[bytes]] = []
        self._had: set[int] = set()
        self.nodes: list[Node] = []
        try:
            self.nodes = [Node(self.base, f"n{number}", self.network, number, settings) for number in range(1, count + 1)]
            fill({node.name: KeyStore(node.base / "state" / "pki") for node in self.nodes}, days)
            with ThreadPoolExecutor(max_workers=count) as pool:
                for started in [pool.submit(node.start) for node in self.nodes]:
                    started.result()
            wait_for(lambda: all(len(node.nodes()) == count for node in self.nodes), message="all nodes know one another")
        except BaseException:
            self.down()
            raise

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number - 1]

    def spawn(self, node: Node, *argv: str) -> int:
        """The pid of a process under mosrun, ended with the cluster."""
        child = node.mosrun(*argv)
        self.children.append(child)
        node.wait_started(child.pid)
        return child.pid

    def clear(self) -> None:
        """Ends what runs under it, and makes its nodes what they were in the beginning."""
        self._end_processes()
        for node in self.nodes:
            (node.run / "behaviour").unlink(missing_ok=True)
            node.configure(self.settings)
            if node.daemon is None:
                node.restart()
            node.ask("reload")
            node.ask("unblock")
        for node in self.nodes:
            wait_for(partial(self._is_as_new, node, len(self.nodes)), message=f"{node.name} has nothing and knows all others")

    def _end_processes(self) -> None:
        for child in self.children:
            child.kill()
            child.wait(10)
        self._had |= {child.pid for child in self.children}
        self.children.clear()
        for node in self.nodes:
            wait_for(partial(self._ended, node), message="deputies and remotes end")

    def down(self) -> None:
        """Ends everything."""
        self._end_processes()
        for node in self.nodes:
            try:
                if node.daemon is not None:
                    wait_for(partial(self._has_no_guest, node), message="guests are gone")
            finally:
                node.kill(signal.SIGTERM)
        for group in Path("/sys/fs/cgroup").glob(f"*/{BASE}/n[0-9]-*"):
            if int(group.name.rpartition("-")[2]) in self._had:
                group.rmdir()  # a daemon that was killed could not
        GuestGroups().remove_all()

    def _is_as_new(self, node: Node, count: int) -> bool:
        return self._has_no_guest(node) and not node.processes() and len(node.nodes()) == count

    @staticmethod
    def _has_no_guest(node: Node) -> bool:
        return not list((node.run / "guests").glob("*"))  # none: it has never begun

    @staticmethod
    def _ended(node: Node) -> bool:
        for pid in node.programs():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not node.programs()
