"""mosctl cluster: makes a cluster, lets nodes in, joins, takes nodes out."""

from __future__ import annotations

import argparse
import os

from cli.common.client import LONG, ask
from cli.common.command import Parser, add_json, print_json
from cli.common.exit_codes import NOT_PERMITTED, OK, USAGE, CommandError

LEAST_DAYS, MOST_DAYS = 0.0001, 3650


def add_parser(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command line of `mosctl cluster`."""
    cluster = verbs.add_parser("cluster", help="make a cluster, let nodes in, join", description="make a cluster, let nodes in, join")
    steps = cluster.add_subparsers(dest="step", metavar="STEP", required=True)
    init = steps.add_parser("init", help="make a cluster", description="make a cluster of which this node is the first")
    init.add_argument("--name", default="farhome", help="name of the cluster (default farhome)")
    init.add_argument("--days", type=float, help="how long certificates of nodes last, which are renewed by themselves (default 30)")
    token = steps.add_parser("token", help="let one node in", description="print a token that lets the node of that name in, once")
    token.add_argument("node", metavar="NODE", help="name of the node that is to join")
    token.add_argument("--minutes", type=float, default=60.0, help="how long it is good for (default 60)")
    join = steps.add_parser("join", help="join a cluster", description="join the cluster of a token")
    join.add_argument("token", metavar="TOKEN")
    out = "take a node out of the cluster: within seconds no node speaks to it any more, and its certificate never counts again"
    remove = steps.add_parser("remove", help="take a node out", description=out)
    remove.add_argument("node", metavar="NODE")
    add_json(remove)
    hand = "hand the authority's key over to another node, which then can let nodes in and take them out, too"
    authority = steps.add_parser("add-authority", help="let another node sign, too", description=hand)
    authority.add_argument("node", metavar="NODE")
    up = "give the authority's key up; another node must have it"
    steps.add_parser("resign", help="give the authority's key up", description=up)


def act(options: argparse.Namespace) -> int:
    """Does what was asked; returns the exit status. Errors: CommandError, FarhomeError."""
    # Keys work without a daemon, and need what no other verb does.
    from node.cluster import join
    from node.cluster.keys.pki import KeyStore
    from node.cluster.keys.tokens import Token, new_token
    from node.common import config
    from node.common.paths import Paths

    if os.geteuid() != 0:
        raise CommandError("only root may do that", NOT_PERMITTED)
    paths = Paths.from_environment()
    settings = config.load(paths.config)
    keys = KeyStore(paths.pki)
    if options.step == "init":
        if not 0 < len(options.name) <= 64 or not options.name.isprintable():
            raise CommandError("the name of a cluster has 1 to 64 printable characters", USAGE)
        if options.days is not None and not LEAST_DAYS <= options.days <= MOST_DAYS:
            raise CommandError(f"certificates last from {LEAST_DAYS} to {MOST_DAYS} days", USAGE)
        keys.init(options.name, settings.name, options.days)
        print(f"cluster {options.name}; its authority and first node is {settings.name}")
    elif options.step == "token":
        if not 0 < options.minutes <= 60 * 24 * 30:
            raise CommandError("a token is good for more than 0 minutes and at most 30 days", USAGE)
        try:
            print(new_token(keys, options.node, settings.address, settings.port, options.minutes))
        except ValueError as error:
            raise CommandError(str(error), USAGE) from None
        return OK
    elif options.step in ("remove", "add-authority", "resign"):
        return _ask_mosd(options)
    else:
        try:
            token = Token.parse(options.token)
        except ValueError as error:
            raise CommandError(str(error), USAGE) from None
        print(f"{settings.name} is in cluster {join.join(keys, paths, token, settings.name)}")
    try:
        ask("reload")
    except CommandError:
        pass  # no daemon yet: it will find the keys when it starts
    return OK


def _ask_mosd(options: argparse.Namespace) -> int:
    answer = ask("cluster", LONG, step=options.step, node=getattr(options, "node", None))
    if options.step == "remove":
        if options.json:
            print_json(answer)
            return OK
        late = f"; {', '.join(answer['late'])} cannot be reached and will be informed when they are back" if answer["late"] else ""
        print(f"{options.node} is removed from the cluster; {len(answer['informed'])} other nodes know{late}")
    else:
        print(f"{answer['authority']} can sign for the cluster" + (", this node no longer" if options.step == "resign" else ", too"))
    return OK
