"""Properties of a virtual node, seen from inside and from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import Lab, LabError, cgroups, state
from tests import leftovers
from tests.lab.waiting import until

LabName = Callable[[], str]


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """A lab without daemons for those tests that leave all as it was."""
    with Lab.up(3, name=f"t-{os.environ[leftovers.RUN]}-{os.getpid()}-nodes", mosd=False) as lab:
        yield lab


def test_a_node_has_namespaces_name_and_address_of_its_own(shared_lab: Lab) -> None:
    kinds = ("mnt", "pid", "net", "uts", "ipc", "cgroup")
    seen: dict[str, set[str]] = {kind: {os.readlink(f"/proc/self/ns/{kind}")} for kind in kinds}
    for node in shared_lab.nodes():
        assert node.run("hostname", check=True, text=True).stdout == f"{node.name}\n"
        assert f"inet {node.address}/24" in node.run(["ip", "address"], check=True, text=True).stdout
        for kind in kinds:
            seen[kind].add(node.run(["readlink", f"/proc/self/ns/{kind}"], check=True, text=True).stdout.strip())
    assert {kind: len(values) for kind, values in seen.items()} == dict.fromkeys(kinds, 4)


def test_nodes_know_one_another_by_name(shared_lab: Lab) -> None:
    result = shared_lab.node("n1").run(["getent", "hosts", "n3"], check=True, text=True)
    assert result.stdout.split() == [shared_lab.node("n3").address, "n3"]


@pytest.mark.parametrize("directory", ["/tmp", "/var/tmp", "/run", "/dev/shm", "/etc/farhome", "/var/lib/farhome", "/sys/fs/cgroup"])
def test_a_directory_is_private(shared_lab: Lab, directory: str) -> None:
    shared_lab.node("n1").run(f"mkdir {directory}/mark", check=True)
    assert not (Path(directory) / "mark").exists()
    assert shared_lab.node("n2").run(["test", "-e", f"{directory}/mark"]).returncode == 1
    shared_lab.node("n1").run(f"rmdir {directory}/mark", check=True)


ITSELF = """
import socket
with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
    with socket.create_connection(server.getsockname()[:2], timeout=10) as client:
        print(client.getpeername()[0])
"""


def test_a_node_has_the_ipv6_address_of_itself_and_no_other(shared_lab: Lab) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    node = shared_lab.node("n1")
    assert node.run(["/usr/bin/python3", "-c", ITSELF], check=True, text=True).stdout == "::1\n"
    assert node.run(["ip", "-6", "-oneline", "address"], check=True, text=True).stdout.count("inet6") == 1


def test_a_node_is_the_root_of_each_hierarchy(shared_lab: Lab) -> None:
    seen = shared_lab.node("n2").run(["cat", "/proc/self/cgroup"], check=True, text=True).stdout.splitlines()
    places = {controller: place for _, names, place in (line.split(":", 2) for line in seen) for controller in names.split(",")}
    there = {name for one in cgroups.hierarchies() for name in one.options.split(",") if name}
    assert {name: places[name] for name in there} == dict.fromkeys(there, "/")
    if Path("/sys/fs/cgroup/cpuset").exists():
        assert "cpuset" in there


WATCHES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for number in range(200):
    if libc.fanotify_init(0x200, 0) < 0 or libc.inotify_init() < 0:
        raise SystemExit(f"{number}: {os.strerror(ctypes.get_errno())}")
"""


def test_nodes_have_as_many_watches_together_as_machines_have(shared_lab: Lab) -> None:
    """A kernel gives 128 to all that is root's."""
    assert shared_lab.node("n1").run(["/usr/bin/python3", "-c", WATCHES], text=True).stderr == ""


def test_a_node_has_terminals_of_its_own(shared_lab: Lab) -> None:
    program = "import os, pty; a, b = pty.openpty(); print(os.ttyname(b), len(os.listdir('/dev/pts')))"
    assert shared_lab.node("n2").run(["/usr/bin/python3", "-c", program], check=True, text=True).stdout == "/dev/pts/0 2\n"


@pytest.mark.parametrize("user", ["root", "farhome-a"])
def test_the_clone_works_inside_for(shared_lab: Lab, user: str) -> None:
    node = shared_lab.node("n1")
    program = "import lab, pycriu, msgpack; print(lab.__file__)"
    shown = node.run(["/opt/farhome/.venv/bin/python", "-I", "-c", program], user=user, text=True)
    assert (shown.stdout, shown.stderr) == ("/opt/farhome/lab/__init__.py\n", "")
    assert "Version" in node.run(["/opt/farhome/.build/criu", "--version"], user=user, check=True, text=True).stdout
    assert "exit code" in node.run(["lab", "--help"], user=user, check=True, text=True).stdout
    assert node.run(["touch", "/opt/farhome/mark"]).returncode == 1


def test_criu_is_content_with_a_node(shared_lab: Lab) -> None:
    assert "Looks good" in shared_lab.node("n1").run(["/opt/farhome/.build/criu", "check"], check=True, text=True).stdout


def test_a_user_is_exactly_that_user(shared_lab: Lab) -> None:
    result = shared_lab.node("n1").run("id -un; id -G; echo $HOME; touch /etc/farhome/x", user="farhome-b", text=True)
    name, groups, home = result.stdout.splitlines()
    assert (name, home) == ("farhome-b", "/home/farhome-b")
    assert "0" not in groups.split()
    assert "Permission denied" in result.stderr


def test_exit_status_and_death_by_signal_come_out(shared_lab: Lab) -> None:
    node = shared_lab.node("n1")
    assert node.run("exit 7").returncode == 7
    assert node.run("kill -SEGV $$").returncode == -signal.SIGSEGV
    assert node.run(["/does/not/exist"]).returncode == 127
    process = node.popen(["sleep", "infinity"])
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM


def test_pids_inside_and_outside_name_the_same_process(shared_lab: Lab) -> None:
    node = shared_lab.node("n2")
    process = node.popen(["sleep", "infinity"])
    try:
        assert process.node_pid != process.host_pid
        until(lambda: (node.root / f"proc/{process.node_pid}/comm").read_text() == "sleep\n")
        assert process.host_pid in cgroups.processes(shared_lab.name, "n2")
    finally:
        process.kill()
    assert process.wait(10) == -signal.SIGKILL


def test_a_program_that_exceeds_its_timeout_is_killed(shared_lab: Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        shared_lab.node("n1").run(["sleep", "infinity"], timeout=0.2)
    until(lambda: len(cgroups.processes(shared_lab.name, "n1")) == 1)


def test_process_1_reaps_orphans(shared_lab: Lab) -> None:
    node = shared_lab.node("n1")
    node.run("for i in 1 2 3 4 5; do (setsid sleep 0.01 &) ; done", check=True)
    until(lambda: node.run("ps -e -o stat= | grep -c -E 'Z|sleep'", text=True).stdout == "0\n")
    until(lambda: node.run("pgrep sleep").returncode == 1)


def test_speed_and_cpus_bound_a_nodes_computing(lab_name: LabName) -> None:
    program = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    with Lab.up(1, name=lab_name(), speed={"n1": 0.3}, mosd=False) as lab:
        used = float(lab.node("n1").run(["/usr/bin/python3", "-c", program], check=True, text=True).stdout)
        assert 0.1 < used < 0.45


def test_a_quota_holds_for_the_period_that_is_asked_for(lab_name: LabName) -> None:
    with Lab.up(1, name=lab_name(), cpus=0.5, period=0.1, mosd=False) as lab:
        directories = cgroups.directories(lab.name, "n1")
        limits = [(one / "cpu.max").read_text().split() for one in directories if (one / "cpu.max").exists()]
        limits += [[(one / f"cpu.cfs_{what}_us").read_text().strip() for what in ("quota", "period")]
                 for one in directories if (one / "cpu.cfs_quota_us").exists()]  # fmt: skip
        assert limits == [["50000", "100000"]]


def test_no_quota_holds_for_hours(lab_name: LabName) -> None:
    with pytest.raises(LabError, match="not for 7200"):
        Lab.up(1, name=lab_name(), period=7200, mosd=False)


def test_a_slow_node_has_fewer_cores_of_the_same_speed(lab_name: LabName) -> None:
    with Lab.up(2, name=lab_name(), speed={"n2": 0.5}) as lab:
        nodes = {one["name"]: one for one in lab.node("n1").ask_mosd("nodes")["nodes"]}
        assert nodes["n1"]["speed"] == pytest.approx(nodes["n2"]["speed"])
        assert (nodes["n1"]["cores"], nodes["n2"]["cores"]) == (1.0, 0.5)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_nodes_on_processors_of_their_own_have_no_quota_and_stay_there(lab_name: LabName) -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    show = "import os; print(*os.sched_getaffinity(0)); os.sched_setaffinity(0, os.sched_getaffinity(1)); print(*os.sched_getaffinity(0))"
    with Lab.up(2, name=lab_name(), processors={"n1": {first}, "n2": {last}}, mosd=False) as lab:
        for node, number in zip(lab.nodes(), (first, last), strict=True):
            assert node.run(["/usr/bin/python3", "-c", show], check=True, text=True).stdout == f"{number}\n{number}\n"
            assert int((node.root / "sys/class/net/eth0/queues/rx-0/rps_cpus").read_text().replace(",", ""), 16) == 1 << number
        quotas = [directory / "cpu.cfs_quota_us" for directory in cgroups.directories(lab.name, "n1")]
        assert {path.read_text() for path in quotas if path.exists()} <= {"-1\n"}
        assert os.sched_getaffinity(0) >= {first, last}


@pytest.mark.parametrize("numbers", [set(), {4095}])
def test_a_node_cannot_be_on_processors_that_there_are_not(lab_name: LabName, numbers: set[int]) -> None:
    with pytest.raises(LabError, match="n1 cannot run on processors"):
        Lab.up(1, name=lab_name(), processors={"n1": numbers}, mosd=False)


def test_labs_live_side_by_side_and_go_without_a_trace(lab_name: LabName) -> None:
    first, second = Lab.up(2, name=lab_name(), mosd=False), Lab.up(2, name=lab_name(), mosd=False)
    try:
        assert first.node("n1").run("hostname").returncode == 0
        first.down()
        assert second.node("n2").run("hostname").returncode == 0
    finally:
        first.down()
        second.down()
    for name in (first.name, second.name):
        assert name not in state.names()
        assert not any(directory.exists() for directory in cgroups.directories(name))
        assert name not in Path("/proc/self/mountinfo").read_text()
    assert not first.down()


def test_a_second_lab_of_the_same_name_is_refused(bare_lab: Lab) -> None:
    with pytest.raises(LabError, match="is up already"):
        Lab.up(1, name=bare_lab.name, mosd=False)
    assert all(node.is_alive() for node in bare_lab.nodes())


@pytest.mark.parametrize("damage", ["state lost", "state garbled", "first process dead", "nothing"])
def test_down_removes_all_after(lab_name: LabName, damage: str) -> None:
    lab = Lab.up(2, name=lab_name(), mosd=False)
    frozen = lab.node("n1").popen(["sleep", "infinity"])
    _ = frozen.host_pid
    path = state.directory(lab.name) / "lab.json"
    pids = [node.state.pid for node in lab.nodes()]
    if damage == "state lost":
        path.unlink()
    elif damage == "state garbled":
        path.write_text("{")
    elif damage == "first process dead":
        os.kill(pids[0], signal.SIGKILL)
    started = time.monotonic()
    assert lab.down()
    assert time.monotonic() - started < 5
    assert frozen.wait(5) == -signal.SIGKILL
    assert all(state.start_time(pid) is None for pid in pids)
    assert not path.parent.exists()
    assert not any(directory.exists() for directory in cgroups.directories(lab.name))


@pytest.mark.parametrize("version", [1, 2])
def test_down_removes_frozen_guests_and_their_groups(lab_name: LabName, version: int) -> None:
    wanted = [one for one in cgroups.hierarchies() if one.version == version and (version == 2 or "freezer" in one.options)]
    if not wanted:
        pytest.skip(f"no freezer of cgroup v{version} here")
    lab = Lab.up(1, name=lab_name(), mosd=False)
    try:
        node = lab.node("n1")
        knob, word = ("freezer.state", "FROZEN") if version == 1 else ("cgroup.freeze", "1")
        group = f"{wanted[0].path}/farhome/guests/n9-7"
        guest = f"setsid sh -c 'echo 0 >{group}/cgroup.procs; exec sleep infinity' </dev/null >/dev/null 2>&1"
        node.run(f"mkdir -p {group} && ({guest} &)", check=True)
        until(lambda: node.run(["cat", f"{group}/cgroup.procs"], text=True).stdout != "")
        node.run(f"echo {word} >{group}/{knob}", check=True)
    finally:
        lab.down()
    assert not any(directory.exists() for directory in cgroups.directories(lab.name))


def test_a_node_that_cannot_be_set_up_leaves_nothing(lab_name: LabName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.network.subnet", lambda name: "10.64.999")
    lab = Lab(lab_name())
    with pytest.raises(LabError, match="cannot be connected"):
        Lab.up(2, name=lab.name, mosd=False)
    assert lab.name not in state.names()
    assert not any(directory.exists() for directory in cgroups.directories(lab.name))


def test_status_shows_the_true_state(bare_lab: Lab) -> None:
    bare_lab.kill("n2")
    bare_lab.cut("n1", "n3")
    status = json.loads(json.dumps(bare_lab.status()))
    assert [(node["name"], node["alive"]) for node in status["nodes"]] == [("n1", True), ("n2", False), ("n3", True)]
    assert status["cuts"] == [["n1", "n3"]]


def test_a_node_may_have_been_up_longer_than_another(lab_name: LabName) -> None:
    show = ["/usr/bin/python3", "-c", "import time; print(time.monotonic(), time.time())"]
    with Lab.up(2, name=lab_name(), clock={"n2": 1_000_000}, mosd=False) as lab:
        first, second = (node.run(show, check=True, text=True).stdout.split() for node in lab.nodes())
        assert 999_000 < float(second[0]) - float(first[0]) < 1_001_000
        assert abs(float(second[1]) - float(first[1])) < 60
        assert float((lab.node("n2").run(["cat", "/proc/uptime"], check=True, text=True).stdout).split()[0]) > 1_000_000


@pytest.mark.parametrize("versions", [(2,), (1,), ()])
def test_a_lab_lives_and_dies_with_cgroups_of(lab_name: LabName, monkeypatch: pytest.MonkeyPatch, versions: tuple[int, ...]) -> None:
    real = cgroups.hierarchies()
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [one for one in real if one.version in versions])
    lab = Lab.up(2, name=lab_name(), mosd=False)
    try:
        pids = [node.state.pid for node in lab.nodes()] + [lab.state.switch]
        sleeper = lab.node("n1").popen(["sleep", "infinity"])
        _ = sleeper.host_pid
        lab.kill("n1")
        assert sleeper.wait(10) == -signal.SIGKILL
        assert lab.node("n2").run("hostname", text=True).stdout == "n2\n"
    finally:
        lab.down()
    assert all(state.start_time(pid) is None for pid in pids)
    assert not state.directory(lab.name).exists()
    assert not any((one.path / cgroups.TOP / lab.name).exists() for one in real)
