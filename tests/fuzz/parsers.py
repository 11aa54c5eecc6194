"""Parsers of bytes from outside that are Python, each with what it may raise and inputs that mean something.

python -m tests.fuzz.parsers NAME SECONDS SEED CHECKPOINT [FILE…] changes these inputs, and those of the files, for so long, and ends with 1
and the input in hexadecimal digits on standard output when something comes out that is not documented: another exception, too much memory
(1 GiB), or no end (10 s of processor time for one input).
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from balancer.gossip import datagram, opening, plain
from balancer.gossip.datagram import Call, Card, Datagram, Probe, Update, Urgent, Word
from checkpoint import context as saved
from checkpoint.directory import Opened
from checkpoint.record import MOST, NAME, Record
from deputy.requests import signalfds
from engine.context.capture import capture
from engine.context.checked import BadContext
from engine.context.context import Context
from engine.criu import images
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process.seizing import seize
from node.cluster.front import values
from tests.balancer.vectors import node
from tests.fuzz.mutation import mutate
from wire import control, frames
from wire.frames import WireError

MEMORY = 1 << 30
PATIENCE = 10.0


class NoEnd(BaseException):
    """One input takes longer than PATIENCE."""


@dataclass(frozen=True)
class Parser:
    """take: what parses; raises: what it may raise, by its docstring; inputs: what it takes."""

    take: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    inputs: list[bytes]


def _datagram(data: bytes) -> None:
    taken = opening.unpack(data)
    if plain.taken(values.decode(values.encode(plain.plain(taken)))) != taken:  # what the front takes, mosd must not call nonsense
        raise AssertionError("mosd has another datagram than the front")
    for _, _, body in datagram.entries_of(taken.entries):
        datagram.unpack_body(taken.sender, body)
        datagram.version_of(body)
    for urgent in taken.urgent:
        datagram.unpack_body(taken.sender, urgent.body)


def _datagrams() -> Parser:
    vector = node("n1", 2.0)
    card = Card("n1", "10.0.0.1", 7226, 1, 4.0, 1.0, 1 << 34, 1, 8, bytes(datagram.SIGNATURE))
    body = datagram.pack_body(vector)
    entry = datagram.pack_entry(1.0, card.id, body)
    whole = Datagram(
        card, entry * 3, [Urgent(2, 0.5, card.id, body)], [card.id], [Probe(call, 7, card.id) for call in Call],
        [Update(word, card.id, 1, card.id, card if word == Word.ALIVE else None, 0.1, card.signature) for word in Word],
    )  # fmt: skip
    return Parser(_datagram, (ValueError,), [whole.pack(), Datagram(card, b"", [], [], [], []).pack()])


def _context() -> Parser:
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        with seize(child) as frozen:
            whole = capture(frozen).to_wire()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return Parser(Context.from_wire, (BadContext,), [whole])


def _messages() -> Parser:
    def take(data: bytes) -> None:
        assembler = frames.Assembler()
        assembler.feed(data[:3])
        assembler.feed(data[3:])

    message = frames.encode({"request": "reserve", "bytes": 1 << 40, "list": [1, None, "x"], "map": {1: b"\xff"}, "share": 0.5})
    return Parser(take, (WireError,), [message, message * 2, frames.encode({})])


def _values() -> Parser:
    message = ["request", 7, "n2", "10.0.0.1:5", b"der", "reserve", {"bytes": 1 << 63, "list": [1, None, True], "share": 0.5, 3: {}}]
    return Parser(values.decode, (values.NotPlain,), [values.encode(message), values.encode([]), values.encode({"a": [[["x"]]]})])


def _controls() -> Parser:
    inputs = [control.pack(number=17, info=bytes(128), tid=0), control.pack(pending=[[1, bytes(128)]], used=[1.5, 2], error=""), b""]
    return Parser(control.unpack, (WireError,), inputs)


def _masks() -> Parser:
    inputs = [control.pack(mask=1 << 33, dropped=0), control.pack(mask=(1 << 64) - 1, dropped=17), control.pack(mask=-1.5, dropped=1e300)]
    return Parser(signalfds.unpack_masks, (WireError,), inputs)


def _saved(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def _images(directory: Path) -> Parser:
    kinds = {"pstree": "PSTREE", "core": "CORE", "mm": "MM", "files": "FILES", "pagemap": "PAGEMAP", "seccomp": "SECCOMP"}

    def take(data: bytes) -> None:
        for kind in kinds.values():
            try:
                images.parse(data, kind, "image")
            except FarhomeError:
                continue

    found = _saved(directory)
    return Parser(take, (), [data for name, data in found.items() if name.split("-")[0].removesuffix(".img") in kinds])


def _checkpoint(directory: Path, place: Path) -> Parser:
    """An input is a whole directory: files one after the other, each behind a line with its name and length."""
    found = _saved(directory)

    def join(files: dict[str, bytes]) -> bytes:
        return b"".join(f"{name} {len(data)}\n".encode() + data for name, data in files.items())

    def take(data: bytes) -> None:
        for old in place.iterdir():
            old.unlink()
        files = dict(found)
        while data:
            head, _, data = data.partition(b"\n")
            name, _, length = head.partition(b" ")
            if name.decode("ascii", "replace") in files and length.isdigit():
                files[name.decode()], data = data[: int(length)], data[int(length) :]
        for name, content in files.items():
            (place / name).write_bytes(content)
            (place / name).chmod(0o600)
        opened = Opened(place, os.getuid())
        try:
            saved.read(opened, Record.from_json(opened.read(NAME, MOST)))
        finally:
            opened.close()

    small = {name: data for name, data in found.items() if not name.startswith("pages-")}
    inputs = [join({name: data}) for name, data in small.items()]
    # Names of files and threads are bytes: these are no UTF-8.
    inputs += [join({name: data.replace(b"sleep", b"sl\xffep")}) for name, data in small.items() if b"sleep" in data]
    return Parser(take, (FarhomeError, OSError), inputs)


def parser(name: str, directory: Path, place: Path) -> Parser:
    """The parser of that name; directory: a checkpoint; place: an empty directory."""
    makers: dict[str, Callable[[], Parser]] = {
        "datagram": _datagrams, "context": _context, "messages": _messages, "control": _controls, "masks": _masks, "values": _values,
        "images": lambda: _images(directory), "checkpoint": lambda: _checkpoint(directory, place),
    }  # fmt: skip
    return makers[name]()


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise NoEnd


def attempt(one: Parser, data: bytes) -> str:
    """Return what is wrong, empty: nothing."""
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        one.take(data)
    except one.raises:
        return ""
    except (Exception, NoEnd):
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def main(name: str, seconds: float, seed: int, directory: Path, corpus: list[Path]) -> int:
    chance = random.Random(seed)
    signal.signal(signal.SIGPROF, _stop)
    with TemporaryDirectory(prefix="farhome-fuzz-") as place:
        one = parser(name, directory, Path(place))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        known = [*one.inputs, *(path.read_bytes() for path in corpus)]
        tried = 0
        for data in known:
            if wrong := attempt(one, data):
                print(data.hex(), file=sys.stdout)
                print(wrong, file=sys.stderr)
                return 1
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            data = mutate(chance, chance.choice(known), known)
            tried += 1
            if wrong := attempt(one, data):
                print(data.hex(), file=sys.stdout)
                print(wrong, file=sys.stderr)
                return 1
    print(f"{name}: {tried} inputs", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), [Path(word) for word in sys.argv[5:]]))
