"""mosrun's command line as --help, the man page and completion show it. The program itself is mosrun.c, which reads its options
without Python: what `mosrun true` costs more than `true` counts."""

from __future__ import annotations

import argparse
import sys

from cli.common.command import Parser
from cli.common.exit_codes import NOT_EXECUTABLE, NOT_FOUND, NOT_PERMITTED, OK, REFUSED, UNAVAILABLE, USAGE


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = Parser(
        "mosrun",
        "Starts a program that may move to other nodes while it runs, and does not notice.",
        "  mosrun ./simulate --steps 1000000     goes wherever it runs best\n"
        "  mosrun -r n2 -L ./render scene        goes to n2 at once, and no further by itself\n"
        "  mosrun -J night -m 2048 ./analyse     job 'night', needs 2 GiB\n"
        "  mosrun -h ./talks-to-a-device         stays at home\n"
        "  mosrun --trace=calls -r n2 ./analyse  shows its system calls while it is away, in the file 'calls'\n"
        "  mosrun -A 30 -C saved ./analyse       checkpointed each half hour, to the directory 'saved'\n"
        "  mosrun --trust n2,n5 ./analyse        may go to n2 and n5, and nowhere else\n"
        "  mosrun -X /tmp/work ./analyse         /tmp/work is its own, empty at first, and goes with it in the end\n"
        "  mosrun --restart saved                goes on from there, here, with its pid and its files\n",
        exits=(USAGE, UNAVAILABLE, REFUSED, NOT_PERMITTED, NOT_EXECUTABLE, NOT_FOUND),
        ending=(
            "Otherwise the exit status is the program's own, wherever it ran; 69 and 75 are mosrun's with --restart alone, 77 with -X. "
            "mosrun becomes the program; with --restart it stays, is the program's parent, and passes signals on."
        ),
        usage=(
            "mosrun [-h | -b | -r NODE] [-L] [-T NODE[,NODE ...]] [-m MB] [-J JOB] [-A MINUTES [-C DIR]] [-X DIR ...] [--trace[=FILE]] "
            "[--] (program [argument ...] | --restart DIR)"
        ),
        add_help=False,
    )
    made.add_argument("--help", action="help", help="show this help (-h is 'home')")
    where = made.add_mutually_exclusive_group()
    where.add_argument("-h", "--home", action="store_true", help="the program stays on its home node")
    where.add_argument("-b", "--best", action="store_true", help="go to the best node at once")
    where.add_argument("-r", "--node", metavar="NODE", help="go to this node at once")
    made.add_argument("-L", "--locked", action="store_true", help="no automatic moves; migrate still moves it")
    made.add_argument(
        "-T", "--trust", metavar="NODES",
        help="it and its children go to these nodes alone, no matter who moves them: names with commas between them. The node that a "
        "program is on can read its memory, and do what it may do",
    )  # fmt: skip
    made.add_argument("-m", "--memory", metavar="MB", help="memory that it will need, in MiB")
    made.add_argument("-J", "--job", metavar="JOB", help="a name that mosps and mosctl can choose processes by")
    made.add_argument(
        "--trace", nargs="?", const="-", metavar="FILE",
        help="show each system call that it makes while it is away, where it was made and how long it took, on standard error or in FILE",
    )  # fmt: skip
    made.add_argument("-A", "--every", metavar="MINUTES", help="checkpoint it every so many minutes; fractions are allowed")
    made.add_argument("-C", "--checkpoint", metavar="DIR", help="where the checkpoints of -A go; ./ckpt.PID if left out")
    made.add_argument("-R", "--restart", metavar="DIR", help="no program: the process of the checkpoint in DIR goes on")
    made.add_argument(
        "-X", "--private", metavar="DIR", action="append",
        help="what it and its children have in this directory is theirs alone: empty at first, gone when the last of them ends; up to 10",
    )  # fmt: skip
    made.add_argument("program", nargs=argparse.REMAINDER, help="program and its arguments")
    return made


def main() -> int:
    """Return what mosrun.c becomes when it is asked for help."""
    parser().print_help()
    return OK


if __name__ == "__main__":
    sys.exit(main())
