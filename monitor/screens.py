"""The screens of the live monitor: nodes, processes of a node, where to move one, why it is where it is, help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from monitor import frames, processes
from monitor.canvas import Canvas
from monitor.chart import NUMBERINGS, VIEWS
from monitor.frames import Frame
from monitor.picture import HOME, Guest, Process

if TYPE_CHECKING:
    from monitor.app import Monitor

ARROWS = ("left", "right", "up", "down", "home", "end")


class Drawn(Screen[None]):
    """A screen that is nothing but lines."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back")]
    drawn = Frame([])

    @property
    def monitor(self) -> Monitor:
        """The application, by its own type."""
        app: Monitor = self.app  # type: ignore[assignment]
        return app

    def compose(self) -> Iterator[Canvas]:
        """One canvas as large as the terminal."""
        yield Canvas(self.monitor.colour)

    def on_mount(self) -> None:
        """Drawn before it is first seen."""
        self.redraw()

    def frame(self, width: int, height: int) -> Frame:
        """What is on it now."""
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
        """What is being typed, or what there is to tell."""
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


class Nodes(Filtered):
    """The chart of all nodes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"press('{key}')") for key in (*VIEWS, *NUMBERINGS, "d", "t", *ARROWS)),
        Binding("enter", "processes"),
    ]

    @property
    def wanted(self) -> str:
        """A part of the names of nodes."""
        return self.monitor.outlook.wanted

    def want(self, text: str) -> None:
        """Only these nodes."""
        self.monitor.outlook = replace(self.monitor.outlook, wanted=text)

    def frame(self, width: int, height: int) -> Frame:
        """The chart."""
        return frames.nodes(self.monitor.picture, self.monitor.outlook, width, height, self.monitor.blocks, self.foot())

    def action_press(self, key: str) -> None:
        """One of MOSIX's keys."""
        self.monitor.outlook = self.monitor.outlook.pressed(key, self.monitor.picture)
        self.redraw()

    def action_processes(self) -> None:
        """Into the chosen node."""
        nodes, index = self.monitor.outlook.nodes(self.monitor.picture), self.monitor.outlook.index(self.monitor.picture)
        if nodes and not nodes[index].dead:
            self.app.push_screen(Processes(nodes[index].name))

    def on_click(self, event: events.Click) -> None:
        """Chooses a node, or goes into the one that is chosen."""
        chart = self.drawn.chart
        index = chart.node_at(event.x) if chart and self.drawn.top <= event.y < self.drawn.top + len(chart.lines) else None
        if index is None:
            return
        if index == self.monitor.outlook.index(self.monitor.picture):
            self.action_processes()
        else:
            self.monitor.outlook = self.monitor.outlook.at(self.monitor.picture, index)
            self.redraw()

    def on_mouse_scroll_down(self) -> None:
        """The next node."""
        self.action_press("right")

    def on_mouse_scroll_up(self) -> None:
        """The node before."""
        self.action_press("left")


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
        """What each row is known by."""
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


class Processes(Filtered, List):
    """The processes of a node."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "move"), Binding("h", "bring_home")]

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node
        self._wanted = ""

    @property
    def wanted(self) -> str:
        """A part of their lines."""
        return self._wanted

    def want(self, text: str) -> None:
        """Only these processes."""
        self._wanted = text

    def on_mount(self) -> None:
        """Another node is asked, too, by way of our daemon."""
        super().on_mount()
        if self.node != self.monitor.picture.node:
            self.monitor.visit(self)

    def on_unmount(self) -> None:
        """It need not tell any more."""
        self.monitor.leave(self)

    def foot(self) -> str:
        """Also why the node does not tell of its processes."""
        return super().foot() or self.monitor.untold

    def rows(self) -> list[Process | Guest]:
        """What is listed now."""
        return processes.listed(self.monitor.picture, self.node, self._wanted, self.monitor.listing)

    def keys(self) -> list[object]:
        """A guest, and a process of another node, is another than our home process with its id."""
        return [(row.pid, row.home, type(row)) for row in self.rows()]

    def frame(self, width: int, height: int) -> Frame:
        """The list, and why the chosen one is where it is."""
        shown = self.monitor
        return frames.process_list(shown.picture, self.node, self._wanted, self.chosen, width, height, self.foot(), shown.listing)

    def _chosen_process(self) -> Process | None:
        rows = self.rows()
        row = rows[self.chosen] if self.chosen < len(rows) else None
        if isinstance(row, Guest):
            self.monitor.say(f"{row.pid} is a guest: {row.home} decides where it goes; mosctl expel sends it home")
            return None
        if row is not None and row.home:
            self.monitor.say(f"{row.pid} is a process of {row.home}, and is moved from there")
            return None
        return row

    def action_enter(self) -> None:
        """Why it is where it is."""
        if (process := self._chosen_process()) is not None:
            self.app.push_screen(Why(process.pid))

    def action_move(self) -> None:
        """Asks where to."""
        if (process := self._chosen_process()) is not None:
            self.app.push_screen(Targets(process.pid))

    def action_bring_home(self) -> None:
        """Moves it home at once."""
        if (process := self._chosen_process()) is not None:
            self.monitor.say(f"process {process.pid} goes home …")
            self.monitor.move(process.pid, HOME)


class Targets(List):
    """Where to move a process."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid

    def targets(self) -> list[processes.Target]:
        """Where it may be sent now."""
        process = self.monitor.picture.process(self.pid)
        return processes.targets(self.monitor.picture, process) if process else []

    def keys(self) -> list[object]:
        """Their names."""
        return [target.name for target in self.targets()]

    def frame(self, width: int, height: int) -> Frame:
        """The list of targets."""
        return frames.target_list(self.monitor.picture, self.pid, self.targets(), self.chosen, width, height)

    def action_enter(self) -> None:
        """Moves it."""
        self.app.pop_screen()
        if isinstance(self.key, str):
            self.monitor.say(f"process {self.pid} is to go: {self.key} …")
            self.monitor.move(self.pid, self.key)


class Page(Drawn):
    """A page of text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "step(1)"), Binding("up", "step(-1)"), Binding("pagedown", "step(10)"), Binding("pageup", "step(-10)"),
    ]  # fmt: skip
    first = 0

    def page(self) -> tuple[str, list[str]]:
        """Its title and its lines."""
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
        """The keys and what they do."""
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

    def told(self, lines: list[str]) -> None:
        """The answer has come."""
        self._lines = lines
        self.redraw()

    def page(self) -> tuple[str, list[str]]:
        """What is decided now, then its history."""
        process = self.monitor.picture.process(self.pid)
        now = list(processes.reasons(self.monitor.picture, process)) if process else ["it has ended"]
        return f"why process {self.pid} is where it is", [*now, "", *self._lines]
