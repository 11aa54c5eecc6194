"""Running programs inside a virtual node."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

from kernel_helpers.common.library import build_directory
from lab import cgroups, state
from lab.state import LabError, NodeState

PATH = "/opt/farhome/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT = Path(__file__).resolve().parent.parent
_KEPT = ("FARHOME_LOG", "TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "FARHOME_TEST_RUN", "FARHOME_STEPS")


class NodeProcess(subprocess.Popen[Any]):
    """A program in a node. Like Popen; signals reach the program itself, not the `enter` that brought it there."""

    _host_pid: int | None = None

    @property
    def host_pid(self) -> int:
        """Its process id as the host sees it. Errors: ProcessLookupError when it has ended already."""
        deadline = time.monotonic() + 10
        while self._host_pid is None:
            try:
                children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            except FileNotFoundError:
                children = []
            if children:
                self._host_pid = int(children[0])
            elif self.poll() is not None or time.monotonic() > deadline:
                raise ProcessLookupError(f"no process in the node behind {self.args!r}")
            else:
                time.sleep(0.001)
        return self._host_pid

    @property
    def node_pid(self) -> int:
        """Its process id as the node sees it. Errors: ProcessLookupError when it has ended already."""
        try:
            status = Path(f"/proc/{self.host_pid}/status").read_text()
        except FileNotFoundError as error:
            raise ProcessLookupError(f"{self.args!r} has ended") from error
        return next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))

    def send_signal(self, sig: int) -> None:
        """Send it to the program, if it still runs."""
        try:
            if self.poll() is None:
                os.kill(self.host_pid, sig)
        except ProcessLookupError:
            pass


class Node:
    """A node of a lab that is up; made by ``Lab.node``."""

    def __init__(self, lab: str, name: str) -> None:
        self.lab = lab
        self.name = name

    @property
    def state(self) -> NodeState:
        """Its process 1, address and so on. Errors: LabError when there is no such node."""
        lab = state.load(self.lab)
        if lab is None:
            raise LabError(f"lab {self.lab} is not up.")
        if self.name not in lab.nodes:
            raise LabError(f"lab {self.lab} has no node {self.name}, it has {', '.join(lab.nodes)}.")
        return lab.nodes[self.name]

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return self.state.address

    @property
    def root(self) -> Path:
        """The node's file system as a path of the host, for looking at its /tmp, /run and so on from outside."""
        return Path(f"/proc/{self.state.pid}/root")

    def is_alive(self) -> bool:
        """Return whether it is up."""
        return self.state.is_alive()

    def command(self, argv: Sequence[str] | str, user: str | None = None, cwd: str = "/tmp") -> list[str]:
        """Return the command line that, run on the host, runs ``argv`` in the node (a string: by sh -c).

        Errors: LabError when the node is dead or there is no such user.
        """
        current = self.state
        if not current.is_alive():
            raise LabError(f"node {self.name} of lab {self.lab} is dead.")
        entry = _user(user)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        ordered = [entry.pw_gid, *(group for group in groups if group != entry.pw_gid)]
        return [
            str(build_directory() / "enter"),
            str(current.pid),
            str(entry.pw_uid),
            ",".join(map(str, ordered)),
            cwd,
            *map(str, cgroups.process_directories(self.lab, self.name)),
            "--",
            *(["/bin/sh", "-c", argv] if isinstance(argv, str) else map(str, argv)),
        ]

    def popen(
        self,
        argv: Sequence[str] | str,
        *,
        user: str | None = None,
        cwd: str = "/tmp",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> NodeProcess:
        """Start a program in the node; ``options`` are Popen's. Without ``stdin`` it reads /dev/null.

        The environment is a small fixed one, with ``env`` added.
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        return NodeProcess(self.command(argv, user, cwd), env=environment(user, env), **options)

    def run(
        self,
        argv: Sequence[str] | str,
        *,
        user: str | None = None,
        timeout: float = 60.0,
        input: str | bytes | None = None,
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program in the node to its end, like subprocess.run; its output is captured unless ``options`` send it elsewhere.

        Errors: subprocess.TimeoutExpired (it is killed), and with ``check`` subprocess.CalledProcessError.
        """
        if not {"stdout", "stderr"} & set(options) and options.pop("capture_output", True):
            options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.popen(argv, user=user, **options)
        try:
            output, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            try:
                process.communicate(timeout=5)  # bounded: a grandchild may keep the pipes open
            except subprocess.TimeoutExpired:
                pass
            raise
        result = subprocess.CompletedProcess(argv, process.returncode, output, errors)
        if check:
            result.check_returncode()
        return result

    def start_mosd(self, timeout: float = 100.0) -> int:
        """Start the node daemon, detached, wait until it takes commands; its process id in the node.

        Errors: LabError with the end of its log when it does not come up.
        """
        self.run(
            "mkdir -p /run/farhome && rm -f /run/farhome/mosd.sock; exec >>/run/farhome/mosd.log 2>&1;"
            " setsid mosd --config /etc/farhome/node.toml </dev/null & echo $! >/run/farhome-lab.mosd",
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        pid = int((self.root / "run/farhome-lab.mosd").read_text())
        deadline = time.monotonic() + timeout
        while not self.mosd_answers():
            if time.monotonic() > deadline or not (self.root / f"proc/{pid}").exists():
                log = self.root / "run/farhome/mosd.log"
                last = log.read_text(errors="replace").strip().splitlines()[-5:] if log.exists() else []
                raise LabError(f"mosd on {self.name} does not come up: {' | '.join(last) or 'it says nothing'}")
            time.sleep(0.01)
        return pid

    def mosd_answers(self) -> bool:
        """Return whether the node daemon takes connections on its control socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            try:
                client.connect(str(self.root / "run/farhome/mosd.sock"))
            except OSError:
                return False
        return True

    def ask_mosd(self, operation: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
        """Return what the node daemon answers on its control socket (to root). Errors: LabError when it does not."""
        return ask(self.root / "run/farhome/mosd.sock", operation, timeout, **fields)

    def signal_mosd(self, sig: int) -> int:
        """Signal the node daemon that ``start_mosd`` started. Return its pid in the node."""
        pid = int((self.root / "run/farhome-lab.mosd").read_text())
        self.run(["kill", f"-{int(sig)}", str(pid)])
        return pid

    def stop_mosd(self, sig: int = signal.SIGTERM, timeout: float = 10.0) -> None:
        """Signal the node daemon that ``start_mosd`` started, and wait until it is gone. Errors: LabError."""
        pid = self.signal_mosd(sig)
        deadline = time.monotonic() + timeout
        while (self.root / f"proc/{pid}").exists():
            if time.monotonic() > deadline:
                raise LabError(f"mosd on {self.name} does not end on signal {int(sig)}.")
            time.sleep(0.005)


def ask(control: Path, operation: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
    """Return what a node daemon answers on its control socket. Errors: LabError when it does not."""
    body = msgpack.packb({"op": operation, **fields})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        try:
            client.connect(str(control))
            client.sendall(len(body).to_bytes(4, "big") + body)
            with client.makefile("rb") as stream:
                answer: dict[str, Any] = msgpack.unpackb(stream.read(int.from_bytes(stream.read(4), "big")))
        except (OSError, ValueError) as error:
            raise LabError(f"mosd behind {control} does not answer: {error}") from error
    return answer


def environment(user: str | None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a program in a node finds in its environment."""
    entry = _user(user)
    kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
    own = {"PATH": PATH, "HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
    return {**kept, **own, **(extra or {})}


def terminal_command(argv: Sequence[str]) -> list[str]:
    """``argv`` on a terminal of the node's own, which the caller's terminal is joined to; keeps its exit status."""
    return ["script", "--quiet", "--return", "--command", shlex.join(argv), "/dev/null"]


def _user(name: str | None) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name or "root")
    except KeyError as error:
        raise LabError(f"there is no user {name}.") from error
