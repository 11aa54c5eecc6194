"""Well-known programs and testers of file systems on another node's files: no error, and what they leave is what they leave natively.

On Debian: postmark, dbench, fio, stress-ng, git, attr, acl. What is missing is skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from lab import Lab
from tests.mfs.exports import EXPORTS, INSIDE, PYTHON

AWAY = f"/mfs/n1{EXPORTS}"
USERS = [None, "farhome-a"]
MAKE = """
git init -q origin && cd origin && mkdir src && for n in $(seq 40); do echo "int f$n(int x) { return x * $n; }" > src/f$n.c; done
printf 'all.o: $(patsubst %%.c,%%.o,$(wildcard src/*.c))\\n\\tld -r -o $@ $(sort $^)\\n%%.o: %%.c\\n\\tgcc -O1 -c -o $@ $<\\n' > Makefile
git add . && git -c user.name=a -c user.email=a@b commit -qm first && cd ..
"""
TREE = """
mkdir -p tree/a/b tree/c && cd tree && for n in $(seq 30); do head -c $((n * n * 100)) /dev/zero | tr '\\0' "a" > a/$n; done
ln a/1 a/b/one; ln a/1 c/one; ln a/7 c/seven; ln -s ../a/3 c/three; ln -s nowhere c/dangling; mkfifo c/pipe
truncate -s 3M a/sparse; printf x | dd of=a/sparse bs=1 seek=1048576 conv=notrunc status=none; truncate -s 1M a/hole
setfattr -n user.colour -v blue a/2; setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\\0' y)" a/4
setfacl -m u:farhome-a:rw,g:adm:r a/5; setfacl -d -m u:farhome-b:rwx c; chmod 4755 a/6; chmod 1777 a/b; chmod 000 a/8
touch -d '2001-02-03 04:05:06.789012345' a/9 c; cd ..
"""
VERIFIED = """
fio --name=v --directory={directory} --size=24m --nrfiles=3 --bsrange=512-70000 --bs_unaligned --verify=crc32c --do_verify=1 \\
    --verify_fatal=1 --randseed=7 --rw={way} --ioengine={engine} --direct={direct} --numjobs=2 --end_fsync=1 --output-format=terse
"""
GRACE = 120

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def sh(lab: Lab, node: str, script: str, user: str | None = None, seconds: float = GRACE) -> str:
    """Returns the output of a script; it must not fail."""
    done = lab.node(node).run(["bash", "-c", f"set -o pipefail; {script}"], user=user, timeout=seconds, text=True, cwd="/tmp")
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return str(done.stdout) + str(done.stderr)


@pytest.fixture
def place(mfs_lab: Lab, request: pytest.FixtureRequest) -> str:
    """Returns the name of an empty directory of the export, in which all users may work."""
    name = re.sub(r"\W+", "-", request.node.name)
    sh(mfs_lab, "n1", f"rm -rf {EXPORTS}/{name} && mkdir -m 777 {EXPORTS}/{name}")
    return name


def tree(lab: Lab, node: str, directory: str) -> list[str]:
    return sh(lab, node, f"{PYTHON} -I {INSIDE}/tests/mfs/tree.py {directory}").splitlines()


@pytest.mark.parametrize("user", USERS)
def test_postmark_finds_no_error(mfs_lab: Lab, place: str, user: str | None) -> None:
    needs("postmark")
    script = f"set number 500\\nset transactions 5000\\nset location {AWAY}/{place}\\nrun\\nquit\\n"
    said = sh(mfs_lab, "n2", f"printf '{script}' | postmark", user)
    assert "Error" not in said
    assert sh(mfs_lab, "n1", f"ls -A {EXPORTS}/{place}") == ""


@pytest.mark.parametrize("user", USERS)
def test_dbench_finds_no_error(mfs_lab: Lab, place: str, user: str | None) -> None:
    needs("dbench")
    said = sh(mfs_lab, "n2", f"dbench -x -c /usr/share/dbench/client.txt -D {AWAY}/{place} -t 20 4", user)
    assert "Throughput" in said
    wrong = [line for line in said.splitlines() if re.search("failed|error|expected", line, re.IGNORECASE) and "semaphore" not in line]
    assert not wrong


@pytest.mark.parametrize("way", ["write", "randwrite", "randrw"])
@pytest.mark.parametrize(("engine", "direct"), [("psync", 0), ("mmap", 0), ("psync", 1)])
def test_fio_reads_back_its_own_data(mfs_lab: Lab, place: str, way: str, engine: str, direct: int) -> None:
    needs("fio")
    script = VERIFIED.format(directory=f"{AWAY}/{place}", way=way, engine=engine, direct=direct)
    sh(mfs_lab, "n2", script if not direct else script.replace("--bsrange=512-70000 --bs_unaligned", "--bs=4k"))


@pytest.mark.parametrize("user", USERS)
def test_stress_ng_fails_no_more_than_natively(mfs_lab: Lab, place: str, user: str | None) -> None:
    needs("stress-ng")

    def failed(node: str, directory: str) -> set[str]:
        argv = f"stress-ng --class filesystem --sequential 1 --timeout 1s --verify --temp-path {directory} --no-rand-seed 2>&1"
        done = mfs_lab.node(node).run(["bash", "-c", argv], user=user, timeout=280, text=True, cwd="/tmp")
        print(done.stdout[-3000:])
        return set(re.findall(r"stress-ng: (?:fail|error): +\[\d+\] (?:stress-ng-)?([\w-]+)", done.stdout))

    native = failed("n1", f"{EXPORTS}/{place}")
    assert failed("n2", f"{AWAY}/{place}") <= native


@pytest.mark.parametrize("user", USERS)
def test_git_and_make_leave_the_same(mfs_lab: Lab, place: str, user: str | None) -> None:
    needs("git", "make", "gcc")
    build = "git clone -q --no-local origin copy && cd copy && make -s -j4 && git status --porcelain && git fsck --full --strict"
    for node, directory, name in (("n1", EXPORTS, "native"), ("n2", AWAY, "away")):
        sh(mfs_lab, node, f"mkdir {directory}/{place}/{name} && cd {directory}/{place}/{name} && {MAKE}", user)
        sh(mfs_lab, node, f"cd {directory}/{place}/{name} && {build}", user)
    for node, directory in (("n1", EXPORTS), ("n2", AWAY), ("n3", AWAY)):
        both = [
            sh(mfs_lab, node, f"cd {directory}/{place}/{name}/copy && find . -name .git -prune -o -type f -exec md5sum {{}} + | sort")
            for name in ("native", "away")
        ]
        assert both[0] == both[1]
        assert "all.o" in both[0]


def test_tar_and_cp_leave_the_same(mfs_lab: Lab, place: str) -> None:
    needs("tar", "setfattr", "setfacl")
    sh(mfs_lab, "n1", f"cd {EXPORTS}/{place} && {TREE}")
    wanted = tree(mfs_lab, "n1", f"{EXPORTS}/{place}/tree")
    assert tree(mfs_lab, "n2", f"{AWAY}/{place}/tree") == wanted
    every = "--acls --xattrs --xattrs-include='*' --sparse --numeric-owner"
    sh(mfs_lab, "n2", f"cd {AWAY}/{place} && mkdir out && tar -C tree {every} -cf x.tar . && tar -C out {every} -xpf x.tar")
    sh(mfs_lab, "n2", f"cd {AWAY}/{place} && cp -a --sparse=always tree copy")
    for name in ("out", "copy"):
        for node, directory in (("n1", EXPORTS), ("n2", AWAY), ("n3", AWAY)):
            assert tree(mfs_lab, node, f"{directory}/{place}/{name}") == wanted


@pytest.mark.parametrize("user", USERS)
def test_sqlite_keeps_its_promises(mfs_lab: Lab, place: str, user: str | None) -> None:
    needs("sqlite3")
    insert = 'for n in $(seq 100); do echo "insert into t values($n, hex(randomblob(500)));"; done'
    for node, directory in (("n1", EXPORTS), ("n2", AWAY), ("n3", AWAY)):
        file = f"{directory}/{place}/base"
        sh(mfs_lab, node, f"(echo 'create table if not exists t(a, b);'; {insert}) | sqlite3 -cmd '.timeout 30000' {file}", user)
    busy = [
        mfs_lab.node(node).popen(["bash", "-c", f"({insert}) | sqlite3 -bail -cmd '.timeout 60000' {directory}/{place}/base"], user=user)
        for node, directory in (("n1", EXPORTS), ("n2", AWAY), ("n3", AWAY))
    ]
    for process in busy:
        try:
            assert process.wait(90) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    for node, directory in (("n1", EXPORTS), ("n2", AWAY), ("n3", AWAY)):
        result = sh(mfs_lab, node, f"sqlite3 {directory}/{place}/base 'pragma integrity_check; select count(*) from t'", user)
        assert result.split() == ["ok", "600"]
