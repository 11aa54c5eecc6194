"""Well-known programs that work on home's files, away against at home: grep -r, tar, sqlite3, gcc.

Each time a shell under mosrun waits for a word, is moved or not, gets the word and becomes file_ops.c, which runs the program and reports
how long it took; the program and its children run where the shell was.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from bench.common.nodes import checked, migrate, wait_until
from bench.common.result import BenchFailed, Result

if TYPE_CHECKING:
    from lab import Lab

BASE = "/tmp/file-work"
PREPARE = f"""
rm -rf {BASE} && mkdir -p {BASE}/tree && cd {BASE}/tree && for d in $(seq 20); do mkdir $d && for n in $(seq 20); do
    for line in $(seq 40); do echo "int f_${{d}}_${{n}}_$line(int x) {{ return x * $line + $n; }} /* the needle's hay */"; done > $d/$n.c
done; done
"""
PROGRAMS = {
    "grep -r": "grep -rc needle tree",
    "tar": "tar -cf tree.tar tree; rm tree.tar",
    "sqlite3": "rm -f base; (echo 'create table t(a, b); begin;';"
    " for n in $(seq 500); do echo \"insert into t values($n, 'row $n');\"; done;"
    " echo 'commit; select count(*), sum(a) from t where b like \"%7\";') | sqlite3 base",
    "gcc": "for n in 1 2 3; do gcc -O1 -c -o object.o tree/$n/$n.c || exit 1; done",
}
BOUND = 200


def _seconds(lab: Lab, program: str, name: str, job: str, target: str) -> float:
    """Runs a program at home or on the target. Errors: BenchFailed."""
    waiting = f'cd {BASE} && read -r word && exec {program} run sh -c "$1"'
    argv = ["mosrun", "-L", "-J", job, "sh", "-c", waiting, "sh", PROGRAMS[name]]
    with lab.node("n1").popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            if target != "home":
                wait_until(lambda: checked(lab.node("n1"), ["mosps", "--json", "-J", job]).strip() != "[]", name)
                migrate(lab, job, target)
            said, errors = process.communicate("go\n", timeout=BOUND)
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"{name} took more than {BOUND} s {target}") from None
        finally:
            process.kill()
    if process.returncode:
        raise BenchFailed(f"{name} ended with {process.returncode} {target}: {errors.strip().splitlines()[-1:]}")
    return float(said)


def results(lab: Lab, program: str, count: int) -> list[Result]:
    """Of so many rounds on n1 and n2. Errors: BenchFailed."""
    checked(lab.node("n1"), ["sh", "-c", PREPARE])
    found = []
    for name in PROGRAMS:
        samples: dict[str, list[float]] = {"home": [], "n2": []}
        for number in range(count):
            for target, times in samples.items():
                times.append(_seconds(lab, program, name, f"{name.split()[0]}-{target}-{number}", target))
        found.append(Result.of(f"{name}, away", samples["n2"], samples["home"], unit="s", baseline_name="at home"))
    return found
