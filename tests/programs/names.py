"""Changes names and reads them: see tests/moves/test_names.py. One process changes names at home. Others read them, and are notified by a
pipe, a signal, a lock or a file of what they have to find."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import stat
import sys
import time

TREE = "tree"
DIRECTORIES = tuple(f"{TREE}/{name}" for name in ("a", "a/b", "a/b/c", "d", "link", "link/c", "d/../a/b", "a/b/../../d"))
NAMES = ("one", "two", "three", "c", "deep/one", "one/under", "../two", "...")
WAYS = ("pipe", "signal", "lock", "file")


def seen(path: str) -> list[object]:
    """Returns the attributes of a path, from each call that reports them."""
    found: list[object] = []
    for call in (os.stat, os.lstat):
        try:
            status = call(path)
            found.append((status.st_ino, status.st_mode, status.st_nlink))
            if stat.S_ISDIR(status.st_mode):
                found.append(status.st_mtime_ns)
        except OSError as error:
            found.append(error.errno)
    try:
        found.append(os.readlink(path))
    except OSError as error:
        found.append(error.errno)
    try:
        os.close(os.open(path, os.O_RDONLY))
        found.append(0)
    except OSError as error:
        found.append(error.errno)
    return [*found, os.access(path, os.F_OK), os.access(path, os.X_OK)]


def paths(rng: random.Random) -> list[str]:
    """Some of those that are changed; from the working directory, and from the root."""
    chosen = [f"{rng.choice(DIRECTORIES)}/{rng.choice(NAMES)}" for _ in range(6)] + [rng.choice(DIRECTORIES)]
    return [path if rng.random() < 0.5 else f"{os.getcwd()}/{path}" for path in chosen]


def act(rng: random.Random) -> None:
    """Makes one change, which may well fail."""
    one, two = (f"{rng.choice(DIRECTORIES)}/{rng.choice(NAMES)}" for _ in range(2))
    what = rng.randrange(12)
    try:
        if what < 2:
            os.close(os.open(one, os.O_CREAT | os.O_WRONLY, 0o644))
        elif what < 4:
            os.unlink(one)
        elif what == 4:
            os.rename(one, two)
        elif what == 5:
            os.mkdir(one)
        elif what == 6:
            os.rmdir(one)
        elif what == 7:
            os.symlink(rng.choice(("two", ".", "/nowhere/at/all", "../d", "c")), one)
        elif what == 8:
            os.link(one, two)
        elif what == 9:
            os.chmod(f"{TREE}/{rng.choice(('a', 'a/b', 'd'))}", rng.choice((0o755, 0o700)))
        elif what == 10:
            os.rename(*(f"{TREE}/{name}" for name in (("a/b", "moved") if os.path.isdir(f"{TREE}/a/b") else ("moved", "a/b"))))
        else:
            os.unlink(f"{TREE}/link")
            os.symlink(rng.choice(("a/b", "a", "d", "nowhere")), f"{TREE}/link")
    except OSError:
        pass


def change(seed: str, rounds: str, *pids: str) -> None:
    """Makes changes and has each reader check them; ends by printing how many rounds there were."""
    rng = random.Random(int(seed))
    requests = [os.open(f"to{n}", os.O_WRONLY) for n in range(len(pids))]
    answers = [os.open(f"from{n}", os.O_RDONLY) for n in range(len(pids))]
    for number in range(int(rounds)):
        for _ in range(rng.randrange(1, 4)):
            act(rng)
        way = rng.choice(WAYS)
        chosen = paths(rng)
        word = json.dumps([number, {path: seen(path) for path in chosen}, way])
        for n, pid in enumerate(pids):
            with open(f"word{n}.new", "w") as file:
                file.write(word)
            if way == "file":
                os.rename(f"word{n}.new", f"word{n}")
                continue
            shutil.copy(f"word{n}.new", f"message{n}")
            if way == "pipe":
                os.write(requests[n], b"x")
            elif way == "signal":
                os.kill(int(pid), signal.SIGUSR1)
            else:
                with open(f"lock{n}", "w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    lock.write("x")
        for n in range(len(pids)):
            os.read(answers[n], 1)
    for n, pid in enumerate(pids):
        with open(f"message{n}", "w") as file:
            file.write("null")
        os.kill(int(pid), signal.SIGUSR1)
    print(rounds, "rounds", flush=True)


def next_message(n: str, requests: int) -> str:
    """Waits for the message of a round, by whichever way it comes."""
    while True:
        for one in (f"word{n}", f"lock{n}"):
            if os.path.exists(one) and os.path.getsize(one):
                with open(one, "r+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    word = file.read()
                os.unlink(one)
                if one.startswith("word"):
                    return word
                break
        else:
            if signal.sigtimedwait([signal.SIGUSR1], 0) is None:
                try:
                    os.read(requests, 1)
                except BlockingIOError:
                    time.sleep(0.0005)
                    continue
        with open(f"message{n}") as file:
            return file.read()


def compare(number: int, expected: dict[str, object], way: str, by_child: bool) -> int:
    """Returns how many paths differ from the expected result. A child knows only what others of its node have found."""
    if by_child and (child := os.fork()):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stale = 0
    for path, wanted in expected.items():
        found = json.loads(json.dumps(seen(path)))
        if found != wanted:
            stale += 1
            print("STALE", number, way, "child" if by_child else "", path, wanted, found, flush=True)
    if by_child:
        os._exit(stale)
    return stale


def read(n: str, seed: str) -> None:
    """Compares the names with each message; reads others in between, so that there is something to remember."""
    rng = random.Random(int(seed))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    requests = os.open(f"to{n}", os.O_RDONLY | os.O_NONBLOCK)
    answers = os.open(f"from{n}", os.O_WRONLY)
    print("ready", flush=True)
    stale = count = 0
    while (word := json.loads(next_message(n, requests))) is not None:
        number, expected, way = word
        stale += compare(number, expected, way, by_child=rng.random() < 0.2)
        count += len(expected)
        for path in paths(rng):
            seen(path)
        os.write(answers, b"x")
    print(stale, "of", count, "were stale", flush=True)


if __name__ == "__main__":
    {"change": change, "read": read}[sys.argv[1]](*sys.argv[2:])
