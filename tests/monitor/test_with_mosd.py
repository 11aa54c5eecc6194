"""The monitor on real node daemons (whose deputies and remotes move nothing): what is moved by hand is moved, and seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from cli.mon import DaemonSource
from monitor.live.app import Monitor
from tests.monitor.chromium import PROGRAM, chromium
from tests.node.nodes import Cluster, wait_for

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(os.geteuid() != 0, reason="node daemons need root")]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, nothing balanced."""
    tmp_path.chmod(0o755)
    cluster = Cluster(tmp_path, 2)
    yield cluster
    cluster.down()


async def test_a_process_is_sent_away_by_keys_and_brought_home(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = pair.spawn(pair[1], "sleep", "600")
    monkeypatch.setenv("FARHOME_RUN", str(pair[1].run))
    source = DaemonSource()
    app = Monitor(source, source.picture(), interval=0.2)

    async def until(pilot: Pilot[None], what: Callable[[], bool]) -> None:
        for _ in range(1500):
            if what():
                return
            await pilot.pause(0.02)
        raise AssertionError("\n".join(app.texts()))

    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("enter", "m")
        await until(pilot, lambda: any(line.startswith("n2: load") for line in app.texts()))
        await pilot.press("down", "enter")
        await until(pilot, lambda: any(f"process {pid} is on n2, frozen" in line for line in app.texts()))
        await until(pilot, lambda: any(line.split()[:4] == [str(pid), "root", "n2", "away"] for line in app.texts()))
        assert pair[1].process(pid)["where"] == "n2"
        await pilot.press("enter")
        await until(pilot, lambda: any("home -> n2: somebody asked" in line for line in app.texts()))
        await pilot.press("escape", "h")
        await until(pilot, lambda: any(line.split()[:4] == [str(pid), "root", "home", "home"] for line in app.texts()))
        assert pair[1].process(pid)["where"] == "home"


@pytest.mark.soak
@pytest.mark.skipif(PROGRAM is None, reason="there is no chromium")
def test_a_process_is_sent_away_from_the_page_and_seen_there(pair: Cluster, tmp_path: Path) -> None:
    pid = pair.spawn(pair[1], "sleep", "600")
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.mon", "--web", "0", "--allow-moves", "-n", "0.2"], env=pair[1].environment, cwd="/",
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        with chromium(tmp_path / "profile") as browser:
            browser.open(address)
            browser.click(f"[data-key='{pid}']")
            browser.until("!document.querySelector('#move').hidden && document.querySelector('#target option[value=n2]') !== null")
            browser.value("document.querySelector('#target').value = 'n2'")
            browser.click("#move button")
            browser.until(f"document.querySelector('#told').textContent.includes('process {pid} is on n2, frozen')")
            browser.until(f"document.querySelector(`[data-key='{pid}'] td:nth-child(3)`).textContent === 'n2'")
            browser.until("document.querySelector('.stay').textContent === 'n2'")
            assert pair[1].process(pid)["where"] == "n2"
            wait_for(lambda: pair[2].guests() == [f"n1-{pid}"])
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
