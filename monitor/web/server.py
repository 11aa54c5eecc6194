"""The page of `mon --web`: plain files and the picture as JSON on loopback, for the user who serves it (and root) alone.

Moves need `--allow-moves`, and a token that a page of another site cannot read; that a name of another site leads here (DNS rebinding) is
refused by the name that is asked for. `/metrics` is for everybody on this machine: it has no processes in it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import threading
import time
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from monitor.drawings.table import dead_since
from monitor.drawings.timeline import in_words, stays
from monitor.picture import Event, Picture
from monitor.source import Source, Trouble
from monitor.web.loopback import uid_of_peer

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"), "/mon.js": ("mon.js", "text/javascript; charset=utf-8"),
    "/mon.css": ("mon.css", "text/css; charset=utf-8"),
}  # fmt: skip
WEB = Path(__file__).parent
TOKEN_HEADER = "X-Farhome-Token"
LONGEST_BODY = 4096
IDLE_SECONDS = 30.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip


class Refused(Exception):
    """A request that is not answered: its status and one sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Latest:
    """The last picture, asked for anew once it is older than `seconds`: many pages cost the daemon no more than one."""

    def __init__(self, source: Source, seconds: float) -> None:
        self._source = source
        self._seconds = seconds
        self._lock = threading.Lock()
        self._at = -1e9
        self._picture: Picture | None = None

    def picture(self) -> Picture:
        """Errors: Trouble."""
        with self._lock:
            if self._picture is None or time.monotonic() - self._at >= self._seconds:
                self._picture = None
                self._picture = self._source.picture()
                self._at = time.monotonic()
            return self._picture

    def forget(self) -> None:
        """Something was changed: the next one is a new one."""
        with self._lock:
            self._picture = None


class Page(ThreadingHTTPServer):
    """The server. Port 0: any that is free."""

    daemon_threads = True

    def __init__(self, source: Source, port: int, moves: bool, interval: float = 1.0) -> None:
        """Errors: OSError."""
        super().__init__((LOOPBACK, port), Handler)
        self.source = source
        self.latest = Latest(source, interval * 0.8)
        self.moves = moves
        self.interval = interval
        self.token = secrets.token_urlsafe(32)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no fault."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "farhome"
    sys_version = ""
    timeout = IDLE_SECONDS
    server: Page

    def log_message(self, format: str, *arguments: Any) -> None:
        """A terminal that serves a page stays quiet."""

    def do_GET(self) -> None:
        """Files, the picture, why, metrics."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """A move."""
        self._answer(self._post)

    def _answer(self, respond: Any) -> None:
        try:
            self._check_name()
            kind, content = respond(urlsplit(self.path))
            self._send(HTTPStatus.OK, kind, content)
        except Refused as refusal:
            self._send_json(refusal.status, {"error": str(refusal)})
        except Trouble as trouble:
            self._send_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(trouble)})

    def _check_name(self) -> None:
        """Errors: Refused: somebody else's name leads here."""
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if name not in NAMES:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, f"this is {self.server.address}")

    def _check_user(self) -> None:
        """Errors: Refused: somebody else's browser."""
        if uid_of_peer(self.connection) not in (0, os.getuid()):
            raise Refused(HTTPStatus.FORBIDDEN, "this page is for the user who serves it")

    def _get(self, url: Any) -> tuple[str, bytes]:
        if url.path == "/metrics":
            return self._metrics()
        self._check_user()
        if url.path in FILES:
            name, kind = FILES[url.path]
            return kind, (WEB / name).read_bytes()
        if url.path == "/session":
            return _json({"moves": self.server.moves, "token": self.server.token, "interval": self.server.interval})
        if url.path == "/picture":
            return _json(row_of(self.server.latest.picture()))
        if url.path == "/processes":
            return _json(asdict(self.server.source.listing((parse_qs(url.query).get("node") or [""])[0])))
        if url.path == "/why":
            return _json({"lines": self.server.source.why(_pid((parse_qs(url.query).get("pid") or [""])[0]))})
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _metrics(self) -> tuple[str, bytes]:
        from monitor.web.metrics import CONTENT_TYPE, exposition

        try:
            return CONTENT_TYPE, exposition(self.server.latest.picture())
        except Trouble:
            return CONTENT_TYPE, exposition(None)

    def _post(self, url: Any) -> tuple[str, bytes]:
        body = self._body()
        self._check_user()
        if url.path != "/move":
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        if not self.server.moves:
            raise Refused(HTTPStatus.FORBIDDEN, "this page only shows; mon --web --allow-moves lets it move processes")
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "that did not come from this page; load it again")
        try:
            wanted = json.loads(body)
            pid, target = wanted["pid"], wanted["target"]
        except (ValueError, KeyError, TypeError):
            raise Refused(HTTPStatus.BAD_REQUEST, "a move needs a pid and a target") from None
        if not isinstance(target, str):
            raise Refused(HTTPStatus.BAD_REQUEST, "a target is a text")
        try:
            return _json({"told": self.server.source.move(_pid(pid), target)})
        except Trouble as trouble:
            raise Refused(HTTPStatus.CONFLICT, str(trouble)) from None
        finally:
            self.server.latest.forget()

    def _body(self) -> bytes:
        """Errors: Refused."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_BODY:
            self.close_connection = True
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {LONGEST_BODY} bytes")
        return self.rfile.read(int(length))

    def _send_json(self, status: HTTPStatus, value: object) -> None:
        self._send(status, *_json(value))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(content))} | HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _json(value: object) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()


def _pid(value: object) -> int:
    """Errors: Refused."""
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or not 0 < int(text[:10]) < 1 << 22:
        raise Refused(HTTPStatus.BAD_REQUEST, "a pid is a number")
    return int(text)


def row_of(picture: Picture) -> dict[str, Any]:
    """Return a picture as the page reads it: with what is concluded from it, so that nothing is concluded twice."""
    row = asdict(picture)
    for node, one in zip(picture.nodes, row["nodes"], strict=True):
        one |= {"state": node.state, "fade": node.fade, "memory_used": node.memory_used, "shown": picture.is_shown(node)}
        one["dead_since"] = dead_since(node) if node.dead else ""
    for event, one in zip(picture.events, row["events"], strict=True):
        one["told"] = in_words(event)
    by_process: dict[int, list[Event]] = {}
    for event in picture.events:
        by_process.setdefault(event.pid, []).append(event)
    row["stays"] = {str(pid): [*stays(picture, events)] for pid, events in by_process.items()}
    row["lost"] = [in_words(event) for event in picture.losses()]
    return row


def serve(source: Source, port: int, moves: bool, interval: float) -> None:
    """Serves the page until Ctrl-C; says where. Errors: OSError."""
    with Page(source, port, moves, interval) as page:
        print(f"{page.address}  (Ctrl-C ends it{'' if moves else '; it only shows, --allow-moves lets it move processes'})", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            page.serve_forever()
