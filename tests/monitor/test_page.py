"""The page of `mon --web` in a real Chromium: what it shows, and a move that is made from it and seen on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.web.server import Page
from tests.monitor.chromium import PROGRAM, Browser, chromium
from tests.monitor.pictures import FakeSource, node, process

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180), pytest.mark.skipif(PROGRAM is None, reason="there is no chromium")]


@contextmanager
def page(moves: bool, source: FakeSource) -> Iterator[Page]:
    server = Page(source, 0, moves, interval=0.2)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


def shown(browser: Browser) -> str:
    return str(browser.value("document.body.innerText"))


def keep(browser: Browser, name: str) -> None:
    """Saves a picture for a human reviewer: FARHOME_PICTURES is a directory."""
    if directory := os.environ.get("FARHOME_PICTURES"):
        browser.picture(Path(directory) / f"{name}.png")


def test_node_that_is_chosen_shows_its_own_processes_and_guests_too(browser: Browser) -> None:
    source = FakeSource()
    with page(False, source) as server:
        browser.open(server.address)
        browser.until("document.querySelectorAll('.node').length === 4")
        browser.value("document.querySelector('[data-key=n2]').click()")
        browser.until("document.querySelectorAll('#processes tr').length === 4")
        text = shown(browser)
        assert "processes of n2, and guests".upper() in text.upper()
        assert "n3: solve" in text
        assert "n1: work 4711" not in text
        source.silent.add("n2")
        browser.until("document.getElementById('whose').textContent.includes('n2 does not report its processes')")
        assert "n3: solve" not in shown(browser)


def test_page_shows_nodes_processes_and_moves_and_follows_them(browser: Browser) -> None:
    source = FakeSource()
    with page(False, source) as server:
        browser.open(server.address)
        browser.until("document.querySelectorAll('.node').length === 4")
        text = shown(browser)
        assert "farhome as n1 sees it: 4 nodes, load 1.68, 2 guests" in text
        assert "work 4712" in text
        assert "n2: make" in text
        assert "process 4711: n3 -> n2 (asked)" in text
        assert browser.value("[...document.querySelectorAll('.stay')].map(e => e.textContent)") == ["n3", "n2"]
        assert browser.value("document.querySelector('[data-key=n1] .value').textContent") == "3.20"
        assert browser.value("document.querySelector('[data-key=n10-with-a-very-long-name]').classList.contains('fade2')")
        keep(browser, "read-only")
        source.answer["nodes"] = [node("n1", 7.75, self=True)]
        browser.until("document.querySelector('[data-key=n1] .value').textContent === '7.75'")
        assert browser.value("document.querySelectorAll('.node').length") == 1
        assert browser.complaints == []


def test_keys_and_buttons_choose_the_view(browser: Browser) -> None:
    with page(False, FakeSource()) as server:
        browser.open(server.address)
        browser.until("document.querySelectorAll('.node').length === 4")
        for key, value in (("m", "12G"), ("s", "1.00"), ("u", "88 %"), ("L", "3.20"), ("l", "3.20")):
            browser.press(key)
            assert browser.value("document.querySelector('[data-key=n1] .value').textContent") == value
            assert browser.value(f"document.querySelector('button[data-key={key}]').getAttribute('aria-pressed')") == "true"
        browser.click("button[data-key=d]")
        browser.until("document.querySelector('[data-key=n9] .value').textContent === 'dead'")
        browser.click("button[data-key=m]")
        browser.until("document.querySelector('[data-key=n1] .free').style.height === '100%'")
        keep(browser, "memory")
        browser.press("t")
        assert "3 of 5 nodes heard of" in shown(browser)
        browser.click("[data-key=n2]")
        browser.until("document.querySelectorAll('#processes tr').length === 1")
        assert "n2: lends, load 2.00" in shown(browser)
        browser.click("[data-key=n1]")
        browser.press("/")
        browser.press("4712")
        browser.until("document.querySelectorAll('#processes tr').length === 1")
        assert "work 4712" in shown(browser)
        assert browser.complaints == []


def test_a_read_only_page_explains_and_offers_no_move(browser: Browser) -> None:
    with page(False, FakeSource()) as server:
        browser.open(server.address)
        browser.click("[data-key='4711']")
        browser.until("document.querySelector('#why').textContent.includes('moved twice')")
        assert "decision: stays: n3 would be no better" in shown(browser)
        assert browser.value("document.querySelector('#move').hidden")


def test_a_move_is_made_from_the_page_and_seen_on_it(browser: Browser) -> None:
    source = FakeSource()
    with page(True, source) as server:
        browser.open(server.address)
        browser.click("[data-key='4712']")
        browser.until("!document.querySelector('#move').hidden")
        browser.value("document.querySelector('#target').value = 'n2'")
        browser.click("#move button")
        browser.until("document.querySelector('#told').textContent.includes('process 4712 is n2, frozen 12.5 ms')")
        browser.until("document.querySelector('[data-key=\\'4712\\'] td:nth-child(3)').textContent === 'n2'")
        keep(browser, "moved")
        browser.value("document.querySelector('#target').value = 'n3'")
        browser.click("#move button")
        browser.until("document.querySelector('#told').textContent.includes('n3 refuses it: blocked')")
        assert source.moves == [(4712, "n2"), (4712, "n3")]
        browser.value("document.querySelector('#target').value = 'home'")
        browser.click("#move button")
        browser.until("document.querySelector('[data-key=\\'4712\\'] td:nth-child(3)').textContent === 'home'")


def test_the_name_of_a_process_is_shown_as_plain_text(browser: Browser) -> None:
    evil = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
    with page(False, FakeSource(processes=[process(4711, command=evil)], nodes=[node("n1", 1.0, self=True)])) as server:
        browser.open(server.address)
        browser.until("document.querySelectorAll('#processes td:nth-child(7)').length")
        assert browser.value("document.querySelector('#processes td:nth-child(7)').textContent") == evil
        assert browser.value("document.title") == "farhome"
        assert browser.value("document.images.length") == 0


def test_a_page_of_another_site_can_neither_read_nor_move(browser: Browser) -> None:
    source = FakeSource()
    with page(True, source) as server, page(False, FakeSource()) as other:
        browser.open(other.address)
        browser.until("document.querySelectorAll('.node').length === 4")
        for options in ("{}", "{method: 'POST', mode: 'no-cors', body: '{\"pid\": 4711, \"target\": \"home\"}'}"):
            fetched = f"fetch('{server.address}move', {options}).then(a => a.text()).then(() => 'read', () => 'refused')"
            assert browser.value(fetched) == "refused"  # here already by what this page may connect to
        browser.open("about:blank")
        fetched = f"fetch('{server.address}session').then(a => a.text()).then(() => 'read', () => 'refused')"
        assert browser.value(fetched) == "refused"
        options = "{method: 'POST', mode: 'no-cors', body: '{\"pid\": 4711, \"target\": \"home\"}'}"
        assert browser.value(f"fetch('{server.address}move', {options}).then(() => 'sent', () => 'refused')") in ("sent", "refused")
        assert source.moves == []


def test_trouble_is_shown_and_the_last_picture_stays(browser: Browser) -> None:
    source = FakeSource()
    with page(False, source) as server:
        browser.open(server.address)
        browser.until("document.querySelectorAll('.node').length === 4")
        source.trouble = "no mosd answers on this node"
        browser.until("document.querySelector('#trouble').textContent.includes('no mosd answers')")
        assert browser.value("document.querySelectorAll('.node').length") == 4
        source.trouble = ""
        browser.until("document.querySelector('#trouble').textContent === ''")
