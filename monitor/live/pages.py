"""Pages of text in the live monitor: the keys, and why a process is where it is."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from monitor.drawings import frames, processes
from monitor.drawings.frames import Frame
from monitor.live.screen import Drawn


class Page(Drawn):
    """A page of text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "step(1)"), Binding("up", "step(-1)"), Binding("pagedown", "step(10)"), Binding("pageup", "step(-10)"),
    ]  # fmt: skip
    first = 0

    def page(self) -> tuple[str, list[str]]:
        """Return its title and its lines."""
        raise NotImplementedError

    def frame(self, width: int, height: int) -> Frame:
        """As much of the page as there is room for."""
        drawn = frames.text(*self.page(), self.first, width, height)
        self.first = drawn.first
        return drawn

    def action_step(self, lines: int) -> None:
        """Turns it up or down."""
        self.first = max(0, self.first + lines)
        self.redraw()

    def on_mouse_scroll_down(self) -> None:
        """Further down."""
        self.action_step(3)

    def on_mouse_scroll_up(self) -> None:
        """Further up."""
        self.action_step(-3)


class Help(Page):
    """All keys."""

    def page(self) -> tuple[str, list[str]]:
        """Return the keys and what they do."""
        return "keys of mon", frames.help_lines()


class Why(Page):
    """What became of a process, and why it is where it is."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid
        self._lines = ["…"]

    def on_mount(self) -> None:
        """The daemon is asked when it is first shown."""
        super().on_mount()
        self.monitor.ask_why(self.pid)

    def show_why(self, lines: list[str]) -> None:
        """The answer has come."""
        self._lines = lines
        self.redraw()

    def page(self) -> tuple[str, list[str]]:
        """Return what is decided now, then its history."""
        process = self.monitor.picture.process(self.pid)
        now = list(processes.reasons(self.monitor.picture, process)) if process else ["it has ended"]
        return f"why process {self.pid} is where it is", [*now, "", *self._lines]
