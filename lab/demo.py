"""The main job, shown: three virtual nodes, one real program, the balancer, moves by hand, home again, the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab import Lab

# A Merkle-like walk: hashes, a growing table in memory, a file that is appended to, sought and read again.
PROGRAM = r"""
import hashlib, sys
table, digest = {}, b"farhome"
with open(sys.argv[1], "wb+") as log:
    for step in range(int(sys.argv[2])):
        for _ in range(4000):
            digest = hashlib.sha256(digest).digest()
        table[step] = digest * 64
        log.seek(0, 2)
        log.write(digest.hex().encode() + b"\n")
        if step % 200 == 199:
            log.seek(65 * (step // 2))
            assert log.read(64).decode() == table[step // 2][:32].hex()
            print(step + 1, digest.hex(), flush=True)
print("table", hashlib.sha256(b"".join(table.values())).hexdigest())
"""

STEPS = "4500"
NEXT = """
What to type next (the lab is gone; this makes a new one):
  bin/lab up 3                        three nodes n1, n2, n3 on this machine
  bin/lab sh n1 mosrun -b python3 -c 'while True: pass' &
  bin/lab sh n1 mon                   who is loaded, who lends; q to quit
  bin/lab sh n1 mosps                 what runs where; migrate PID n3, migrate PID home
  bin/lab down                        nothing is left behind
"""


class Demo:
    """One run; `say` prints with the time since the start."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.node = lab.node("n1")
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:5.1f} s] {text}", flush=True)

    def processes(self, job: int) -> list[dict[str, object]]:
        """mosps's view of a job on n1."""
        done = self.node.run(["mosps", "--json", "-J", str(job)], capture_output=True, text=True, timeout=20)
        return list(json.loads(done.stdout or "[]"))

    def await_place(self, job: int, away: bool, patience: float) -> dict[str, object]:
        """Return the job's process once it is away (or home). Errors: SystemExit with what was seen."""
        end = time.monotonic() + patience
        seen: list[dict[str, object]] = []
        while time.monotonic() < end:
            seen = self.processes(job)
            if seen and (seen[0]["where"] != "home") == away and seen[0]["state"] in ("home", "away"):
                break
            time.sleep(0.2)
        else:
            self.fail(f"the process did not come to where it should: {seen}")
        return seen[0]

    def fail(self, sentence: str) -> NoReturn:
        """Says what was not so, with the ends of the logs that may report why."""
        logs = "tail -n 15 /run/farhome/mosd.log /run/farhome/log/*.log"
        for name in ("n1", "n2", "n3"):
            shown = self.lab.node(name).run(["sh", "-c", logs], text=True, timeout=10)
            print(f"--- {name}\n{shown.stdout}", file=sys.stderr)
        sys.exit(f"demo: {sentence}")

    def move(self, pid: object, target: str) -> None:
        """`migrate`, by hand."""
        done = self.node.run(["migrate", str(pid), target], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            self.fail(f"migrate {pid} {target} failed: {done.stderr.strip()}")
        self.say(f"migrate {pid} {target}: {done.stdout.strip()}")

    def run(self) -> None:
        """Everything; SystemExit with a sentence if one part is not so."""
        script = Path("/tmp/walk.py")
        self.node.run(["sh", "-c", f"cat > {script}"], input=PROGRAM, text=True, timeout=10)
        native = self.node.run(["python3", str(script), "/tmp/native.log", STEPS], capture_output=True, timeout=120)
        self.say(f"native run on n1: {len(native.stdout)} bytes of output, {hashlib.sha256(native.stdout).hexdigest()[:16]}")
        busy = self.node.popen(["python3", "-c", "while True: pass"])  # something else to do at home: n1 is loaded
        moved = self.node.popen(["mosrun", "-J", "1", "python3", str(script), "/tmp/away.log", STEPS], stdout=-1)
        try:
            self.say("mosrun on n1, which is busy with something else: the balancer looks for a better place")
            process = self.await_place(1, away=True, patience=20)
            self.say(f"process {process['pid']} was moved to {process['where']} by itself, frozen {process['frozen_ms']} ms")
            other = "n3" if process["where"] == "n2" else "n2"
            self.move(process["pid"], other)
            self.move(process["pid"], "home")
            busy.kill()  # it has made its point
            output, _ = moved.communicate(timeout=120)
        finally:
            for running in (busy, moved):
                if running.poll() is None:
                    running.kill()
                    running.wait()
        same = output == native.stdout and moved.returncode == native.returncode == 0
        logs = self.node.run(["cmp", "/tmp/native.log", "/tmp/away.log"], timeout=20).returncode == 0
        self.say(f"its output: {len(output)} bytes, {hashlib.sha256(output).hexdigest()[:16]}; exit status {moved.returncode}")
        if not same or not logs:
            self.fail("the output differs from the native run's")
        self.say("byte for byte what the native run gave, and so is the file it wrote")


def main() -> int:
    """Exit 0 only if everything was as it should be."""
    begun = time.monotonic()
    with Lab.up(3, name=f"demo{os.getpid()}") as lab:
        print(f"[{time.monotonic() - begun:5.1f} s] three virtual nodes are up: n1 n2 n3, each with its own mosd", flush=True)
        Demo(lab).run()
    print(NEXT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
