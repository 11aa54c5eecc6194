"""mosctl: looks after the node daemon of this node, its cluster and its guests."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from balancer.lending.formats import format_size
from cli import mosctl_cluster
from cli.common.client import LONG, ask
from cli.common.command import Parser, add_json, format_age, print_json, process_id, run, table
from cli.common.exit_codes import OK, REFUSED, CommandError

LONG_COMMAND = 60


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
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
        add_json(verbs.add_parser(name, help=text, description=text))
    verbs.add_parser("reload", help="read the configuration anew", description="read the configuration anew")
    verbs.add_parser("block", help="take no guests any more", description="take no guests any more; those here stay")
    verbs.add_parser("unblock", help="take guests again", description="take guests again")
    expel = verbs.add_parser("expel", help="send guests home", description="send all guests home, or one")
    expel.add_argument("guest", nargs="?", help="HOME-PID as mosps --guests shows it (default: all)")
    expel.add_argument("--within", type=float, metavar="SECONDS", help="how long they may take (default 10)")
    add_json(expel)
    bring = verbs.add_parser("bring", help="bring processes home", description="bring your processes home (root: everybody's)")
    bring.add_argument("-J", "--job", metavar="JOB", help="only those of this job")
    add_json(bring)
    what = "why a process is where it is, or what was decided lately that has to do with a node"
    why = verbs.add_parser("why", help=what, description=what)
    why.add_argument("what", metavar="PID|NODE", type=_process_or_node)
    add_json(why)
    rules = "show what this node lends, rule by rule, and what each rule comes to now"
    policy = verbs.add_parser("policy", help="what this node lends", description=rules)
    policy.add_argument("what", nargs="?", choices=("explain",), default="explain", help="explain: all rules")
    policy.add_argument("--as", dest="borrower", metavar="USER@NODE", help="whether a process of that user and home would be taken now")
    policy.add_argument("--memory", type=_size, metavar="SIZE", help="and needs so much memory, such as 2G (default: none)")
    add_json(policy)
    comes = "show how it is between the owner and the guests; `back` has them held back and go, until `away`"
    owner = verbs.add_parser("owner", help="the owner is back, or away", description=comes)
    owner.add_argument("what", nargs="?", choices=("back", "away"))
    add_json(owner)
    sums = "seconds of processor lent and borrowed, by user and node"
    add_json(verbs.add_parser("ledger", help="what was lent and borrowed", description=sums))
    files = "whose files are under /mfs, and what has passed to and from other nodes"
    tree = verbs.add_parser("mfs", help=files, description=files)
    tree.add_argument("what", choices=("status",), help="status: mounts of peers here, and of this node there")
    add_json(tree)
    mosctl_cluster.add_parser(verbs)
    return made


def _size(text: str) -> int:
    """Errors: argparse.ArgumentTypeError."""
    from balancer.lending.values import Table

    try:
        return Table({"memory": text}, ("mosctl",)).size("memory") or 0
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512M or 2G") from None


def _status(options: argparse.Namespace) -> int:
    answer = ask("status")
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
    why = answer["images_fail"]
    works = "have not been tried here yet" if why is None else f"do not work here: {why}" if why else "work here"
    print(f"moves by CRIU's images {works}")
    return OK


def _nodes(options: argparse.Namespace) -> int:
    nodes = ask("nodes")["nodes"]
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
    ask("reload")
    print("configuration reloaded")
    return OK


def _block(options: argparse.Namespace) -> int:
    guests = ask("block")["guests"]
    print(f"blocked; {guests} guests are still here (mosctl expel sends them home)" if guests else "blocked")
    return OK


def _unblock(options: argparse.Namespace) -> int:
    ask("unblock")
    print("unblocked")
    return OK


def _expel(options: argparse.Namespace) -> int:
    within = {} if options.within is None else {"within": options.within}
    answer = ask("expel", (options.within or 0.0) + LONG, guest=options.guest, **within)
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
    answer = ask("bring", LONG, job=options.job)
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
    answer = ask("why", **{"node" if isinstance(options.what, str) else "pid": options.what})
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
    if "trips" in answer:
        print(f"home has made {answer['trips']} calls for it and its children while they were away")
    for node, rate in sorted(answer.get("files_rate", {}).items()):
        if rate >= 1:
            print(f"for each second of cpu: {format_size(int(rate))} of files of {node}")
    print(f"balancer: {answer['decision']}")
    for note in answer.get("decisions", []):
        print(_note(note))
    return OK


def _policy(options: argparse.Namespace) -> int:
    given = {"as": options.borrower, "memory": options.memory}
    answer = ask("policy", **{key: value for key, value in given.items() if value is not None})
    if options.json:
        print_json(answer)
        return OK
    marks = {True: "ok", False: "no", None: ""}
    print(table(("RULE", "NOW", "SAYS"), [(line["rule"], marks[line["holds"]], line["text"]) for line in answer["lines"]]))
    who = f"a process of {options.borrower}" if options.borrower else "a guest"
    print(f"{who} would not be taken now: {answer['refusal']}" if answer["refusal"] else f"{who} would be taken now")
    return OK


def _owner(options: argparse.Namespace) -> int:
    answer = ask("owner", **({"back": options.what == "back"} if options.what else {}))
    if options.json:
        print_json(answer)
        return OK
    here = {0: "no guests are", 1: "1 guest is"}.get(answer["guests"], f"{answer['guests']} guests are")
    print(f"{_STAGES[answer['stage']]}; {here} here")
    if answer["reason"]:
        print(answer["reason"])
    seen = [
        f"last used {format_age(answer['idle'])} ago" if answer["idle"] is not None else "nothing shows when it was last used",
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
    entries = ask("ledger")["entries"]
    if options.json:
        print_json(entries)
        return OK
    rows = [(e["direction"], e["user"], e["node"], f"{e['seconds']:.1f}", format_age(max(0.0, time.time() - e["last"]))) for e in entries]
    print(table(("WHAT", "USER", "NODE", "CPU/S", "LAST"), rows, frozenset({3, 4})) if rows else "nothing was lent or borrowed")
    return OK


def _mfs(options: argparse.Namespace) -> int:
    answer = ask("mfs")
    if options.json:
        print_json(answer)
        return OK
    if not answer["enabled"]:
        _print_remembered(answer["remembered"])
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
    _print_remembered(answer["remembered"])
    return OK


def _print_remembered(homes: list[dict[str, Any]]) -> None:
    """Show what guests here need not ask their homes for."""
    if homes:
        heads = ("HOME", "GUESTS", "NAMES KNOWN", "CALLS BY NAMES", "CALLS BY OPENS", "MAPPED")
        rows = [tuple(one[key] for key in ("home", "guests", "names", "from_names", "from_opens", "mapped")) for one in homes]
        print(table(heads, rows, frozenset({1, 2, 3, 4, 5})))
    for one in homes:
        if one["silent"]:
            print(f"{one['silent']} guests of {one['home']} are not counted: they have not answered in time, or are too many to be asked")


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


_VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": _status, "nodes": _nodes, "reload": _reload, "block": _block, "unblock": _unblock, "expel": _expel, "bring": _bring,
    "why": _why, "cluster": mosctl_cluster.act, "policy": _policy, "owner": _owner, "ledger": _ledger, "mfs": _mfs,
}  # fmt: skip


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError, FarhomeError."""
    options = parser().parse_args(arguments)
    return _VERBS[options.verb](options)


def main() -> int:
    """Run the installed program; return its exit status."""
    return run("mosctl", body)


if __name__ == "__main__":
    sys.exit(main())
