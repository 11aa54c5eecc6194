"""The command line of a guest's remote (remote/__main__.py)."""

from __future__ import annotations

from pathlib import Path

from balancer.lending.policy import LendingPolicy
from node.common.config import Config
from node.common.paths import Paths
from node.guests.guest import Guest


def remote_options(guest: Guest, config: Config, paths: Paths, policy: LendingPolicy, socket: Path, secret: int, cgroup: str) -> list[str]:
    """Return all of it that does not depend on other guests. secret: a descriptor."""
    return [
        "--home", guest.home, "--pid", str(guest.pid), "--socket", str(socket), "--secret-fd", str(secret), "--address", config.address,
        "--node", config.name, "--link-timeout", str(config.link_timeout), "--interception", config.interception, "--cgroup", cgroup,
        "--engines", ",".join(sorted(policy.engines)), "--images", str(paths.images), "--cache", str(paths.cache),
        *(["--pki", str(paths.pki), "--direct-after", str(config.mfs.direct_after)] if config.mfs.is_direct else []),
        *(["--own-files", str(paths.mfs / config.name)] if config.mfs.is_direct else []),
        "--announced", str(guest.memory),
        *(["--root-counts"] if config.mfs.trusts_root_of(guest.home) else []),
        *([] if config.encryption else ["--plain"]),
    ]  # fmt: skip
