"""mosrun: starts a program that may move to other nodes.

It tells the node daemon of its own process and then becomes the program: the program is the shell's own child, native and
untraced, until it moves. What `mosrun true` costs more than `true` is measured, so nothing is imported that can be done
without: neither socket (its C part alone), nor msgpack for the one message that is always sent.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

from cli.exit_codes import NOT_EXECUTABLE, NOT_FOUND, UNAVAILABLE, USAGE, CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import NoReturn

REGISTER_TIMEOUT = 5.0
ACCEPTED = b"\x81\xa2ok\xc3"
"""msgpack of {"ok": True}"""
_WITH_VALUE = {"-r": "node", "-m": "memory", "-J": "job", "--node": "node", "--memory": "memory", "--job": "job"}
_TRACE = "--trace"
"""Its value, if any, is in the same word."""
_FLAGS = {"-h": "home", "-b": "best", "-L": "locked", "--home": "home", "--best": "best", "--locked": "locked"}


def parser() -> argparse.ArgumentParser:
    """The command line; for --help, completion and the man page: mosrun itself reads its options by options()."""
    import argparse

    from cli.command import Parser

    made = Parser(
        "mosrun",
        "Starts a program that may move to other nodes while it runs, and cannot tell.",
        "  mosrun ./simulate --steps 1000000     goes wherever it runs best\n"
        "  mosrun -r n2 -L ./render scene        goes to n2 at once, and no further by itself\n"
        "  mosrun -J night -m 2048 ./analyse     job 'night', needs 2 GiB\n"
        "  mosrun -h ./talks-to-a-device         stays at home\n"
        "  mosrun --trace=calls -r n2 ./analyse  tells its system calls while it is away, in the file 'calls'\n",
        exits=(USAGE, NOT_EXECUTABLE, NOT_FOUND),
        ending="Otherwise the exit status is the program's own, wherever it ran.",
        usage="mosrun [-h | -b | -r NODE] [-L] [-m MB] [-J JOB] [--trace[=FILE]] [--] program [argument ...]",
        add_help=False,
    )
    made.add_argument("--help", action="help", help="show this help (-h is 'home')")
    where = made.add_mutually_exclusive_group()
    where.add_argument("-h", "--home", action="store_true", help="the program stays on its home node")
    where.add_argument("-b", "--best", action="store_true", help="go to the best node at once")
    where.add_argument("-r", "--node", metavar="NODE", help="go to this node at once")
    made.add_argument("-L", "--locked", action="store_true", help="no automatic moves; migrate still moves it")
    made.add_argument("-m", "--memory", metavar="MB", help="memory that it will need, in MiB")
    made.add_argument("-J", "--job", metavar="JOB", help="a name that mosps and mosctl can choose processes by")
    made.add_argument(
        _TRACE, nargs="?", const="-", metavar="FILE",
        help="tell each system call that it makes while it is away, where it was made and how long it took, on standard error or in FILE",
    )  # fmt: skip
    made.add_argument("program", nargs=argparse.REMAINDER, help="program and its arguments")
    return made


def options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """(options by name, program with its arguments). Errors: CommandError with exit code 64."""
    found: dict[str, str] = {}
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            index += 1
            break
        if not word.startswith("-") or word == "-":
            break
        index += 1
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            found[_FLAGS[word]] = "1"
        elif name == _TRACE:
            found["trace"] = value if equals else "-"
        elif word.startswith("--") and equals and name in _WITH_VALUE:
            found[_WITH_VALUE[name]] = value
        elif word in _WITH_VALUE:
            if index == len(arguments):
                raise CommandError(f"{word} needs a value (mosrun --help tells how)", USAGE)
            found[_WITH_VALUE[word]] = arguments[index]
            index += 1
        elif word[:2] in _WITH_VALUE and not word.startswith("--"):
            found[_WITH_VALUE[word[:2]]] = word[2:]
        elif word[:2] in _FLAGS and not word.startswith("--"):
            found[_FLAGS[word[:2]]] = "1"
            index -= 1                                   # -Lb is -L -b
            arguments = [*arguments[:index], f"-{word[2:]}", *arguments[index + 1 :]]
        elif word == "--help":
            parser().print_help()
            raise SystemExit(0)
        else:
            raise CommandError(f"{word} is no option of mosrun (mosrun --help tells how)", USAGE)
    if len(found.keys() & {"home", "best", "node"}) > 1:
        raise CommandError("-h, -b and -r exclude one another", USAGE)
    memory = found.get("memory", "0")
    if not (memory.isascii() and memory.isdigit() and len(memory) < 10):
        raise CommandError(f"-m needs a number of MiB, not {memory!r}", USAGE)
    if index == len(arguments):
        raise CommandError("a program is missing (mosrun --help tells how)", USAGE)
    return found, arguments[index:]


def encode(fields: dict[str, str | int]) -> bytes:
    """msgpack of a small map of texts, numbers and truth values."""

    def one(value: str | int) -> bytes:
        if isinstance(value, bool):
            return b"\xc3" if value else b"\xc2"
        if isinstance(value, int):
            return b"\xcf" + value.to_bytes(8, "big")
        data = value.encode("utf-8", "replace")
        return b"\xda" + len(data).to_bytes(2, "big") + data

    return bytes([0x80 | len(fields)]) + b"".join(one(key) + one(value) for key, value in fields.items())


def register(found: dict[str, str], command: list[str]) -> _socket.socket:
    """Tells the node daemon of this process. Returns the connection, which exec closes: so the daemon learns that mosrun has
    become the program. Errors: CommandError."""
    path = os.path.join(os.environ.get("FARHOME_RUN") or "/run/farhome", "mosd.sock")
    body = encode(
        {
            "op": "register", "job": found.get("job", ""), "home_only": "home" in found, "locked": "locked" in found,
            "memory": int(found.get("memory", 0)) << 20, "node": "best" if "best" in found else found.get("node", ""),
            "command": " ".join(command)[:200], "trace": found.get("trace", ""),
        }
    )  # fmt: skip
    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        connection.settimeout(REGISTER_TIMEOUT)
        connection.connect(path)
    except OSError as error:
        raise CommandError(f"no mosd answers on this node ({path}: {error.strerror or error})", UNAVAILABLE) from None
    try:
        connection.sendall(len(body).to_bytes(4, "big") + body)
        answer = connection.recv(4096)
    except OSError:
        answer = b""
    if answer[4:] != ACCEPTED:
        _explain(answer)
    return connection


def _explain(answer: bytes) -> None:
    """Errors: CommandError with what the daemon said."""
    # Started without site-packages.
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.join(root, ".venv/lib/python{}.{}/site-packages".format(*sys.version_info[:2])))
    import msgpack

    try:
        said = msgpack.unpackb(answer[4:])
        sentence, code = str(said["error"]), int(said["code"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException):
        sentence, code = "the mosd of this node went away before it answered", UNAVAILABLE
    raise CommandError(sentence, code)


def original_environment() -> dict[bytes, bytes]:
    """The environment as it was given to us: Python itself adds LC_CTYPE to it where there is no locale (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb") as source:
            lines = source.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {key: value for key, equals, value in (line.partition(b"=") for line in lines) if equals and key}


def new_file(path: str) -> str:
    """Makes a file for the trace, or empties it, by the user's own rights. Returns its whole path. Errors: CommandError."""
    import stat

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise CommandError(f"--trace needs a plain file of your own, not {path}", USAGE)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", USAGE) from None
    return os.path.realpath(path)


def become(command: list[str]) -> NoReturn:
    """Becomes the program. Errors: CommandError as a shell would say it."""
    # What Python ignores for itself would be ignored in the program too.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    try:
        if not command[0]:
            raise FileNotFoundError
        os.execvpe(command[0], command, original_environment())
    except FileNotFoundError:
        raise CommandError(f"{command[0] or repr('')}: not found", NOT_FOUND) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError(f"{command[0]}: {reason}", NOT_EXECUTABLE) from None


def main(arguments: list[str] | None = None) -> int:
    """Does not return if the program can be executed."""
    if _signal.getsignal(_signal.SIGINT) is not _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)      # Ctrl-C ends it as it would end the program
    try:
        found, command = options(list(sys.argv[1:] if arguments is None else arguments))
        if found.get("trace", "-") != "-":
            found["trace"] = new_file(found["trace"])
        connections = []                 # kept open, so that only exec closes it
        try:
            connections.append(register(found, command))
        except CommandError as error:
            if error.code == USAGE:
                raise
            print(f"mosrun: {error}; {command[0]} runs at home", file=sys.stderr, flush=True)
        become(command)
    except CommandError as error:
        print(f"mosrun: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
