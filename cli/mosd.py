"""mosd: the node daemon. One per node, as root, in the foreground; systemd or the lab starts it."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence

from cli.common.command import Parser, run
from cli.common.exit_codes import NOT_PERMITTED, OK
from node.programs import forked
from node.programs.priority import come_first
from wire.logs import Lines
from wire.resources import allow_many_descriptors


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = Parser(
        "mosd",
        "The node daemon of farhome: peers, lending, balancing, moves. Runs in the foreground until SIGTERM; SIGHUP reloads.",
        "  mosd --check       only says whether the configuration is usable\n  mosd               runs with /etc/farhome/node.toml\n",
    )
    made.add_argument("--config", metavar="FILE", help="configuration (default /etc/farhome/node.toml)")
    made.add_argument("--run", metavar="DIR", help="sockets and state until the node goes down (default /run/farhome)")
    made.add_argument("--state", metavar="DIR", help="what is kept: keys, cache (default /var/lib/farhome)")
    made.add_argument("--check", action="store_true", help="check the configuration and exit")
    made.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return made


def body(arguments: Sequence[str] | None) -> int:
    """Errors: FarhomeError, OSError."""
    options = parser().parse_args(arguments)
    gc.disable()  # all that is made until it runs stays
    # Before there is anything that is not for programs to have.
    programs = forked.begin() if not options.check and os.geteuid() == 0 else None

    import uvloop

    from node.common import config
    from node.common.names import format_endpoint
    from node.common.paths import Paths
    from node.daemon import Daemon
    from node.programs.programs import zygote

    paths = Paths.from_environment(options.config, options.run, options.state)
    settings = config.load(paths.config)
    if options.check:
        print(f"{paths.config} is fine: node {settings.name} at {format_endpoint(settings.address, settings.port)}")
        return OK
    if os.geteuid() != 0:
        print("mosd: only root can run the node daemon", file=sys.stderr)
        return NOT_PERMITTED
    if programs is not None:
        zygote.take(programs)
    # Under systemd the journal has the time already.
    stamp = "" if os.environ.get("JOURNAL_STREAM") else "%(asctime)s "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(f"{stamp}{settings.name} %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=options.log_level.upper())

    async def serve() -> None:
        daemon = Daemon(paths, settings)
        gc.freeze()
        gc.enable()
        await daemon.run()

    allow_many_descriptors()
    come_first()
    uvloop.run(serve())
    return OK


def main() -> int:
    """Run the installed program; bin/mosd has put a last word of blanks behind the others, as room (node/programs/forked.py)."""
    words = sys.argv[1:]
    if words and len(words[-1]) >= forked.TITLE_BYTES and words[-1].isspace():
        words.pop()
    code = run("mosd", body, words)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # the kernel frees what is left faster than Python


if __name__ == "__main__":
    sys.exit(main())
