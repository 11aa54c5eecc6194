"""The configuration: its contents, and the messages about mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.common import config
from node.common.config import Config, ConfigError
from node.common.names import format_endpoint, parse_endpoint


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return config.load(path)


def test_everything_that_can_be_set(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        'name = "n1"\naddress = "10.0.0.1"\nport = 7000\nown_programs = 0\npeers = ["10.0.0.2", "n3:7001", "[fd00::1]:9"]\nspeed = 0.5\n'
        'interception = "ptrace"\nlink_timeout = 5\ncpu_flags = "sse2 avx"\nencryption = false\n'
        "[lend]\nmax_guests = 2\n[balance]\nenabled = false\nat_exec = false\n"
        '[mfs]\nexports = ["/srv"]\nread_only = ["/usr"]\ntimeout = 2\nport = 7300\nenabled = false\n'
        "direct = true\ndirect_after = 3\n",
    )
    assert found.peers == (("10.0.0.2", 7226), ("n3", 7001), ("fd00::1", 9))
    assert (found.name, found.address, found.port, found.speed) == ("n1", "10.0.0.1", 7000, 0.5)
    assert (found.interception, found.link_timeout, found.balance, found.at_exec) == ("ptrace", 5.0, False, False)
    assert found.own_programs == 0
    assert found.cpu_flags == frozenset({"sse2", "avx"})
    assert config.lending_policy(found).max_guests == 2
    assert list(found.mfs.shown()) == [("/srv", False), ("/usr", True)]
    assert (found.mfs.encryption, found.mfs.timeout, found.mfs.port, found.mfs.works) == (False, 2.0, 7300, False)
    assert (found.mfs.direct, found.mfs.is_direct, found.mfs.direct_after) == (True, False, 3)


def test_an_empty_file_is_a_node_with_the_machines_name(tmp_path: Path) -> None:
    found = load(tmp_path, "")
    assert found.name
    assert found.port == 7226
    assert found.balance
    assert found.at_exec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = 1 2", "line 1"),
        ('name = "n1"\n[lend\n', "line 2"),
        ('name = "home"', "no name for a node"),
        ('name = "a b"', "no name for a node"),
        ("name = 5", "no name for a node"),
        ("port = 0", "port"),
        ('port = "x"', "port"),
        ("nmae = 1", "nmae"),
        ('peers = "n2"', "peers"),
        ('peers = ["n2:99999"]', "99999"),
        ('peers = ["n 2"]', "n 2"),
        ("speed = -1", "speed"),
        ("speed = true", "speed"),
        ('interception = "magic"', "magic"),
        ("link_timeout = 0", "link_timeout"),
        ("encryption = 1", "encryption"),
        ("[mfs]\nencryption = true", "encryption"),
        ("own_programs = -1", "own_programs"),
        ("cpu_flags = ['sse2']", "cpu_flags"),
        ('cpu_flags = " "', "cpu_flags"),
        ('cpu_flags = "sse2,avx"', "cpu_flags"),
        ("lend = 5", "lend"),
        ("[lend]\nmax_memory = 'lots'", "max_memory"),
        ("[balance]\nenabled = 1", "balance"),
        ("[balance]\nspeed = 1", "balance"),
        ("[balance]\nat_exec = 1", "at_exec"),
        ("[mfs]\nexports = '/'", "line 2: [mfs] exports"),
        ("[mfs]\nport = 7227\n\nexports = ['srv']", "line 4: [mfs] exports"),
        ("[mfs]\nread_only = ['/usr/../etc']", "the short way (/etc)"),
        ("[mfs]\ntimeout = 0", "[mfs] timeout"),
        ("[mfs]\nport = 65536", "[mfs] port"),
        ("[mfs]\nencrypted = true", "encrypted"),
        ("[mfs]\ndirect_after = 0", "[mfs] direct_after"),
    ],
)
def test_mistakes_are_named_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)
    assert str(tmp_path / "node.toml") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 78


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "node.toml")
    (tmp_path / "node.toml").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigError, match=r"node\.toml"):
        config.load(tmp_path / "node.toml")


@pytest.mark.parametrize("endpoint", [("10.0.0.1", 7226), ("fd00::1", 1), ("n1.example.org", 65535)])
def test_endpoints_are_written_as_they_are_read(endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(format_endpoint(*endpoint)) == endpoint
