"""References in the documents exist in this tree: links, commands, options, exit codes, keys."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from balancer.lending import conditions, lending, owner, policy
from cli import man
from cli.common import exit_codes
from cli.common.command import Parser
from kernel_helpers.calls import documentation
from mfs.settings import Settings
from node.common import config
from wire import control

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(path.parent for path in ROOT.glob("*/__init__.py"))
READMES = sorted(path for room in ROOMS for path in room.rglob("README.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")), *READMES]
INSTALL, LEND, TROUBLE = ((ROOT / "docs" / name).read_text() for name in ("install.md", "lend.md", "trouble.md"))
FILES = (ROOT / "docs" / "files.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
README = (ROOT / "README.md").read_text()


def anchors(document: Path) -> set[str]:
    """The names that headings get as targets of links."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        assert there.exists(), f"{document.name} points to {target}"
        assert not anchor or anchor in anchors(there), f"{document.name} points to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    """Checks words in code style that have the form of a path of the tree."""
    rooms = {entry.name for entry in ROOT.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    for word in re.findall(r"`([a-z_]+/[\w./]*)`", document.read_text()):
        if word.split("/")[0] in rooms and "/" in word.rstrip("/"):
            assert (ROOT / word).exists(), f"{document.name} names {word}"


def test_every_room_is_in_the_architecture() -> None:
    shown = re.findall(r"^\| \[`(\w+)/`\]\(\.\./(\w+)/README\.md\) \|", ARCHITECTURE, re.MULTILINE)
    assert [room for room, _ in shown] == [link for _, link in shown]
    assert sorted(room for room, _ in shown) == [room.name for room in ROOMS]


@pytest.mark.parametrize("folder", ["docs", "docs/internals"])
def test_every_page_is_in_the_table_of_its_folder(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text()
    for page in (ROOT / folder).glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in text, page.name


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 300


TOPICS = ("node", "engine", "remote", "deputy", "monitor", "balancer", "cli", "bench")
"""Rooms in folders by topic."""
FLAT = [room for room in ROOMS if room.name not in (*TOPICS, "kernel_helpers", "tests")]
"""Rooms without folders of their own; those of the others have tests below."""


@pytest.mark.parametrize("room", FLAT, ids=lambda path: path.name)
def test_the_readme_of_a_room_names_each_of_its_files(room: Path) -> None:
    """Once, in its tables; and what those name is there."""
    text = (room / "README.md").read_text()
    there = {path.name for path in room.iterdir() if path.name not in ("__pycache__", "__init__.py", "__main__.py", "README.md")}
    named = [
        word.rstrip("/") for cell in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE) for word in re.findall(r"`([\w./-]+)`", cell)
    ]  # fmt: skip
    assert sorted(named) == sorted(there)
    for word in re.findall(r"`(\w+\.(?:py|c|h))`", text):
        assert (room / word).exists(), word


def test_the_readme_of_tests_names_all_entries() -> None:
    text = (ROOT / "tests" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)/` \| (.*) \|$", text, re.MULTILINE)
    assert {"fuzz", "sanitizers", "referee"} <= {folder for folder, _ in rows}
    for folder, words in rows:
        for name in re.findall(r"`(\w+\.\w+)`", words):
            assert (ROOT / "tests" / folder / name).exists(), f"{folder}/{name}"


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readme_is_found_from_above(readme: Path) -> None:
    """From the page above it: a reader finds it without knowing that it exists."""
    above = next((path / "README.md" for path in readme.parents[1:] if (path / "README.md").exists() and path != ROOT), None)
    assert f"{readme.parent.name}/README.md" in (above.read_text() if above is not None else ARCHITECTURE)


HELPERS = ROOT / "kernel_helpers"
FOLDERS = sorted({path.parent for kind in ("*.c", "*.py") for path in HELPERS.rglob(kind)} - {HELPERS})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readme_names_all_entries_of_each_folder_of_helpers(folder: Path) -> None:
    """Its own, or that of the nearest folder above; and what a README names is there. A header has the name of its file of C."""
    readme = next(path / "README.md" for path in (folder, *folder.parents) if (path / "README.md").exists())
    named: set[Path] = set()
    for word in re.findall(r"`([\w/]+\.(?:c|h|py|table|lds))`", readme.read_text()):
        found = list(readme.parent.rglob(word))
        assert found or (HELPERS / word).exists(), word
        named |= {*found} if len(found) == 1 else {readme.parent / word}
    there = {path for path in folder.iterdir() if path.name not in ("__pycache__", "__init__.py", "README.md") and path.is_file()}
    for path in there:
        assert path in named or (path.suffix == ".h" and path.with_suffix(".c") in named), path.name
    assert len([path for path in folder.iterdir() if path.name not in ("__pycache__", "__init__.py")]) <= 14


NODE = sorted({path.parent for room in TOPICS for path in (ROOT / room).rglob("*.py")})


@pytest.mark.parametrize("folder", NODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_readme_of_a_room_names_all_entries_of_each_folder(folder: Path) -> None:
    room = ROOT / folder.relative_to(ROOT).parts[0]
    text = (room / "README.md").read_text()
    there = {path.name for path in folder.iterdir() if path.name not in ("__pycache__", "__init__.py", "README.md")}
    for name in there:
        assert f"`{name}`" in text or f"[{name}]" in text or f"`{name}/`" in text, name
    assert len(there) <= 14
    for name in re.findall(r"`(\w+\.py)`", text):
        assert list(room.rglob(name)), name


@pytest.mark.parametrize("name", man.COMMANDS)
def test_every_command_is_in_the_readme_and_installed(name: str) -> None:
    assert re.search(rf"^\| `{name}[ `]", README, re.MULTILINE)
    assert (ROOT / "bin" / name).stat().st_mode & 0o111
    installed = re.search(r'^commands="(.*)"$', (ROOT / "tools" / "install").read_text(), re.MULTILINE)
    assert installed is not None
    assert name in installed[1].split()


@pytest.mark.parametrize("name", man.COMMANDS)
def test_every_command_has_examples_that_its_parser_takes(name: str) -> None:
    parser = man.COMMANDS[name].parser()
    assert isinstance(parser, Parser)
    lines = [line.strip() for line in parser.examples.splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = re.split(r"\s{2,}|; ", line)[0].split()
        assert words[0] == name, line
        arguments = [word.replace("TOKEN", "x").strip("'") for word in words[1:]]
        parser.parse_args(arguments)  # SystemExit if it does not


def test_programs_in_blocks_of_the_readme_exist() -> None:
    for line in re.findall(r"^(?:bin/|\./|tools/)\S+", README, re.MULTILINE):
        assert (ROOT / line).exists(), line
    for line in re.findall(r"^n1# .*$", README, re.MULTILINE):
        for command in re.split(r"; |&& |\| ", line.removeprefix("n1# ")):
            assert command.split()[0] in {*man.COMMANDS, "seq", "xz", "wait", "cmp", "echo"}, line


def test_exit_codes_of_the_documents_are_those_of_the_commands() -> None:
    shown = dict(re.findall(r"^\| (\d+) \| (.*) \|$", TROUBLE.partition("## Exit codes")[2].partition("\n## ")[0], re.MULTILINE))
    assert {int(code): meaning for code, meaning in shown.items()} == exit_codes.MEANINGS
    named = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert named == set(exit_codes.MEANINGS)


def test_keys_of_the_configuration_are_all_documented() -> None:
    shown = set(re.findall(r"^\| `(?:\[(?:balance|away)\] )?(\w+|\[mfs\])` \|", INSTALL + LEND, re.MULTILINE))
    for field in fields(config.Config):
        name = {"balance": "enabled", "lend": "max_guests", "mfs": "[mfs]"}.get(field.name, field.name)
        assert name in shown, field.name
    names = set(re.findall(r"`(\w+)`", LEND.partition("## What a node lends")[2].partition("\n## ")[0]))
    borrowers = {field.name for field in fields(lending.Borrowers)}
    policies = {field.name for field in fields(policy.LendingPolicy)} - {"borrowers", "classes", "owner"} | {"class"}
    kinds = {field.name for field in fields(lending.GuestClass)} - {"borrowers"}
    rules = {field.name for field in fields(owner.OwnerRules)}
    assert borrowers | policies | kinds | rules | set(conditions.QUANTITIES) <= names


def test_keys_of_the_file_tree_are_all_documented() -> None:
    shown = set(re.findall(r"^\| `(\w+)` \|", FILES.partition("## Setting it up")[2].partition("\n## ")[0], re.MULTILINE))
    assert shown == {field.name for field in fields(Settings)} - {"encryption"}  # a key of the node's own


def test_the_configurations_that_are_shown_are_usable(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", INSTALL + LEND + FILES, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        file = tmp_path / "node.toml"
        file.write_text(block)
        config.load(file)


def test_frames_of_the_link_are_all_documented() -> None:
    for member in control.Control:
        assert f"{member.value} {member.name}" in ARCHITECTURE, member


def test_the_page_of_system_calls_is_the_tables() -> None:
    assert (ROOT / "docs" / "calls.md").read_text() == documentation.documentation()


@pytest.mark.parametrize("name", man.COMMANDS)
def test_every_command_has_a_man_page(name: str) -> None:
    text = man.page(name)
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"):
        assert f".SH {heading}\n" in text
    assert man.COMMANDS[name].parser().examples.split()[0] in text
    for line in text.splitlines():
        assert not line.startswith(".") or re.match(r"\.(\\\"|TH|SH|SS|TP|PP|B|I|nf|fi)( |$)", line), line


def test_man_pages_are_sound_for_man(tmp_path: Path) -> None:
    if subprocess.run(["sh", "-c", "command -v groff"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("groff is not installed")
    man.main([str(tmp_path)])
    pages = sorted(tmp_path.iterdir())
    assert len(pages) == len(man.COMMANDS)
    for page in pages:
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, timeout=30, check=True)
        assert done.stderr == "", page.name
        assert "EXIT STATUS" in re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_can_be_read_as_plain_text(document: Path) -> None:
    """Lines that are no table, no block and no link are short enough for a terminal."""
    block = False
    for line in document.read_text().splitlines():
        block ^= line.lstrip().startswith("```")
        assert block or line.startswith("|") or len(line) <= 140, line


def test_methods_and_operations_of_the_wire_are_all_documented() -> None:
    wire = ARCHITECTURE.partition("\n## Wire\n")[2].partition("\n## ")[0]
    for path, word in (("node/requests/peer_requests.py", "method"), ("remote/remote.py", "operation"), ("deputy/deputy.py", "operation")):
        names = re.findall(rf'if {word} == "(\w+)"', (ROOT / path).read_text())
        assert len(names) > 3
        for name in names:
            assert f"`{name}`" in wire, f"{name} of {path}"
