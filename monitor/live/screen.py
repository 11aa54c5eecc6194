"""What screens of the live monitor have in common: they are drawn as lines, some can be filtered, some are lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol, cast

from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from monitor.drawings.frames import Frame
from monitor.drawings.outlook import Outlook
from monitor.live.canvas import Canvas
from monitor.picture import Listing, Picture


class Visitor(Protocol):
    """A screen that shows the report of another node."""

    node: str


class Application(Protocol):
    """What screens use of the application that shows them."""

    picture: Picture
    outlook: Outlook
    listing: Listing | None
    unreported: str
    blocks: bool
    colour: bool

    def foot(self) -> str:
        """Return what the last line shows instead of keys."""

    def say(self, sentence: str) -> None:
        """Show a message for a while."""

    def visit(self, screen: Visitor) -> None:
        """From now on that node is asked, too."""

    def leave(self, screen: Visitor) -> None:
        """Not any more."""

    def move(self, pid: int, target: str) -> object:
        """Moves a process."""

    def ask_why(self, pid: int) -> object:
        """Asks what became of a process."""


class Drawn(Screen[None]):
    """A screen that is nothing but lines."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back")]
    drawn = Frame([])

    @property
    def monitor(self) -> Application:
        """The application."""
        return cast("Application", self.app)

    def compose(self) -> Iterator[Canvas]:
        """One canvas as large as the terminal."""
        yield Canvas(self.monitor.colour)

    def on_mount(self) -> None:
        """Drawn before it is first seen."""
        self.redraw()

    def frame(self, width: int, height: int) -> Frame:
        """Return what is on it now."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draws what has changed."""
        size = self.app.size
        self.drawn = self.frame(size.width, size.height)
        for canvas in self.query(Canvas):  # one; none as long as the screen has only been asked for: it is drawn when it is there
            canvas.show(self.drawn.lines)

    def texts(self) -> list[str]:
        """The lines that are on show."""
        return self.query_one(Canvas).texts()

    def on_screen_resume(self) -> None:
        """It is on top again, and others have seen newer figures."""
        if self.is_mounted:
            self.redraw()

    def action_back(self) -> None:
        """To the screen before."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()


class Filtered(Drawn):
    """A screen whose rows can be filtered by a text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "filter")]
    editing = False

    @property
    def wanted(self) -> str:
        """The text that rows must have."""
        raise NotImplementedError

    def want(self, text: str) -> None:
        """Takes another text."""
        raise NotImplementedError

    def action_filter(self) -> None:
        """From now on keys are text."""
        self.editing = True
        self.redraw()

    def foot(self) -> str:
        """Return what is being typed, or a message."""
        return f"/{self.wanted}_   Enter keeps it, Esc ends it" if self.editing else self.monitor.foot()

    def on_key(self, event: events.Key) -> None:
        """While a text is typed, keys mean themselves."""
        if not self.editing:
            return
        event.stop()
        event.prevent_default()
        if event.key in ("enter", "escape"):
            self.editing = False
            if event.key == "escape":
                self.want("")
        elif event.key == "backspace":
            self.want(self.wanted[:-1])
        elif event.character and event.is_printable:
            self.want(self.wanted + event.character)
        self.redraw()

    def action_back(self) -> None:
        """Ends a filter first."""
        if self.wanted:
            self.want("")
            self.redraw()
        else:
            super().action_back()


class List(Drawn):
    """A screen with a list, one row of which is chosen, and stays so when others come and go."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)"), Binding("down", "step(1)"), Binding("pageup", "step(-10)"), Binding("pagedown", "step(10)"),
        Binding("home", "step(-100000)"), Binding("end", "step(100000)"), Binding("enter", "enter"),
    ]  # fmt: skip
    chosen = 0
    key: object = None
    """of the chosen row, as it was last drawn"""

    def keys(self) -> Sequence[object]:
        """Return what each row is known by."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draws what has changed."""
        keys = self.keys()
        self.chosen = keys.index(self.key) if self.key in keys else min(self.chosen, max(0, len(keys) - 1))
        self.key = keys[self.chosen] if keys else None
        super().redraw()

    def action_enter(self) -> None:
        """Goes into the chosen row."""
        raise NotImplementedError

    def action_step(self, rows: int) -> None:
        """Chooses another row."""
        keys = self.keys()
        self.key = keys[min(max(0, self.chosen + rows), len(keys) - 1)] if keys else None
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Chooses a row, or goes into the one that is chosen."""
        row = self.drawn.row_at(event.y)
        if row == self.chosen:
            self.action_enter()
        elif row is not None:
            self.action_step(row - self.chosen)

    def on_mouse_scroll_down(self) -> None:
        """The next row."""
        self.action_step(1)

    def on_mouse_scroll_up(self) -> None:
        """The row before."""
        self.action_step(-1)
