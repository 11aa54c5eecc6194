"""lab: virtual nodes on this machine."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence

from cli.common.command import Parser, print_json, run
from cli.common.exit_codes import FAILED, INTERRUPTED, OK, USAGE
from lab.lab import Lab
from lab.network import check_delay, parse_seconds
from lab.node import environment, terminal_command
from lab.state import LabError, names

EXAMPLES = """\
  lab up 3                          three nodes, n1 to n3, with a cluster on them
  lab up 4 --speed n2=0.5           one of them half as fast
  lab up 2 --delay 0.2ms            packets take 0.2 ms from one node to the other
  lab sh n1                         a shell on n1
  lab sh n1 mosrun -J 7 ./program   a program under mosrun on n1
  lab sh n1 --user farhome-a id     as an ordinary user
  lab cut n1 n2 5                   all packets between n1 and n2 are lost for five seconds
  lab kill n2                       n2 loses its power
  lab storm 7 --every 0.3-2         move the processes of job 7 about at random
  lab down                          nothing of it is left
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line, for --help, man pages and tests."""
    top = Parser("lab", "Virtual farhome nodes on this machine, each in namespaces of its own.", EXAMPLES,
                 exits=(OK, FAILED, USAGE, INTERRUPTED), ending="lab sh ends with the exit code of what it runs.")  # fmt: skip
    common = Parser("lab", add_help=False)
    common.add_argument("--name", default="default", help="which lab (%(default)s)")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    up = verbs.add_parser("up", parents=[common], help="start a lab")
    up.add_argument("count", type=int, help="how many nodes")
    up.add_argument("--cpus", type=float, default=1.0, help="processors that each node may use (%(default)s)")
    up.add_argument("--speed", action="append", default=[], type=_speed, metavar="NODE=SHARE", help="slow a node down, 0.5 is half as fast")
    up.add_argument(
        "--clock", action="append", default=[], type=_clock, metavar="NODE=SECONDS", help="its uptime differs by that from the host's"
    )
    up.add_argument("--bandwidth", metavar="RATE", help="of every node, each way: 100mbit, 1gbit")
    up.add_argument("--delay", type=_seconds, default=0.0, metavar="TIME", help="that packets take to another node, each way: 200us, 0.2ms")
    up.add_argument("--jitter", type=_seconds, default=0.0, metavar="TIME", help="by chance as much more or less of it at most: 50us")
    up.add_argument("--no-mosd", action="store_true", help="no cluster keys, no daemons")

    down = verbs.add_parser("down", parents=[common], help="end a lab, leave nothing behind")
    down.add_argument("--all", action="store_true", help="all labs on this machine")

    shell = verbs.add_parser("sh", parents=[common], help="a shell, or a command, on a node")
    shell.add_argument("node")
    shell.add_argument("--user", help="as this user (root)")
    shell.add_argument("command", nargs=argparse.REMAINDER, help="nothing: an interactive shell")

    kill = verbs.add_parser("kill", parents=[common], help="a node dies, everything in it at once")
    kill.add_argument("node")
    kill.add_argument("--close", action="store_true", help="its connections are closed, as when only its programs die")

    cut = verbs.add_parser("cut", parents=[common], help="lose all packets between two nodes")
    cut.add_argument("first")
    cut.add_argument("second")
    cut.add_argument("seconds", nargs="?", type=float, help="nothing: until 'lab heal'")

    heal = verbs.add_parser("heal", parents=[common], help="undo cuts")
    heal.add_argument("nodes", nargs="*", help="nothing: all cuts; one node: its cuts; two: the cut between them")

    status = verbs.add_parser("status", parents=[common], help="the nodes of a lab")
    status.add_argument("--json", action="store_true")

    storm = verbs.add_parser("storm", parents=[common], help="move the processes of a job about at random")
    storm.add_argument("job")
    storm.add_argument("--every", type=_interval, default=(0.3, 2.0), metavar="A-B", help="seconds between moves (0.3-2)")
    storm.add_argument("--seed", type=int, help="of the random choices; printed in any case")
    storm.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="nothing: until the job has ended")
    storm.add_argument("--home", default="n1", metavar="NODE", help="home node of the job (%(default)s)")
    storm.add_argument("--quiet", action="store_true", help="only the last line")
    return top


def _speed(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE=SHARE, such as n2=0.5") from None


def _clock(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    try:
        return name, int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE=SECONDS, such as n2=86400") from None


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _interval(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    try:
        pair = float(low), float(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not SECONDS-SECONDS, such as 0.3-2") from None
    if not 0 <= pair[0] <= pair[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no interval")
    return pair


def body(arguments: Sequence[str] | None) -> int:
    """Run one verb; its exit code. Errors: LabError, OSError, TimeoutError."""
    top = parser()
    reported = top.parse_args(arguments)
    if reported.verb == "up":
        try:
            check_delay(reported.delay, reported.jitter)
        except ValueError as error:
            top.error(str(error))
    return _run(reported)


def main() -> int:
    """Run the installed command; return its exit status."""
    return run("lab", body)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "up":
        lab = Lab.up(
            arguments.count,
            name=arguments.name,
            cpus=arguments.cpus,
            speed=dict(arguments.speed),
            clock=dict(arguments.clock),
            bandwidth=arguments.bandwidth,
            delay=arguments.delay,
            jitter=arguments.jitter,
            mosd=not arguments.no_mosd,
            stays=True,
        )
        print(f"lab {lab.name}: {', '.join(node.name for node in lab.nodes())} up")
        return 0
    if arguments.verb == "down":
        if os.geteuid():
            raise LabError("a lab needs root.")
        for name in names() if arguments.all else [arguments.name]:
            print(f"lab {name} {'is down' if Lab(name).down() else 'was not up'}")
        return 0
    lab = Lab(arguments.name)
    if arguments.verb == "sh":
        return _shell(lab, arguments.node, arguments.user, arguments.command)
    if arguments.verb == "kill":
        lab.kill(arguments.node, unplug=not arguments.close)
    elif arguments.verb == "cut":
        lab.cut(arguments.first, arguments.second, arguments.seconds)
    elif arguments.verb == "heal":
        if len(arguments.nodes) > 2:
            raise LabError("a cut is between two nodes.")
        print(f"{lab.heal(*arguments.nodes)} healed")
    elif arguments.verb == "status":
        _status(lab, arguments.json)
    elif arguments.verb == "storm":
        return _storm(lab, arguments)
    return 0


def _shell(lab: Lab, name: str, user: str | None, command: list[str]) -> int:
    """Become the command on the node; never returns unless it cannot be started."""
    if command[:1] == ["--user"]:  # after the node too, as people write it
        if len(command) < 2:
            raise LabError("--user needs the name of a user.")
        user, command = command[1], command[2:]
    elif command and command[0].startswith("--user="):
        user, command = command[0].removeprefix("--user="), command[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    values = environment(user)
    argv = command or [values["SHELL"] or "/bin/sh"]
    if sys.stdin.isatty() and sys.stdout.isatty():
        argv = terminal_command(argv)
    line = lab.node(name).command(argv, user, cwd=os.getcwd())
    os.execve(line[0], line, values)


def _status(lab: Lab, as_json: bool) -> None:
    status = lab.status()
    if as_json:
        print_json(status)
        return
    print(f"{'NODE':<8}{'STATE':<8}{'ADDRESS':<18}{'CPUS':>6}{'SPEED':>7}{'PROCESSES':>11}  MOSD")
    for node in status["nodes"]:
        print(
            f"{node['name']:<8}{'up' if node['alive'] else 'dead':<8}{node['address']:<18}{node['cpus']:>6g}"
            f"{node['speed']:>7g}{node['processes']:>11}  {'up' if node['mosd'] else '-'}"
        )
    for first, second in status["cuts"]:
        print(f"cut between {first} and {second}")


def _storm(lab: Lab, arguments: argparse.Namespace) -> int:
    from lab.storm import storm  # only here: the other verbs start faster without it

    lab.node(arguments.home)  # a mistake is reported before anything else
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"storm with seed {seed} begins", flush=True)  # first of all: it may never come to its end
    result = storm(
        lab,
        arguments.job,
        home=arguments.home,
        every=arguments.every,
        seed=seed,
        seconds=arguments.seconds,
        report=(lambda line: None) if arguments.quiet else (lambda line: print(line, flush=True)),
    )
    print(result.sentence())
    for failure in result.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
