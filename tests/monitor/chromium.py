"""A headless Chromium that tests speak to over two pipes, in its own protocol (one JSON object after the other, each ended by a zero)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 40.0
PROGRAM = shutil.which("chromium")


class Browser:
    """One page of a browser."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = to, of
        self._number = 0
        self._unread = b""
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.complaints: list[str] = []
        self.call("Runtime.enable")
        self.call("Log.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the result of a method of the protocol. Errors: AssertionError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            if answer.get("method") == "Runtime.exceptionThrown" or (
                answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error"
            ):
                self.complaints.append(json.dumps(answer["params"])[:500])
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            ready = select.select([self._of], [], [], max(0.0, end - time.monotonic()))[0]
            data = os.read(self._of, 1 << 16) if ready else b""
            assert data, "the browser says nothing"
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, address: str) -> None:
        """Goes to a page."""
        self.complaints.clear()
        self.call("Page.navigate", url=address)

    def value(self, script: str) -> Any:
        """Returns the value of an expression in the page; waits for a promise. Errors: AssertionError if it throws."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """The first true value of an expression. Errors: AssertionError if there is none in time."""
        end = time.monotonic() + PATIENCE
        while not (value := self.value(script)):
            assert time.monotonic() < end, (script, self.value("document.body.innerText"), self.complaints)
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Presses the left button of the mouse in the middle of an element."""
        where = self.until(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); if (!found) return null;"
            " found.scrollIntoView({block: 'center'}); const at = found.getBoundingClientRect();"
            " return {x: at.x + at.width / 2, y: at.y + at.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def press(self, text: str) -> None:
        """Presses keys."""
        for key in text:
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path) -> None:
        """Writes what it shows to a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile in that directory."""
    assert PROGRAM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    # It reads commands from descriptor 3 and writes answers to descriptor 4.
    process = subprocess.Popen(
        [
            "bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--no-first-run", "--window-size=1100,1000", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ],
        pass_fds=(to_read, from_write), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        os.close(to_write)  # it ends with its pipe, and takes its helpers along
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_read)
