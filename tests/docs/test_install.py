"""tools/install into a directory: what is there works from there, and nothing of the clone is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cli import man
from node.common import config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    for _ in range(2):  # the second time it upgrades
        subprocess.run([ROOT / "tools" / "install", root], check=True, timeout=600, capture_output=True)
    return root


def test_commands_run_from_where_they_are_installed(installed: Path) -> None:
    for name in man.COMMANDS:
        link = installed / "usr/local/bin" / name
        assert link.is_symlink()
        program = installed / str(link.readlink()).removeprefix("/")
        done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, check=False, cwd="/")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: {name}")


def test_an_installation_uses_its_own_modules(installed: Path) -> None:
    tree = installed / "opt/farhome"
    program = (
        "import balancer, checkpoint, cli, deputy, engine, kernel_helpers, lab, node, remote, wire, pycriu\n"
        "import engine.criu, node.daemon, remote.guest\n"
        "from kernel_helpers.common import library\n"
        "print(library.load()._name, *[m.__file__ for m in (cli, deputy, remote, pycriu)], sep='\\n')\n"
    )
    done = subprocess.run([tree / ".venv/bin/python", "-I", "-c", program], capture_output=True, text=True, timeout=30, check=True, cwd="/")
    for line in done.stdout.splitlines():
        assert Path(line).resolve().is_relative_to(tree.resolve()), line
    assert not (tree / "tests").exists()


def test_manual_completion_and_unit_are_there(installed: Path) -> None:
    for name in man.COMMANDS:
        assert (installed / f"usr/local/share/man/man{man.section(name)}" / man.file_name(name)).read_text() == man.page(name)
        assert (installed / "usr/local/share/bash-completion/completions" / name).is_symlink()
    unit = (installed / "etc/systemd/system/mosd.service").read_text()
    start = next(line.removeprefix("ExecStart=") for line in unit.splitlines() if line.startswith("ExecStart="))
    assert (installed / start.removeprefix("/")).exists()


def test_an_upgrade_keeps_configuration_and_the_tree_before(installed: Path) -> None:
    file = installed / "etc/farhome/node.toml"
    file.write_text('name = "anna"\naddress = "192.0.2.1"\n')
    subprocess.run([ROOT / "tools" / "install", installed], check=True, timeout=600, capture_output=True)
    assert config.load(file).name == "anna"
    assert (installed / "opt/farhome.old/bin/mosd").exists()
    assert not (installed / "opt/farhome.new").exists()


def test_nonsense_is_refused() -> None:
    done = subprocess.run([ROOT / "tools" / "install", "--help"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 64
    assert len(done.stderr.splitlines()) == 1
