"""PostgreSQL started under mosrun serves pgbench in a storm of moves: no error, and the accounts balance.

The server's processes share memory that they write, so they stay at home and say so; pgbench moves.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.moves.cluster import Cluster, Move, until
from tests.moves.outcome import PATH, kill_session
from tests.moves.storm import EXCUSED, Mover, new_seed
from tests.moves.workloads import USER

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/lib/postgresql/none/bin"))
SECONDS = 20
STAYS = re.compile("shares anonymous memory|mapped shared and writable|System V shared memory")
WRONG = re.compile("PANIC|FATAL:  (?!the database system is starting up)|terminated by signal")
"""Messages that the server must not print; clients that connect too early get the one excepted message."""
BALANCES = "select sum(abalance) from pgbench_accounts; select sum(tbalance) from pgbench_tellers;" \
    "select sum(bbalance) from pgbench_branches; select sum(delta) from pgbench_history; select count(*) from pgbench_history"  # fmt: skip

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(SECONDS * 10),
    pytest.mark.skipif(not PROGRAMS.is_dir(), reason="PostgreSQL is not installed"),
]


class Server:
    """A server of its own for an ordinary user of the home node, on a socket in its directory."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.cluster = cluster
        self.directory = cluster.home.root / "tmp" / job
        self.directory.mkdir()
        shutil.chown(self.directory, USER, USER)
        self.variables = {"PATH": f"{PROGRAMS}:{PATH}", "HOME": f"/tmp/{job}", "LC_ALL": "C.UTF-8"}
        self.variables |= {"PGHOST": f"/tmp/{job}", "PGUSER": "user", "PGDATABASE": "postgres"}
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.run("initdb -D data -A trust -U user", 60)
            script = f"exec mosrun -L -J {job} -- postgres -D data -c listen_addresses= -c fsync=off -k $HOME"
            with (self.directory / "server.log").open("wb") as log:
                self.process = cluster.home.popen(self.argv(script), USER, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            until("the server answers", lambda: cluster.home.run(*self.argv("pg_isready -q"), user=USER).returncode == 0, seconds=30)
        except BaseException:
            self.close()
            raise

    def argv(self, script: str) -> list[str]:
        return ["env", "-i", *(f"{name}={value}" for name, value in self.variables.items()), "bash", "-c", f"cd $HOME && {script}"]

    def run(self, script: str, seconds: float) -> str:
        """Runs the script and returns its output. It must end with 0."""
        done = self.cluster.home.run(*self.argv(script), user=USER, timeout=seconds)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}{self.said()}"
        return done.stdout + done.stderr

    def said(self) -> str:
        log = self.directory / "server.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""

    def close(self) -> None:
        """Ends it, as pg_ctl does, if it has not ended by itself."""
        if self.process is not None and self.process.poll() is None:
            self.cluster.home.run(*self.argv("pg_ctl -D data -m fast -t 20 stop"), user=USER)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                kill_session(self.process.pid)
                self.process.wait(10)
        shutil.rmtree(self.directory)


@contextmanager
def storm(cluster: Cluster, job: str, seed: int) -> Iterator[list[Move]]:
    """Moves the job's processes while the body runs; the list is complete when it is over."""
    mover = Mover(cluster, job, seed, (0.1, 0.6))
    moves: list[Move] = []
    mover.start()
    try:
        yield moves
    finally:
        moves += mover.stop()


def test_pgbench_moves_and_the_accounts_balance(cluster: Cluster) -> None:
    seed = new_seed()
    server_job, job = f"postgres-{seed}", f"pgbench-{seed}"
    with ExitStack() as stack:
        server = stack.enter_context(closing(Server(cluster, server_job)))
        server.run("pgbench -q -i -s 2", 60)
        with storm(cluster, server_job, seed) as stayed, storm(cluster, job, seed + 1) as moves:
            for options in (f"-S -c 4 -j 2 -T {SECONDS}", f"-n -c 4 -j 2 -T {SECONDS}", "-n -M prepared -C -c 2 -T 5"):
                said = server.run(f"mosrun -L -J {job} -- pgbench {options}", SECONDS * 3)
                print(options, *re.findall("(?:number of (?:transactions|failed)|tps).*", said), sep="\n  ")
                assert "number of failed transactions: 0 (" in said
                assert not re.search("error|fatal|abort", said, re.IGNORECASE), said
        accounts, tellers, branches, history, rows = server.run(f"psql -At -c '{BALANCES}'", 60).split()
        assert accounts == tellers == branches == history
        assert int(rows) > 0
        assert server.process is not None
        assert server.process.poll() is None, server.said()
        assert not WRONG.search(server.said()), server.said()
    done = [move for move in moves if move.done]
    print(f"seed {seed}: pgbench moved {len(done)} times; the server was asked {len(stayed)} times")
    assert {move.kind for move in done} == {"out", "hop", "home"}
    wrong = [str(move) for move in moves if not move.done and not EXCUSED.search(move.said)]
    wrong += [str(move) for move in stayed if not move.done and not EXCUSED.search(move.said) and not STAYS.search(move.said)]
    assert not wrong, "\n".join(wrong)
    assert any(STAYS.search(move.said) for move in stayed)
