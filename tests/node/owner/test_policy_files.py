"""Wrong configuration files: each is refused with file, line and one sentence, and what was in force before stays in force."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from balancer.lending.lending import Borrower
from cli.common import command
from cli.mosctl import body as mosctl_body
from node.common import config
from node.common.config import Config, ConfigError
from node.common.paths import Paths
from node.common.toml_lines import line_of
from node.daemon import Daemon
from tests.node.nodes import Node

GOOD = 'name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n[lend]\nusers = ["anna"]\nmax_guests = 3\n'

WRONG: list[tuple[str, str, int, str]] = [
    ("a key that there is not", "[lend]\nmax_gusts = 1", 2, "max_guests meant"),
    ("a table that there is not", "[lend]\nenabled = true\n[lend.clocks]\nhours = '1-2'", 3, "no key 'clocks'"),
    ("no table", "lend = 5", 1, "lend"),
    ("neither true nor false", "[lend]\nenabled = 'yes'", 2, "enabled is neither true nor false"),
    ("less than nothing", "[lend]\n\n\nmax_guests = -1", 4, "max_guests"),
    ("a size without sense", "[lend]\nmax_memory = 'lots'", 2, "max_memory"),
    ("a size with an unknown unit", "[lend]\n# disk\nmax_disk = '5X'", 3, "max_disk"),
    ("no processors", "[lend]\ncores = 0", 2, "cores"),
    ("more than all", "[lend]\ncpu_share = 1.5", 2, "cpu_share"),
    ("an unknown word", "[lend]\nweight = 'feather'", 2, "weight is none of low, idle"),
    ("an hour that there is not", "[lend]\nhours = '22-25'", 2, "hours"),
    ("a span without end", "[lend]\nhours = [\n  '1-2',\n  '5',\n]", 2, "hours"),
    ("a day that there is not", "[lend]\ndays = 'mon-fry'", 2, "'mon-fry'"),
    ("a time without sense", "[lend]\nidle_after = 'soon'", 2, "idle_after"),
    ("a name that is none", "[lend]\nusers = ['anna', 5]", 2, "users has 5"),
    ("one name instead of a list", "[lend]\ngroups = 'students'", 2, "groups"),
    ("everybody denied", "[lend]\n[lend.deny]\nusers = '*'", 3, "denies everybody"),
    ("an unknown key to deny by", "[lend.deny]\nuser = ['anna']", 2, "is users meant"),
    ("a class without name", "[[lend.class]]\nname = 'a'\n\n[[lend.class]]\npriority = 1", 4, "class 2 has no name"),
    ("a class twice", "[[lend.class]]\nname = 'a'\n[[lend.class]]\nname = 'a'", 4, "class already"),
    ("a class that is no list", "[lend.class]\nname = 'a'", 1, "no list of tables"),
    ("a priority that is no number", "[[lend.class]]\nname = 'a'\npriority = 'high'", 3, "priority"),
    ("a condition that ends too early", "[lend]\nwhen = 'owner_load <'", 2, "when is no condition: it ends"),
    ("a condition over what there is not", "[lend]\nwhen = 'moon > 0.5'", 2, "no quantity moon"),
    ("a condition that calls something", "[lend]\nwhen = '__import__(\"os\")'", 2, "cannot be read"),
    ("a condition of two kinds", "[[lend.class]]\nname = 'a'\nwhen = 'memory_free < 10m'", 3, "cannot be compared"),
    ("a last step that there is not", "[lend.owner]\nthen = 'complain'", 2, "then is none of checkpoint, keep, kill"),
    ("how far is not known", "[lend.owner]\non_return = 'leave'", 2, "on_return"),
    ("loads the wrong way round", "[lend.owner]\nbusy_load = 0.5\nidle_load = 0.9", 3, "idle_load greater"),
    ("no time to leave", "[lend.owner]\ndeadline = 0", 2, "deadline"),
    ("no share to be held back to", "[lend.owner]\nthrottle = 0", 2, "throttle"),
    ("inputs that are no files", "[lend.owner]\ninput = ['keyboard']", 2, "input"),
    ("no TOML: a table that is not closed", "[lend\nmax_guests = 1", 1, "no TOML"),
    ("no TOML: a key twice", "[lend]\nmax_guests = 1\nmax_guests = 2", 3, "no TOML"),
    ("no TOML: a text that does not end", "[lend]\nhours = '22-6", 2, "no TOML"),
    ("wrong beside the policy", "link_timeout = 0\n[lend]\nenabled = true", 1, "link_timeout"),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """A daemon that has read its configuration, and does nothing yet."""
    directory = tmp_path_factory.mktemp("node")
    paths = Paths(run=directory, state=directory, config=directory / "node.toml")
    paths.config.write_text(GOOD)
    return Daemon(paths, config.load(paths.config))


def test_there_are_thirty() -> None:
    assert len(WRONG) >= 30
    assert len({what for what, *_ in WRONG}) == len(WRONG)


@pytest.mark.parametrize(("text", "line", "words"), [pytest.param(*one[1:], id=one[0]) for one in WRONG])
def test_a_wrong_file_is_refused_and_the_old_policy_stays_in_force(daemon: Daemon, text: str, line: int, words: str) -> None:
    before: tuple[Config, object] = daemon.parts.config, daemon.parts.policy
    head = 'name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n'
    daemon.paths.config.write_text(head + text + "\n")
    with pytest.raises(ConfigError) as caught:
        asyncio.run(daemon.reload())
    said = str(caught.value)
    assert said.startswith(f"{daemon.paths.config}, line {line + 3}: ")
    assert words in said
    assert "\n" not in said and not said.endswith(".")
    assert caught.value.exit_code == 78
    assert (daemon.parts.config, daemon.parts.policy) == before
    assert "does not lend to user bert" in str(daemon.parts.policy.denies(Borrower("bert", "n2"), daemon.parts.guests.lending_state()))
    assert daemon.parts.policy.denies(Borrower("anna", "n2"), daemon.parts.guests.lending_state()) is None


def test_mosctl_reload_refuses_each_and_the_daemon_lends_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, "n1", "127.0.0", 1, '[lend]\nusers = ["anna"]')
    path = node.base / "node.toml"
    good = path.read_text()
    monkeypatch.setenv("FARHOME_RUN", str(node.run))

    def mosctl(*words: str) -> tuple[int, str]:
        code = command.run("mosctl", lambda _: mosctl_body(words))
        return code, "".join(capsys.readouterr())

    node.start()
    try:
        for what, text, line, words in WRONG:
            path.write_text('name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n' + text + "\n")
            code, said = mosctl("reload")
            assert (code, said.count("\n")) == (78, 1), what
            assert said.startswith(f"mosctl: {path}, line {line + 3}: ") and words in said, what
            assert "the node does not lend to user bert" in mosctl("policy", "explain", "--as", "bert@n2")[1], what
        assert mosctl("policy", "explain", "--as", "anna@n2")[1].endswith("a process of anna@n2 would be taken now\n")
        path.write_text(good.replace("anna", "bert"))
        assert mosctl("reload") == (0, "configuration reloaded\n")
        assert mosctl("policy", "explain", "--as", "bert@n2")[1].endswith("a process of bert@n2 would be taken now\n")
    finally:
        node.kill(signal.SIGTERM)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (("a",), 1), (("t", "list"), 5), (("t", "list", 1), 5), (("t", "sub", "x"), 11), (("t", "missing"), 3), (("t", "many", 1, "x"), 15),
        (("t", "many", 0), 12), (("nothing",), None), (("in", "line"), 17),
    ],
)  # fmt: skip
def test_lines_of_keys(where: tuple[str | int, ...], line: int | None) -> None:
    text = (
        'a = """\nlist = 1"""\n[t]\n# list = 2\nlist = [\n  1,\n\n  2,\n]\n[t.sub]\nx = 1\n[[t.many]]\nx = 1\n[[t.many]]\nx = 2\n'
        "[in]\nline = 1\n"
    )
    assert line_of(text, where) == line
