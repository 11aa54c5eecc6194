"""`mosrun --trace` reports each system call that a process makes while it is away, and changes nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.storm import storm
from tests.moves.workloads import BY_NAME, USER, scale

pytestmark = pytest.mark.timeout(240)

PLACE = r"<\d+\.\d{6} (at home|on n[23]|on n[23] and at home)>"
LINE = re.compile(rf"\d+ \w+\(.*\) = (\?|\? \(interrupted\) {PLACE}|[-\w].* {PLACE}|\? <takes it home from n[23]>)")


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "ordinary user"])
def test_a_family_is_traced_out_hop_and_home(cluster: Cluster, user: str) -> None:
    with Running(cluster, "family", "14 100 apart", user, mosrun="mosrun -L --trace=calls") as family:
        family.works(30)
        for target in ("n2", "n3", HOME):
            family.moved(target)
            family.works(60)
            family.works(60)
        said = family.end(180)
        assert said == cluster.home.run("sh", "-c", f"cd /tmp; {family.binary} 14 0 apart; echo status $?").stdout
        lines = (family.directory / "calls").read_text().splitlines()
    odd = [line for line in lines if not LINE.fullmatch(line)]
    assert not odd, odd[:5]
    for place in ("at home", "on n2", "on n3", "and at home"):
        assert any(f" {place}>" in line for line in lines), place
    assert len({line.split()[0] for line in lines}) > 2, "the calls of children are missing"
    births = [line for line in lines if re.match(r"\d+ (clone|clone3|fork|vfork)\(", line)]
    assert any(re.search(r"= \d+ <", line) for line in births), births[:5]
    assert any("wait4(" in line and " at home>" in line for line in lines)


def test_lines_come_on_standard_error_and_the_output_stays(cluster: Cluster) -> None:
    with Running(cluster, "mirror", "mem 2> errors", mosrun="mosrun --trace -L") as mirror:
        mirror.works()
        mirror.moved("n2")
        mirror.works()
        (mirror.directory / "read").touch()
        until("it is home", lambda: mirror.where() == HOME, seconds=30)
        mirror.works()
        (mirror.directory / "enough").touch()
        assert mirror.end() == "read 1 times\nstatus 0\n"
        lines = (mirror.directory / "errors").read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert any(re.search(r"write\(3, .*\) = \d+ .*<\d+\.\d{6} at home>", line) for line in lines)
    assert "'/proc/self/mem'" in lines[-1]
    assert lines[-1].endswith("= ? <takes it home from n2>")


@pytest.mark.parametrize("name", ["signals", pytest.param("births", marks=pytest.mark.soak)])
def test_a_storm_of_traced_programs(cluster: Cluster, name: str) -> None:
    """Each move finds threads at the begin and the end of calls."""
    workload = BY_NAME[name]
    script = f"RUN=${{RUN/mosrun/mosrun --trace=calls}}; {workload.script}; rm -f calls"
    verdict = storm(cluster, replace(workload, script=script), user=workload.user, scale=0.7 * scale(), every=(0.1, 0.5), slack=60)
    print(verdict)
    assert not verdict.wrong, str(verdict)


def test_a_trace_that_cannot_be_written_is_refused(cluster: Cluster) -> None:
    for path, reason in (("/dev/null", "plain file"), ("/nonexistent/calls", "No such file")):
        done = cluster.home.run("mosrun", f"--trace={path}", "echo", "never")
        assert (done.returncode, done.stdout) == (64, "")
        assert reason in done.stderr
