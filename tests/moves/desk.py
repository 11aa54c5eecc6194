"""A user at a terminal with an interactive shell: the keys they type, in scenes whose order depends on the seed.

Nothing is typed before the output that it answers is on the screen, and no scene depends on which of two events comes first. So the screens
are the same each time, and the player of a script needs a step only when the step before it has finished.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.moves.outcome import PATH, Place
from tests.moves.screen import Picture, Screen

PROMPT = r"(^|\n)desk\$$"
DIRECTORY = "tmp/desk"
SIZE = 24, 80
GATE_PATIENCE = 60.0
"""Seconds until a reader opens a fifo."""

FRONT = """\
#!/usr/bin/perl
# Says that it is in the foreground of its terminal, each time that it comes there.
$| = 1;
my ($front, $again, $group) = (0, 0, "\\0" x 8);
open(my $terminal, "+<", "/dev/tty") or die "/dev/tty: $!";
$SIG{CONT} = sub { $again = 1 };
while (1) {
    $again = $front = 0 if $again;
    ioctl($terminal, 0x540f, $group) or die "TIOCGPGRP: $!";
    my $now = unpack("i", $group) == getpgrp();
    print "in front\\n" if $now && !$front;
    $front = $now;
    select(undef, undef, undef, 0.03);
}
"""
SIZES = """\
#!/usr/bin/perl
# Says what size its terminal has, each time that it changes.
$| = 1;
my $changed = 0;
$SIG{WINCH} = sub { $changed = 1 };
print "ready\\n";
while (1) {
    if ($changed) { $changed = 0; my $size = "\\0" x 8; ioctl(STDIN, 0x5413, $size); printf "size %d %d\\n", unpack("SS", $size) }
    select(undef, undef, undef, 0.03);
}
"""
NOTES = "the first line\nanother one\nand the last line\n"
VIM = "set ttimeout ttimeoutlen=50 nofsync\n"
STORY = "".join(f"chapter {number}, in which not much happens\n" for number in range(1, 201))


@dataclass(frozen=True)
class Step:
    """An input and the output on the screen (a regular expression) that shows that it has been handled."""

    said: str
    do: Callable[[Screen, Path], None]
    until: str


def keys(text: str, until: str = PROMPT) -> Step:
    return Step(repr(text), lambda screen, _: screen.enter(text), until)


def line(text: str, until: str = PROMPT) -> Step:
    return keys(text + "\n", until)


def signal_keys(text: str, until: str) -> Step:
    """Keys by which the terminal sends a signal, for a program that overlooks one that comes between its prompt and its read (less)."""

    def type_them(screen: Screen, _: Path) -> None:
        screen.await_reader()
        screen.enter(text)

    return Step(repr(text), type_them, until)


def size(rows: int, columns: int, until: str) -> Step:
    return Step(f"size {rows} {columns}", lambda screen, _: screen.resize(rows, columns), until)


def poke(name: str, text: str, until: str) -> Step:
    """Writes to a file or fifo from another process."""
    return Step(f"{text!r} into {name}", lambda _, directory: write(directory / name, text), until)


def write(path: Path, text: str) -> None:
    """Errors: TimeoutError, if no process reads from the fifo."""
    end = time.monotonic() + GATE_PATIENCE
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
            time.sleep(0.01)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


Scene = Callable[[random.Random], Iterator[Step]]
UP, LEFT = "\x1b[A", "\x1b[D"
FRONT_REPORTED = r"in front$"
STOPPED = rf"Stopped[^\n]*{PROMPT}"


# Events up to that moment decide whether bash reports a job before its next prompt, and whether `wait` waits. A shell may be frozen for a
# while at any point, so a script names the event that it waits for. Bash reports jobs that have ended once a program in front has ended.
UNTIL_GONE = "while kill -0 $p 2> /dev/null; do sleep .1; done; sleep .1"


def until_stopped(what: str) -> str:
    """Returns a shell loop that waits until the job of that name is stopped."""
    return f"until jobs -s | grep -q {what}; do sleep .1; done"


def stop_and_go(chance: random.Random) -> Iterator[Step]:
    yield line("./front", FRONT_REPORTED)
    for _ in range(chance.randint(1, 3)):
        yield keys("\x1a", STOPPED)
        yield line("jobs")
        if chance.random() < 0.5:
            yield line("bg")
            yield line("jobs")
        yield line(chance.choice(["fg", "fg %1", "%1"]), FRONT_REPORTED)
    yield keys(chance.choice(["\x03", "\x1c"]))
    yield line("echo status $?")


def several_jobs(chance: random.Random) -> Iterator[Step]:
    yield line("./front", FRONT_REPORTED)
    yield keys("\x1a", STOPPED)
    yield line("sleep 1000 &")
    yield line("sh -c 'echo begun; exec sleep 1000'", r"begun$")
    yield keys("\x1a", STOPPED)
    yield line("jobs")
    yield line("fg %1", FRONT_REPORTED)
    yield keys("\x1a", STOPPED)
    for number in chance.sample([1, 2, 3], 3):
        # The current job afterwards depends on whether bash is notified that this job continues before it has ended.
        yield line(f"p=$(jobs -p %{number}); kill %{number}; {UNTIL_GONE}; clear; echo {number} is gone")
    yield line("wait; jobs; echo none left")


def a_pipeline(chance: random.Random) -> Iterator[Step]:
    yield line("sleep 1000 | ./front | cat", FRONT_REPORTED)
    yield keys("\x1a", STOPPED)
    yield line("jobs")
    yield line("fg", FRONT_REPORTED)
    yield keys("\x03")
    yield line("echo status ${PIPESTATUS[*]}")
    lines = chance.randint(500, 3000)
    yield line(f"seq 1 {lines} | sort -rn | head -n 3")
    yield line("yes farhome | head -n 2 | tr a-z A-Z; false | true; echo ${PIPESTATUS[*]}")
    yield line("seq 1 5 | while read n; do echo $((n * n)); done | paste -sd+")
    yield line("diff <(seq 3) <(seq 4)")


def behind(chance: random.Random) -> Iterator[Step]:
    word = chance.choice(["one", "two", "three"])
    yield line('{ read x < gate; echo "behind: $x"; } & p=$!')
    yield poke("gate", f"{word}\n", rf"behind: {word}$")
    yield line(f"{UNTIL_GONE}; wait")
    yield line("((sleep 0.3; echo first) & (sleep 0.1; exit 3) & wait; echo both)")
    yield line("(sleep 0.1 & wait $!; echo status $?)")
    yield line(f"sleep 0.1 & p=$!; {UNTIL_GONE}; wait $p; echo status $?")


def traps(chance: random.Random) -> Iterator[Step]:
    yield line("trap 'echo got' USR1; kill -USR1 $$")
    yield line("trap 'got=it' USR1; (while sleep 0.3; do kill -USR1 $$; done) & p=$!; wait $p; echo status $? $got")
    yield line(f"kill $p; {UNTIL_GONE}")
    yield line("trap - USR1; trap 'echo interrupted' INT; sh -c 'echo begun; exec sleep 1000'", r"begun$")
    yield keys("\x03")
    yield line("trap - INT")


def typed(chance: random.Random) -> Iterator[Step]:
    count = chance.randint(1, 4)
    yield line("cat << END | wc", r"\n>$")
    for number in range(count):
        yield line(f"line {number} of the document", rf"line {number} of the document\n>$")
    yield line("END")
    yield line("read -p 'what? ' x; echo \"<$x>\"", r"what\?$")
    yield line("abc\x7fd")
    yield line("read -t 0.2 x; echo status $?")
    yield line("echo begun; cat", r"begun$")
    yield line("twice", r"twice\ntwice$")
    yield keys("\x04")
    yield line("sh -c 'echo begun; exec cat'", r"begun$")  # it says so itself: bash has begun it, and it has the terminal
    yield keys("\x03")
    yield line("echo one two three" + LEFT * 5 + "\x7f\x7f\x7f\x7f" + "\x05 four")
    yield keys(UP, r"echo one three four$")
    yield keys("\x15", PROMPT)
    yield keys("cat no\t", r"cat notes$")
    yield line("")


def settings(chance: random.Random) -> Iterator[Step]:
    yield line('stty -echo; echo begun; read x; stty echo; echo "<$x>"', r"begun$")
    yield line("hidden")
    yield line("stty raw -echo; echo begun; dd bs=1 count=3 2> /dev/null | od -An -c; stty sane; echo", r"begun$")
    yield keys("\x03\x1ax")
    yield line(f"cat > taken & {until_stopped('taken')}; jobs")
    yield line("fg", r"cat > taken$")
    yield line("for the one in front", r"for the one in front$")
    yield keys("\x04")
    yield line("cat taken")
    yield line(f"stty tostop; sh -c 'echo written' & {until_stopped('written')}")
    yield line("fg")
    yield line("stty -tostop")


def sizes(chance: random.Random) -> Iterator[Step]:
    yield line("clear", PROMPT)
    yield line("./sizes", r"ready$")
    for _ in range(2):
        rows, columns = chance.randint(20, 40), chance.randint(60, 120)
        yield size(rows, columns, rf"size {rows} {columns}$")
    yield keys("\x03")
    yield line("stty size; echo $LINES $COLUMNS")
    yield line("clear; ./sizes", r"ready$")
    yield size(*SIZE, rf"size {SIZE[0]} {SIZE[1]}$")
    yield keys("\x03")


def a_shell_within(chance: random.Random) -> Iterator[Step]:
    yield line("PS1='within> ' bash --norc --noprofile -i", r"within>$")
    yield line("echo $((1 + 1))", r"2\nwithin>$")
    yield line("./front", FRONT_REPORTED)
    yield keys("\x1a", r"Stopped[^\n]*\nwithin>$")
    yield line("suspend", STOPPED)
    yield line("jobs")
    yield line("fg", r"within>$")
    yield line("fg", FRONT_REPORTED)
    yield keys("\x03", r"within>$")
    yield line("exit 5")
    yield line("echo status $?")


def in_vim(chance: random.Random) -> Iterator[Step]:
    word = chance.choice(["farther", "nearer", "somewhere"])
    normal = r"(?s)^(?!.*-- INSERT --)"
    yield line("clear; vim -Nu settings -i NONE -n notes", r'"notes" \d+L, \d+B')
    yield keys("Gonew: ", r"-- INSERT --")
    yield keys(f"{word} than all others", rf"{word} than all others")
    yield keys("\x1b", normal)
    yield keys("gg/line\n", r"/line")
    yield keys("n", r"/line")
    yield keys("\x1a", STOPPED)
    yield line("jobs")
    yield line("fg", r"the first line")
    yield keys("ddp", r"another one")
    yield line(":%s/one/two/g", r":%s|substitution|two")
    yield size(30, 100, r"two")
    yield size(*SIZE, r"two")
    yield line(":w", r"written$")
    yield line(":q")
    yield line("clear; wc notes")


def in_less(chance: random.Random) -> Iterator[Step]:
    number = chance.randint(60, 150)
    yield line("clear; less story", r"story$")
    yield keys(" ", r"\n:$")
    yield line(f"/chapter {number},", rf"^chapter {number},(?s:.)*:$")
    yield keys("b", r"\n:$")
    yield signal_keys("\x1a", STOPPED)
    yield line("fg", r"\n:$")
    yield keys("G", r"\(END\)$")
    yield keys("F", r"Waiting for data")
    yield poke("story", f"a late chapter {number}\n", rf"late chapter {number}\nWaiting for data")
    yield keys("\x03", r"late chapter \d+\n:$|\(END\)$")
    yield keys("g", r"^chapter 1,(?s:.)*:$")
    yield keys("q")
    yield line("clear; wc -l story")


def in_nano(chance: random.Random) -> Iterator[Step]:
    word = chance.choice(["farther", "nearer", "somewhere"])
    yield line("clear; nano -I notes", r"Read \d+ lines")
    yield keys(f"{word}: ", rf"\n{word}: ")
    yield keys("\x17", r"Search")
    yield keys("last\r", r"last line(?s:.)*\^X")
    yield keys("\x14\x1a", STOPPED)
    yield line("fg", rf"{word}: ")
    yield keys("\x0f", r"File Name to Write: notes")
    yield keys("\r", r"Wrote \d+ lines")
    yield keys("\x18", PROMPT)
    yield line("clear; wc notes")


SHORT: list[Scene] = [stop_and_go, behind, settings, in_less]
SCENES: list[Scene] = [stop_and_go, several_jobs, a_pipeline, behind, traps, typed, settings, sizes, a_shell_within]
EDITORS: dict[str, Scene] = {"vim": in_vim, "less": in_less, "nano": in_nano}


def missing() -> list[str]:
    """The programs that this machine has not."""
    return [name for name in EDITORS if shutil.which(name) is None]


def script(seed: int, scenes: list[Scene]) -> list[Step]:
    """All that is typed, for that seed; scenes whose program is missing are left out."""
    chance = random.Random(seed)
    left_out = [EDITORS[name] for name in missing()]
    there = [scene for scene in scenes if scene not in left_out]
    return [step for scene in chance.sample(there, len(there)) for step in scene(chance)]


def prepare(place: Place) -> Path:
    """A fresh directory with what the scenes need; its path as this process sees it."""
    directory = place.root / DIRECTORY
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, text in {"front": FRONT, "sizes": SIZES, "notes": NOTES, "settings": VIM, "story": STORY}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    os.mkfifo(directory / "gate")
    return directory


class Differs(AssertionError):
    """A screen is not as it was natively."""


def play(place: Place, launcher: list[str], steps: list[Step], natively: list[Picture] | None = None, quiet: float = 0.2) -> list[Picture]:
    """Plays the script on an interactive bash, started by the launcher, until it has ended with status 7; returns the screen after each
    step.

    natively: what those were; each has to come about within a minute, else Differs. Without them a step is over when what it shows has
    come and nothing more does for `quiet` seconds."""
    directory = prepare(place)
    variables = [f"PATH={PATH}", "HOME=/tmp/desk", "TERM=linux", "LC_ALL=C.UTF-8", "PS1=desk$ ", "HISTFILE=", "HISTCONTROL=ignoreboth"]
    shell = ["env", "-i", "-C", f"/{DIRECTORY}", *variables, *launcher, "bash", "--norc", "--noprofile", "-i"]
    nothing = Picture(("",) * SIZE[0], (0, 0))
    found: list[Picture] = []
    with Screen(place, shell, *SIZE) as screen:
        for number, step in enumerate([line("ulimit -c 0", PROMPT), *steps]):
            if number == 0:
                screen.settles(PROMPT, nothing, quiet)
            before = screen.picture()
            step.do(screen, directory)
            if natively is None:
                try:
                    found.append(screen.settles(step.until, before, quiet))
                except TimeoutError as error:
                    raise TimeoutError(f"after {step.said} (step {number}): {error}") from None
            elif screen.becomes(natively[number], 60):
                found.append(natively[number])
            else:
                raise Differs(f"after {step.said} (step {number} of {len(steps)}); natively (-) and now (+): "
                              f"{natively[number].beside(screen.picture())}")  # fmt: skip
        screen.enter("exit 7\n")
        status = screen.end(60)
    if status != 7:
        raise Differs(f"the shell ended with {status}")
    return found
