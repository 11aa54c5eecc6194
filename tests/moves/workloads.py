"""The programs that a storm of moves must not change: what to run, on what, and how large.

A workload is a shell script in a fresh directory. `$RUN` stands in it before each program that may move: nothing
natively, `mosrun -J JOB` under moves. Standard output, standard error, the exit status and every file that is left in
the directory are compared byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tests.programs import inputs
from tests.programs.build import HERE as PROGRAMS
from tests.programs.build import program

USER = "farhome-a"


@dataclass(frozen=True)
class Workload:
    """A shell script with what it needs.

    `numbers` are shell variables, multiplied by the scale; `inputs` make files, their size multiplied by the scale;
    `programs` are C programs, `sources` files of tests/programs, both copied into the directory. `refusals` (a regular
    expression) says for which reasons it may be kept where it is. `user` is who runs it in the quick suite: "" is root. `port`: 0 or 1,
    another one for each workload that listens, for they may run side by side.
    """

    name: str
    script: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[Callable[[int], bytes], int]] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    refusals: str = "$^"
    user: str = ""
    port: int = 0

    def prepare(self, directory: Path, scale: float) -> None:
        """Fills the fresh directory."""
        for name in self.programs:
            copy(directory / name, program(name).read_bytes(), 0o755)
        for name in self.sources:
            copy(directory / name, (PROGRAMS / name).read_bytes(), 0o644)
        for name, (make, size) in self.inputs.items():
            copy(directory / name, made(make, max(1, round(size * scale))), 0o644)

    def environment(self, scale: float) -> dict[str, str]:
        return {name: str(max(1, round(number * scale))) for name, number in self.numbers.items()}


def copy(path: Path, content: bytes, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode)


@lru_cache(maxsize=16)
def made(make: Callable[[int], bytes], size: int) -> bytes:
    return make(size)


def inserts(rows: int) -> bytes:
    return inputs.inserts(rows, 50)


def scale() -> float:
    """Size of the workloads: 1, as with ./test --all, takes three to four seconds each natively; the soak runs 4, which has the full
    sizes."""
    return float(os.environ.get("FARHOME_STORM_SCALE", "1" if os.environ.get("FARHOME_LONG_TESTS") else "0.3"))


SERVER = """$RUN ./echo_server {how} $PORT 11 > served & server=$!
python3 echo_client.py $PORT $ROUNDS; echo "client ended with $?"
wait $server; echo "server ended with $?"
"""

SORT = """mkdir parts
for key in 1 1.3 1.5 1.7; do
    $RUN sort -S 4M -T parts --parallel=1 -k $key -o sorted-$key lines; echo "sorted $?"
    $RUN sort -k $key -c sorted-$key; echo "in order $?"
done
ls parts; rm lines
"""

AWK = """$RUN awk '
    { for (i = 1; i <= NF; i++) count[$i]++; total += length($0) }
    NR % 20000 == 0 { print NR, total }
    END { for (word in count) if (count[word] > 50) print word, count[word] > "counted"; print total }
' $(yes text | head -n $PASSES)
echo $?; sort counted | sha256sum; rm text
"""

ENDINGS = """for how in exit:3 return:4 abort segv fpe signal:15 signal:9 thread-exit:9 last-thread; do
    { $RUN ./endings $how $MS 2>&4; } 4>&2 2>/dev/null
    echo "$how gave $?"
done
"""

WORKLOADS: tuple[Workload, ...] = (
    Workload("counter", "$RUN ./counter lines $COUNT 50 16", {"COUNT": 70}, programs=("counter",)),
    Workload("memory", "$RUN ./memory $STEPS", {"STEPS": 1000}, programs=("memory",), user=USER),
    Workload("threads", "$RUN ./threads $ROUNDS", {"ROUNDS": 50}, programs=("threads",)),
    Workload("births", "$RUN ./births $ROUNDS; rm scratch", {"ROUNDS": 90}, programs=("births",), user=USER),
    Workload(
        "family", "$RUN ./family $ROUNDS", {"ROUNDS": 16}, programs=("family",), user=USER, refusals="shares anonymous memory|\\(vfork\\)"
    ),
    Workload("itself", "$RUN ./itself $ROUNDS 10", {"ROUNDS": 260}, programs=("itself",), user=USER, refusals="looks at itself"),
    Workload("quiet", "$RUN ./quiet $ROUNDS", {"ROUNDS": 45}, programs=("quiet",), user=USER),
    Workload("signals", "$RUN ./signals $ROUNDS", {"ROUNDS": 10}, programs=("signals",)),
    Workload(
        "rare",
        "$RUN ./rare $ROUNDS",
        {"ROUNDS": 8},
        programs=("rare",),
        refusals="share[ds]|System V|counts its processor time",
        user=USER,
    ),
    Workload("appender", "$RUN ./appender lines $COUNT 200 > said; cat said", {"COUNT": 10000}, programs=("appender",)),
    Workload(
        "python",
        "mkfifo requests feed; python3 prodder.py & $RUN python3 mixed.py $ROUNDS; status=$?; wait; exit $status",
        {"ROUNDS": 25},
        sources=("mixed.py", "prodder.py"),
        user=USER,
    ),
    Workload(
        "xz",
        "cat text | $RUN xz -6 -T1 | tee text.xz | $RUN xz -dc | cmp - text; echo ${PIPESTATUS[*]}; rm text",
        inputs={"text": (inputs.text, 8_000_000)},
    ),
    Workload(
        "sqlite3",
        "$RUN sqlite3 base.db < inserts.sql; echo $?; sqlite3 base.db .dump | sha256sum",
        inputs={"inserts.sql": (inserts, 120_000)},
        user=USER,
    ),
    Workload(
        "sort",
        SORT,
        inputs={"lines": (inputs.random_lines, 25_000_000)},
    ),
    Workload(
        "awk",
        AWK,
        {"PASSES": 9},
        {"text": (lambda size: inputs.text(16_000_000), 1)},
    ),
    Workload(
        "perl",
        "$RUN perl words.pl text $ROUNDS",
        {"ROUNDS": 10},
        {"text": (lambda size: inputs.text(1_500_000), 1)},
        sources=("words.pl",),
        user=USER,
    ),
    Workload(
        "bc",
        'echo "scale=$DIGITS; 4*a(1); e(1)" | $RUN bc -l | tee digits | sha256sum; wc digits',
        {"DIGITS": 2000},
    ),
    Workload("bash", "$RUN bash job.sh $ROUNDS", {"ROUNDS": 24}, sources=("job.sh",), user=USER),
    Workload(
        "poll server",
        SERVER.format(how="poll"),
        {"ROUNDS": 800},
        programs=("echo_server",),
        sources=("echo_client.py",),
    ),
    Workload(
        "epoll server",
        SERVER.format(how="epoll"),
        {"ROUNDS": 800},
        programs=("echo_server",),
        sources=("echo_client.py",),
        user=USER,
        port=1,
    ),
    Workload("endings", ENDINGS, {"MS": 600}, programs=("endings",), refusals="its main thread has ended"),
)
BY_NAME = {workload.name: workload for workload in WORKLOADS}
