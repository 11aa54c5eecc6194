"""The live monitor on a terminal: textual's keys, mouse and screens around the lines that `frames.py` draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ClassVar

from textual import events, work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from monitor.drawings.outlook import Outlook
from monitor.live import pages, screens
from monitor.live.screen import Application, Drawn, Visitor
from monitor.picture import Listing, Picture
from monitor.source import Source, Trouble

SAID_SECONDS = 8.0
"""How long the foot reports what came of something."""


class Monitor(App[None]):
    """Asks the source every `interval` seconds; what was known stays on show while it does not answer."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; color: ansi_default; overflow: hidden; } Canvas { width: 100%; height: 100%; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"), Binding("Q", "quit"), Binding("ctrl+c", "quit", priority=True), Binding("space", "look"),
        Binding("question_mark", "help"),
    ]  # fmt: skip

    def __init__(self, source: Source, picture: Picture, interval: float = 1.0, blocks: bool = True, colour: bool = True) -> None:
        super().__init__(ansi_color=True)
        self.source = source
        self.picture = picture
        self.interval = interval
        self.blocks = blocks
        self.colour = colour
        self.outlook = Outlook()
        self.trouble = ""
        self.listing: Listing | None = None
        self._visitor: Visitor | None = None
        """of another node"""
        self.unreported = ""
        """why it does not report them"""
        self._said: tuple[float, str] = (0.0, "")
        self._looking = False

    def get_default_screen(self) -> screens.Nodes:
        """Return the chart."""
        return screens.Nodes()

    def on_mount(self) -> None:
        """From now on it is live."""
        self.set_interval(self.interval, self.action_look)

    def foot(self) -> str:
        """Return what the last line shows instead of keys: trouble with the daemon, or what came of a move."""
        until, sentence = self._said
        return self.trouble or (sentence if time.monotonic() < until else "")

    def say(self, sentence: str) -> None:
        """Show a message for a while."""
        self._said = (time.monotonic() + SAID_SECONDS, sentence)
        self.redraw()

    def visit(self, screen: Visitor) -> None:
        """From now on the processes of the other node that it shows are asked for, too."""
        self._visitor, self.listing, self.unreported = screen, None, ""
        self.action_look()

    def leave(self, screen: Visitor) -> None:
        """Not any more."""
        if self._visitor is screen:
            self._visitor, self.listing, self.unreported = None, None, ""

    def redraw(self) -> None:
        """Draws the screen that is on show anew, where it has changed."""
        if isinstance(self.screen, Drawn):
            self.screen.redraw()

    def action_look(self) -> None:
        """Asks the source now, unless it is being asked."""
        if not self._looking:
            self._looking = True
            self._look()

    @work(thread=True, group="look")
    def _look(self) -> None:
        try:
            picture, trouble = self.source.picture(), ""
        except Trouble as error:  # a daemon that restarts comes back
            picture, trouble = self.picture, str(error)
        listing, unreported = None, ""
        if (visitor := self._visitor) is not None and not trouble:
            try:
                listing = self.source.listing(visitor.node)
            except Trouble as error:  # that node may be dead; the others are to be seen all the same
                unreported = str(error)
        self._report(lambda: self._seen(picture, trouble, listing, unreported))

    def _report(self, what: Callable[[], None]) -> None:
        """From a thread; nobody listens any more when the monitor is ending."""
        if not get_current_worker().is_cancelled and self.is_running:
            self.call_from_thread(what)

    def _seen(self, picture: Picture, trouble: str, listing: Listing | None, unreported: str) -> None:
        self._looking = False
        self.picture, self.trouble, self.listing, self.unreported = picture, trouble, listing, unreported
        self.redraw()

    @work(thread=True, group="move")
    def move(self, pid: int, target: str) -> None:
        """Moves a process, and reports what came of it."""
        try:
            sentence = self.source.move(pid, target)
        except Trouble as error:
            sentence = str(error)
        self._report(lambda: self._moved(sentence))

    def _moved(self, sentence: str) -> None:
        self.say(sentence)
        self.action_look()

    @work(thread=True, group="why")
    def ask_why(self, pid: int) -> None:
        """Fetches what became of a process, for the screen that shows it."""
        try:
            lines = self.source.why(pid)
        except Trouble as error:
            lines = [str(error)]
        self._report(lambda: self._show_why(pid, lines))

    def _show_why(self, pid: int, lines: list[str]) -> None:
        if isinstance(self.screen, pages.Why) and self.screen.pid == pid:
            self.screen.show_why(lines)

    def action_help(self) -> None:
        """The page of keys."""
        if not isinstance(self.screen, pages.Help):
            self.push_screen(pages.Help())

    def on_resize(self, event: events.Resize) -> None:
        """Every screen is drawn for the size that it has."""
        self.call_after_refresh(self.redraw)

    def texts(self) -> Iterator[str]:
        """The lines that are on show, for who cannot see them."""
        if isinstance(self.screen, Drawn):
            yield from self.screen.texts()


APPLICATION: Callable[..., Application] = Monitor
"""Which it is for its screens."""
