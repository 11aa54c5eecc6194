"""mosd with the tests' own deputy and remote (program.py): all the rest is the real one."""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path

import uvloop
from cryptography import x509

from cli.common.command import run
from node import daemon
from node.common import config
from node.common.paths import Paths
from node.programs.programs import Programs


def _bar(*_: object) -> None:
    raise AssertionError("mosd reads what a stranger has sent")


# What has rights reads none of these: the front does, which is another program.
sys.modules["balancer.gossip.opening"] = sys.modules["node.cluster.front.reading"] = None  # type: ignore[assignment]
for _parser in ("load_pem_x509_csr", "load_der_x509_csr", "load_der_x509_certificate"):
    setattr(x509, _parser, _bar)
_PROGRAM = (sys.executable, "-P", "-s", str(Path(__file__).with_name("program.py")))


def body(_: object) -> int:
    paths = Paths.from_environment()
    settings = config.load(paths.config)
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(levelname)s %(name)s: %(message)s")

    async def serve() -> None:
        await daemon.Daemon(paths, settings, Programs((*_PROGRAM, "deputy"), (*_PROGRAM, "remote"))).run()

    uvloop.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(functools.partial(run, "mosd", body)())
