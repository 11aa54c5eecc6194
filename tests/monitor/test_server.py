"""Answers of `mon --web`: files, picture, moves; and the callers that get none."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from monitor.web.loopback import uid_of_peer
from monitor.web.server import FILES, LONGEST_BODY, TOKEN_HEADER, Page
from tests.access import needs_ordinary_users_here
from tests.monitor.pictures import FakeSource

MOVE = {"pid": 4712, "target": "n2"}


@contextmanager
def serving(moves: bool = False, source: FakeSource | None = None) -> Iterator[tuple[Page, FakeSource]]:
    source = source or FakeSource()
    server = Page(source, 0, moves, interval=0.001)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server, source
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def ask(server: Page, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        text = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, text, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def json_of(answer: tuple[int, dict[str, str], bytes]) -> Any:
    return json.loads(answer[2])


def test_files_are_served_with_headers_that_let_nothing_else_in() -> None:
    with serving() as (server, _):
        for path, (_, kind) in FILES.items():
            status, headers, content = ask(server, "GET", path)
            assert (status, headers["Content-Type"]) == (200, kind)
            assert content
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/index.html", "/../server.py", "/mon.js/..", "//etc/passwd", "/session/"):
            assert ask(server, "GET", path)[0] == 404


def test_the_page_needs_nothing_from_elsewhere() -> None:
    with serving() as (server, _):
        for path in FILES:
            assert b"://" not in ask(server, "GET", path)[2]


def test_a_picture_holds_the_conclusions_from_its_data() -> None:
    with serving() as (server, _):
        picture = json_of(ask(server, "GET", "/picture"))
    assert [(node["name"], node["state"], node["fade"]) for node in picture["nodes"]] == [
        ("n1", "lends", 0), ("n2", "lends", 0), ("n3", "blocked", 0), ("n9", "dead", 0), ("n10-with-a-very-long-name", "silent", 2),
    ]  # fmt: skip
    assert [event["told"] for event in picture["events"]][-1] == "process 4712 not to n3: n3 refuses it: blocked"


def test_many_pages_cost_the_daemon_one_question() -> None:
    class Counting(FakeSource):
        asked = 0

        def picture(self) -> Any:
            self.asked += 1
            return super().picture()

    source = Counting()
    server = Page(source, 0, False, interval=3600)
    try:
        assert server.latest.picture() is server.latest.picture()
        assert source.asked == 1
        server.latest.forget()
        server.latest.picture()
        assert source.asked == 2
    finally:
        server.server_close()


def test_why_of_an_own_process_and_of_another_users() -> None:
    with serving() as (server, _):
        assert json_of(ask(server, "GET", "/why?pid=4711"))["lines"][0] == "process 4711 (work 4711) is on n2, moved twice"
        listed = json_of(ask(server, "GET", "/processes?node=n2"))
        rows = [(one["home"], one["pid"]) for one in listed["processes"] + listed["guests"]]
        assert rows == [("n2", 99), ("n2", 7), ("n1", 4711), ("n3", 4711)]
        status, _, content = ask(server, "GET", "/why?pid=4713")
        assert (status, json.loads(content)["error"]) == (503, "process 4713 belongs to root")
        for pid in ("", "x", "-1", "0", "1e3", "99999999999"):
            assert ask(server, "GET", f"/why?pid={pid}")[0] == 400


def test_a_move_with_the_token_is_made_and_its_outcome_returned() -> None:
    with serving(moves=True) as (server, source):
        session = json_of(ask(server, "GET", "/session"))
        assert session["moves"] is True
        answer = ask(server, "POST", "/move", MOVE, X_Farhome_Token=session["token"])
        assert (answer[0], json_of(answer)["told"]) == (200, "process 4712 is n2, frozen 12.5 ms, total 50.0 ms")
        answer = ask(server, "POST", "/move", {"pid": 4712, "target": "n3"}, X_Farhome_Token=session["token"])
        assert (answer[0], json_of(answer)["error"]) == (409, "process 4712 stays where it is: n3 refuses it: blocked")
        assert source.moves == [(4712, "n2"), (4712, "n3")]
        moved = next(row for row in json_of(ask(server, "GET", "/picture"))["processes"] if row["pid"] == 4712)
        assert moved["where"] == "n2"


@pytest.mark.parametrize("token", [None, "", "x", "ü"])
def test_a_move_without_the_token_is_refused(token: str | None) -> None:
    with serving(moves=True) as (server, source):
        headers = {} if token is None else {TOKEN_HEADER: token}
        status, _, content = ask(server, "POST", "/move", MOVE, **headers)
        assert (status, json.loads(content)["error"]) == (403, "that did not come from this page; load it again")
        assert source.moves == []


def test_a_page_that_only_shows_moves_nothing_even_with_the_token() -> None:
    with serving() as (server, source):
        assert ask(server, "POST", "/move", MOVE, X_Farhome_Token=server.token)[0] == 403
        assert json_of(ask(server, "GET", "/session"))["moves"] is False
        assert source.moves == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", {"pid": 1}, {"pid": "x", "target": "n2"}, {"pid": True, "target": "n2"}, {"pid": 1, "target": 2}]
)
def test_a_move_that_makes_no_sense_is_refused(body: object) -> None:
    with serving(moves=True) as (server, source):
        assert ask(server, "POST", "/move", body, X_Farhome_Token=server.token)[0] == 400
        assert source.moves == []


def test_a_request_that_is_too_long_is_not_read() -> None:
    with serving(moves=True) as (server, _):
        assert ask(server, "POST", "/move", b"x" * (LONGEST_BODY + 1), X_Farhome_Token=server.token)[0] == 413


@pytest.mark.parametrize(
    ("name", "status"), [("evil.example", 421), ("evil.example:80", 421), ("", 421), ("localhost:1", 200), ("127.0.0.1", 200)]
)
def test_a_name_of_another_site_that_leads_here_is_refused(name: str, status: int) -> None:
    with serving() as (server, _):
        assert ask(server, "GET", "/session", Host=name)[0] == status


def test_metrics_are_there_with_and_without_a_daemon() -> None:
    with serving() as (server, source):
        status, headers, content = ask(server, "GET", "/metrics")
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b"farhome_mosd_up 1.0" in content
        source.trouble = "no mosd answers on this node"
        assert b"farhome_mosd_up 0.0" in ask(server, "GET", "/metrics")[2]
        answer = ask(server, "GET", "/picture")
        assert (answer[0], json_of(answer)["error"]) == (503, "no mosd answers on this node")


def test_the_kernel_identifies_the_user_of_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as caller:
        connection, _ = listener.accept()
        with connection:
            assert uid_of_peer(connection) == uid_of_peer(caller)
            assert uid_of_peer(connection) is not None
            caller.close()
            assert uid_of_peer(connection) is None


def test_other_users_of_the_machine_see_nothing_but_metrics() -> None:
    needs_ordinary_users_here()
    program = (
        "import http.client, sys\n"
        "for path in sys.argv[2:]:\n"
        "    c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1])); c.request('GET', path); print(c.getresponse().status)\n"
    )
    with serving() as (server, _):
        done = subprocess.run(
            ["setpriv", "--reuid", "farhome-a", "--regid", "farhome-a", "--init-groups", sys.executable, "-I", "-c", program,
             str(server.server_port), "/", "/picture", "/session", "/why?pid=1", "/processes?node=n2", "/metrics"],
            capture_output=True, text=True, timeout=30, check=True, cwd="/",
        )  # fmt: skip
    assert done.stdout.split() == ["403", "403", "403", "403", "403", "200"]
