"""sshfs between nodes of a lab, the way people reach another machine's files without farhome: what bench mfs compares with.

The home node gets an sshd of its own with keys made for it, and beside it a bare sftp-server that anybody may speak to over plain TCP, for
comparisons in which neither side encrypts. All of it ends with the lab.
"""

from __future__ import annotations

import shutil
import subprocess
from types import TracebackType
from typing import TYPE_CHECKING

from bench.common.nodes import INSIDE, ROOT, checked, wait_until
from bench.common.peers import find, require
from bench.common.result import BenchFailed

if TYPE_CHECKING:
    from lab import Node
    from lab.node import NodeProcess

PORT, BARE_PORT = 22, 2222
KEYS = "/run/sshfs-keys"
SFTP_SERVER = "/usr/lib/openssh/sftp-server"
UNPACKED = ".build/openssh/usr/sbin/sshd"
PROGRAMS = ("sshfs", "ssh-keygen", "ssh", SFTP_SERVER)
#: sshd wants a user of its own, which a machine without it lacks; the node sees a copy of the list that has one.
USER = "sshd:x:64999:64999::/run/sshd:/usr/sbin/nologin"
CONFIGURATION = f"""Port {PORT}
HostKey {KEYS}/host
AuthorizedKeysFile {KEYS}/user.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
Subsystem sftp {SFTP_SERVER}
"""


def installed() -> None:
    """Installs what is lacking. Errors: BenchFailed."""
    sshd = str(ROOT / UNPACKED)
    require("files", [*PROGRAMS, "postmark", "sshd" if find("sshd") else sshd])


def daemon() -> str:
    """Where nodes see an sshd: the machine's, or the one that tools/peers has unpacked. Errors: BenchFailed."""
    if found := find("sshd"):
        return found
    if (ROOT / UNPACKED).exists():
        return f"{INSIDE}/{UNPACKED}"
    raise BenchFailed("there is no sshd to compare with, and tools/peers could fetch none")


class Server:
    """An sshd and a bare sftp-server on a node; a context manager."""

    def __init__(self, home: Node) -> None:
        self.home = home
        self.processes: list[NodeProcess] = []

    def __enter__(self) -> Server:
        keys = " && ".join(f"ssh-keygen -q -t ed25519 -N '' -f {KEYS}/{name}" for name in ("host", "user"))
        users = f"(cat /etc/passwd; echo '{USER}') > {KEYS}/passwd; mount --bind {KEYS}/passwd /etc/passwd"
        checked(self.home, ["sh", "-c", f"mkdir -p {KEYS} /run/sshd && {keys} && {{ grep -q ^sshd: /etc/passwd || {{ {users}; }}; }}"])
        (self.home.root / f"{KEYS[1:]}/config").write_text(CONFIGURATION)
        bare = [f"{INSIDE}/.venv/bin/python", "-I", f"{INSIDE}/bench/files/bare_sftp.py", self.home.address, str(BARE_PORT), SFTP_SERVER]
        for argv in ([daemon(), "-D", "-f", f"{KEYS}/config"], bare):
            self.processes.append(self.home.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        listening = f"ss -Hltn | grep -q ':{PORT} ' && ss -Hltn | grep -q ':{BARE_PORT} '"
        wait_until(lambda: self.home.run(listening).returncode == 0, "an sshd")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)

    def mount(self, node: Node, directory: str, point: str, *options: str, encrypted: bool = True) -> None:
        """Mounts a directory of home's in another node. `options` are sshfs's. Errors: BenchFailed."""
        theirs, user = [*options, "allow_other"], ""
        if encrypted:
            user = "root@"
            key = node.root / f"{KEYS[1:]}/user"
            key.parent.mkdir(exist_ok=True)
            shutil.copy(self.home.root / f"{KEYS[1:]}/user", key)
            key.chmod(0o600)
            theirs += [f"IdentityFile={KEYS}/user", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
        else:
            theirs += [f"directport={BARE_PORT}"]
        checked(node, ["mkdir", "-p", point])
        checked(node, ["sshfs", f"{user}{self.home.address}:{directory}", point, *(word for one in theirs for word in ("-o", one))])
        wait_until((node.root / point.lstrip("/")).is_mount, f"the mount of {point}")
