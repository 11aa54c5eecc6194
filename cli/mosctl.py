"""mosctl: looks after the node daemon of this node, its cluster and its guests."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from balancer.formats import format_size
from cli.client import Client
from cli.command import Parser, format_age, print_json, process_id, run, table
from cli.exit_codes import NOT_PERMITTED, OK, REFUSED, USAGE, CommandError

LONG_COMMAND = 60
LEAST_DAYS, MOST_DAYS = 0.0001, 3650
LONG = 600.0
"""Seconds that sending guests home or bringing processes home may take."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        "mosctl",
        "Looks after the node daemon of this node, its cluster and its guests.",
        "  mosctl status                 this node in a few lines\n"
        "  mosctl nodes                  all nodes, as this one knows them\n"
        "  mosctl cluster init           makes a cluster of which this node is the first\n"
        "  mosctl cluster token anna     lets node anna in: a token to be used there, once\n"
        "  mosctl cluster join TOKEN     this node joins the token's cluster\n"
        "  mosctl cluster remove anna    takes node anna out of the cluster, everywhere and for good\n"
        "  mosctl cluster add-authority bert     bert can let nodes in and take them out, too\n"
        "  mosctl block; mosctl expel    no guests any more; those here go home\n"
        "  mosctl bring                  all my processes come home\n"
        "  mosctl why 4711               why process 4711 is where it is\n"
        "  mosctl policy explain --as anna@n2    what this node lends, and whether anna's processes of n2 may come now\n"
        "  mosctl owner back             I need my machine: guests are held back and go; `away` ends it\n"
        "  mosctl mfs status             whose files are under /mfs, and what passes there\n"
        "  mosctl ledger                 seconds of processor that were lent and borrowed, by user and node\n",
    )
    verbs = made.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, text in (("status", "this node in a few lines"), ("nodes", "all nodes, as this one knows them")):
        _json(verbs.add_parser(name, help=text, description=text))
    verbs.add_parser("reload", help="read the configuration anew", description="read the configuration anew")
    verbs.add_parser("block", help="take no guests any more", description="take no guests any more; those here stay")
    verbs.add_parser("unblock", help="take guests again", description="take guests again")
    expel = verbs.add_parser("expel", help="send guests home", description="send all guests home, or one")
    expel.add_argument("guest", nargs="?", help="HOME-PID as mosps --guests shows it (default: all)")
    expel.add_argument("--within", type=float, metavar="SECONDS", help="how long they may take (default 10)")
    _json(expel)
    bring = verbs.add_parser("bring", help="bring processes home", description="bring your processes home (root: everybody's)")
    bring.add_argument("-J", "--job", metavar="JOB", help="only those of this job")
    _json(bring)
    what = "why a process is where it is, or what was decided lately that has to do with a node"
    why = verbs.add_parser("why", help=what, description=what)
    why.add_argument("what", metavar="PID|NODE", type=_process_or_node)
    _json(why)
    rules = "tell what this node lends, rule by rule, and what each rule comes to now"
    policy = verbs.add_parser("policy", help="what this node lends", description=rules)
    policy.add_argument("what", nargs="?", choices=("explain",), default="explain", help="explain: all rules")
    policy.add_argument("--as", dest="borrower", metavar="USER@NODE", help="whether a process of that user and home would be taken now")
    policy.add_argument("--memory", type=_size, metavar="SIZE", help="and needs so much memory, such as 2G (default: none)")
    _json(policy)
    comes = "show how it is between the owner and the guests; `back` has them held back and go, until `away`"
    owner = verbs.add_parser("owner", help="the owner is back, or away", description=comes)
    owner.add_argument("what", nargs="?", choices=("back", "away"))
    _json(owner)
    sums = "seconds of processor lent and borrowed, by user and node"
    _json(verbs.add_parser("ledger", help="what was lent and borrowed", description=sums))
    files = "whose files are under /mfs, and what has passed to and from other nodes"
    tree = verbs.add_parser("mfs", help=files, description=files)
    tree.add_argument("what", choices=("status",), help="status: mounts of peers here, and of this node there")
    _json(tree)
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
    _json(remove)
    hand = "hand the authority's key over to another node, which then can let nodes in and take them out, too"
    authority = steps.add_parser("add-authority", help="let another node sign, too", description=hand)
    authority.add_argument("node", metavar="NODE")
    up = "give the authority's key up; another node must have it"
    steps.add_parser("resign", help="give the authority's key up", description=up)
    return made


def _size(text: str) -> int:
    """Errors: argparse.ArgumentTypeError."""
    from balancer.values import Table

    try:
        return Table({"memory": text}, ("mosctl",)).size("memory") or 0
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512M or 2G") from None


def _json(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", action="store_true", help="as JSON")


def _status(options: argparse.Namespace) -> int:
    answer = _ask("status")
    if options.json:
        print_json(answer)
        return OK
    lending = "blocked" if answer["blocked"] else "lends" if answer["lending"] else f"does not lend: {answer['why_not_lending']}"
    cluster = answer["cluster"] or "none (mosctl cluster init, or join)"
    print(f"node {answer['name']} at {answer['address']}:{answer['port']}, up {format_age(answer['uptime'])}, {lending}")
    print(f"cluster {cluster}: {len(answer['peers'])} other nodes known, {len(answer['connected'])} connected")
    if answer["no_datagrams"]:
        print(f"datagrams (UDP) do not get through to or from {', '.join(answer['no_datagrams'])}: they are spoken to over TCP")
    balancing = "on" if answer["balance"] else "off"
    print(f"{answer['processes']} processes, {answer['away']} away; {answer['guests']} guests; balancing {balancing}")
    return OK


def _nodes(options: argparse.Namespace) -> int:
    nodes = _ask("nodes")["nodes"]
    if options.json:
        print_json(nodes)
        return OK
    rows = [
        (
            node["name"] + ("*" if node["self"] else ""), f"{node['load']:.2f}", f"{node['cores']:g}", f"{node['speed']:.2f}",
            f"{node['memory_free'] >> 20}/{node['memory_total'] >> 20}", node["guests"],
            "blocked" if node["blocked"] else "lends" if node["lending"] else "no", format_age(node["age"]), node["address"],
        )
        for node in nodes
    ]  # fmt: skip
    print(table(("NODE", "LOAD", "CORES", "SPEED", "FREE/MB", "GUESTS", "LENDING", "AGE", "ADDRESS"), rows, frozenset({1, 2, 3, 4, 5, 7})))
    return OK


def _reload(options: argparse.Namespace) -> int:
    _ask("reload")
    print("configuration reloaded")
    return OK


def _block(options: argparse.Namespace) -> int:
    guests = _ask("block")["guests"]
    print(f"blocked; {guests} guests are still here (mosctl expel sends them home)" if guests else "blocked")
    return OK


def _unblock(options: argparse.Namespace) -> int:
    _ask("unblock")
    print("unblocked")
    return OK


def _expel(options: argparse.Namespace) -> int:
    within = {} if options.within is None else {"within": options.within}
    answer = _ask("expel", (options.within or 0.0) + LONG, guest=options.guest, **within)
    if options.json:
        print_json(answer)
    elif not answer["expelled"] and not answer["left"]:
        print("there are no guests")
    else:
        for key in answer["expelled"]:
            print(f"{key} went home")
    if answer["left"]:
        raise CommandError("; ".join(f"{key} is still here: {why}" for key, why in answer["left"].items()), REFUSED)
    return OK


def _bring(options: argparse.Namespace) -> int:
    answer = _ask("bring", LONG, job=options.job)
    if options.json:
        print_json(answer)
    elif not answer["home"] and not answer["failed"]:
        print("all are at home")
    for pid in answer["home"] if not options.json else ():
        print(f"process {pid} is at home")
    if answer["failed"]:
        raise CommandError("; ".join(answer["failed"].values()), REFUSED)
    return OK


def _process_or_node(text: str) -> int | str:
    return process_id(text) if text.lstrip("-").isdigit() else text


def _why(options: argparse.Namespace) -> int:
    answer = _ask("why", **{"node" if isinstance(options.what, str) else "pid": options.what})
    if options.json:
        print_json(answer)
        return OK
    if isinstance(options.what, str):
        for note in answer["decisions"]:
            print(f"process {note['pid']} ({note['command'][:LONG_COMMAND]}):{_note(note)}")
        if not answer["decisions"]:
            print(f"nothing was decided lately that has to do with {options.what}")
        return OK
    ended = answer["state"] in ("ended", "lost")
    place = "at home" if answer["where"] == "home" else f"on {answer['where']}"
    times = {0: "never moved", 1: "moved once"}.get(answer["moves"], f"moved {answer['moves']} times")
    used = f", {answer['cpu_seconds']:.1f} s of cpu" if "cpu_seconds" in answer else ""
    command = answer["command"] if len(answer["command"]) <= LONG_COMMAND else answer["command"][:LONG_COMMAND] + "…"
    print(f"process {answer['pid']} ({command}) {'was' if ended else 'is'} {place}, {times}{used}")
    if answer["trust"]:
        print(f"it may be on {', '.join(answer['trust'])} and at home, and nowhere else (mosrun --trust)")
    if answer["why"]:
        print(f"last: {answer['why']}")
    if answer.get("calls_rate", 0.0) >= 1:
        size = format_size(int(answer["bytes_rate"]))
        print(f"for each second of cpu: {answer['calls_rate']:.0f} calls that read, write or go home, {size}")
    for node, rate in sorted(answer.get("files_rate", {}).items()):
        if rate >= 1:
            print(f"for each second of cpu: {format_size(int(rate))} of files of {node}")
    print(f"balancer: {answer['decision']}")
    for note in answer.get("decisions", []):
        print(_note(note))
    return OK


def _policy(options: argparse.Namespace) -> int:
    given = {"as": options.borrower, "memory": options.memory}
    answer = _ask("policy", **{key: value for key, value in given.items() if value is not None})
    if options.json:
        print_json(answer)
        return OK
    marks = {True: "ok", False: "no", None: ""}
    print(table(("RULE", "NOW", "SAYS"), [(line["rule"], marks[line["holds"]], line["text"]) for line in answer["lines"]]))
    who = f"a process of {options.borrower}" if options.borrower else "a guest"
    print(f"{who} would not be taken now: {answer['refusal']}" if answer["refusal"] else f"{who} would be taken now")
    return OK


def _owner(options: argparse.Namespace) -> int:
    answer = _ask("owner", **({"back": options.what == "back"} if options.what else {}))
    if options.json:
        print_json(answer)
        return OK
    here = {0: "no guests are", 1: "1 guest is"}.get(answer["guests"], f"{answer['guests']} guests are")
    print(f"{_STAGES[answer['stage']]}; {here} here")
    if answer["reason"]:
        print(answer["reason"])
    seen = [
        f"last used {format_age(answer['idle'])} ago" if answer["idle"] is not None else "nothing tells when it was last used",
        f"the owner's programs use {answer['load']:.2f} processors" if answer["load"] is not None else "",
        {True: "on battery", False: "on mains", None: ""}[answer["on_battery"]],
    ]
    print(", ".join(text for text in seen if text))
    return OK


_STAGES = {
    "owner": "the owner has the node", "lending": "the node lends",
    "suspected": "the node lends; guests are held back for a moment, as the owner may have begun something",
    "throttled": "guests are held back", "frozen": "guests stand still", "evicting": "guests are being sent away",
    "late": "guests that have not gone in time stand still",
}  # fmt: skip


def _ledger(options: argparse.Namespace) -> int:
    entries = _ask("ledger")["entries"]
    if options.json:
        print_json(entries)
        return OK
    rows = [(e["direction"], e["user"], e["node"], f"{e['seconds']:.1f}", format_age(max(0.0, time.time() - e["last"]))) for e in entries]
    print(table(("WHAT", "USER", "NODE", "CPU/S", "LAST"), rows, frozenset({3, 4})) if rows else "nothing was lent or borrowed")
    return OK


def _mfs(options: argparse.Namespace) -> int:
    answer = _ask("mfs")
    if options.json:
        print_json(answer)
        return OK
    if not answer["enabled"]:
        raise CommandError(answer["complaint"] or "the file tree is off here ([mfs] of node.toml)", REFUSED)
    exports = ", ".join(one["path"] + (" (read-only)" if one["read_only"] else "") for one in answer["exports"])
    secrecy = "encrypted" if answer["encryption"] else "not encrypted where the other side agrees"
    print(f"{answer['root']}/{answer['own']} is here; others see {exports}, {secrecy}")
    if answer["mounts"]:
        rows = [
            (one["path"], _mount_state(one), one["requests"], one["failed"], _megabytes(one["bytes_in"]), _megabytes(one["bytes_out"]))
            for one in answer["mounts"] if "requests" in one
        ]  # fmt: skip
        print(table(("MOUNT", "STATE", "REQUESTS", "FAILED", "MB IN", "MB OUT"), rows, frozenset({2, 3, 4, 5})))
    if answer["served"]:
        served = [
            (
                one["peer"], "yes" if one["connected"] else "no", one["nodes"], one["files"], one["requests"], one["leases"],
                one["recalls"], _megabytes(one["bytes_read"]), _megabytes(one["bytes_written"]),
            )
            for one in answer["served"]
        ]  # fmt: skip
        heads = ("PEER", "CONNECTED", "KNOWS", "OPEN", "REQUESTS", "LEASES", "RECALLS", "MB READ", "MB WRITTEN")
        print(table(heads, served, frozenset({2, 3, 4, 5, 6, 7, 8})))
    return OK


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}"


def _mount_state(mount: dict[str, Any]) -> str:
    if mount["connected"]:
        return "connected"
    return "lost" if mount["connections"] or mount["requests"] else "unused"


def _note(note: dict[str, Any]) -> str:
    """One decision of the balancer in a line: when last, how often, whereto, why, and what came of it."""
    times = f" ({note['times']} times)" if note["times"] > 1 else ""
    went = f"to {note['target']}" if note["target"] else "stays"
    outcome = f": {note['outcome']}" if note["outcome"] else ""
    return f"  {time.strftime('%H:%M:%S', time.localtime(note['last']))}{times} {went}, {note['reason']}{outcome}"


def _ask(operation: str, timeout: float = 10.0, **fields: Any) -> dict[str, Any]:
    answer = Client(timeout).call(operation, **fields)
    answer.pop("ok")
    return answer


def _cluster(options: argparse.Namespace) -> int:
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
        return _cluster_act(options)
    else:
        try:
            token = Token.parse(options.token)
        except ValueError as error:
            raise CommandError(str(error), USAGE) from None
        print(f"{settings.name} is in cluster {join.join(keys, paths, token, settings.name)}")
    try:
        _ask("reload")
    except CommandError:
        pass  # no daemon yet: it will find the keys when it starts
    return OK


def _cluster_act(options: argparse.Namespace) -> int:
    answer = _ask("cluster", LONG, step=options.step, node=getattr(options, "node", None))
    if options.step == "remove":
        if options.json:
            print_json(answer)
            return OK
        late = f"; {', '.join(answer['late'])} cannot be reached and will be told when they are back" if answer["late"] else ""
        print(f"{options.node} is removed from the cluster; {len(answer['told'])} other nodes know{late}")
    else:
        print(f"{answer['authority']} can sign for the cluster" + (", this node no longer" if options.step == "resign" else ", too"))
    return OK


_VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": _status, "nodes": _nodes, "reload": _reload, "block": _block, "unblock": _unblock, "expel": _expel, "bring": _bring,
    "why": _why, "cluster": _cluster, "policy": _policy, "owner": _owner, "ledger": _ledger, "mfs": _mfs,
}  # fmt: skip


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError, FarhomeError."""
    options = parser().parse_args(arguments)
    return _VERBS[options.verb](options)


def main() -> int:
    """The installed program."""
    return run("mosctl", body)


if __name__ == "__main__":
    sys.exit(main())
