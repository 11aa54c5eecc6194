"""The bench of builds, in small: all ways build the same, a difference is found, and distcc's servers end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.common.nodes import bench_lab, checked, wait_until
from bench.common.peers import find
from bench.common.result import BenchFailed
from bench.make import make
from bench.make.distcc import HERE, servers
from bench.make.project import PROJECTS
from bench.sharing.mosrun_nodes import Mosrun

FILES, SCALE = 2, 0.02

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(os.geteuid() != 0, reason="virtual nodes need root")]
with_distcc = find("distccd") is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_is_built_in_every_way(name: str) -> None:
    with bench_lab(make.NODES) as lab:
        samples = make.Samples()
        builder = make.Builder(lab, lambda place: PROJECTS[name](place, FILES, SCALE), FILES)
        make.build_all(lab, Mosrun(lab), builder, samples, with_distcc)
        ways = [make.ALONE, make.HERE, make.OURS, *([make.DISTCC] if with_distcc else [])]
        assert list(samples.took) == ways
        found = {result.case: result for result in make.results(name, samples, 4.0)}
        assert {f"{name}: {way}" for way in ways} <= set(found)
        assert found[f"{name}: make -j1"].ratio > 1
        with pytest.raises(BenchFailed, match=r"has built another file_00\.c than make -j1"):
            builder._compare(["another"], {**builder._built, "file_00.c": ""})
        with pytest.raises(BenchFailed, match=r"make CC=false ended with 2: .*Error 1"):
            builder.build(["make", "CC=false"])


@pytest.mark.skipif(not with_distcc, reason="distcc is not installed")
def test_servers_of_distcc_compile_and_end() -> None:
    with bench_lab(2, mosd=False) as lab:
        n1, n2 = lab.nodes()
        (n1.root / "tmp/file.c").write_text("int f(void) { return 1; }\n")

        def running() -> list[str]:
            return [path.parent.name for path in (n2.root / "proc").glob("[0-9]*/comm") if path.read_text() == "distccd\n"]

        with servers(n1, [n2]) as environment:
            words = [f"{name}={value}" for name, value in environment.items()]
            alone = next(word for word in words if word.startswith("DISTCC_HOSTS=")).removesuffix(f" localhost/{HERE}")
            checked(n1, ["env", *words, alone, "sh", "-c", "cd /tmp && distcc gcc -c file.c"])
            assert (n1.root / "tmp/file.o").stat().st_size > 0
            assert running()
        wait_until(lambda: not running(), "the end of all its processes")


def test_the_size_is_a_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARHOME_BENCH_FILES", "all")
    with pytest.raises(BenchFailed, match="from 2 to 1000, and not 'all'"):
        make.size()
    PROJECTS["C"](tmp_path / "project", 3, SCALE)
    assert {path.name for path in (tmp_path / "project").glob("*.c")} == {"file_00.c", "file_01.c", "file_02.c"}
