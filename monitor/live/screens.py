"""The screens of the live monitor: nodes, processes of a node, where to move one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from monitor.drawings import frames, processes
from monitor.drawings.chart import NUMBERINGS, VIEWS
from monitor.drawings.frames import Frame
from monitor.live.pages import Why
from monitor.live.screen import Filtered, List
from monitor.picture import HOME, Guest, Process

ARROWS = ("left", "right", "up", "down", "home", "end")


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
        """Return the chart."""
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
        """The message need not be shown any more."""
        self.monitor.leave(self)

    def foot(self) -> str:
        """Also why the node does not report its processes."""
        return super().foot() or self.monitor.unreported

    def rows(self) -> list[Process | Guest]:
        """Return what is listed now."""
        return processes.listed(self.monitor.picture, self.node, self._wanted, self.monitor.listing)

    def keys(self) -> list[object]:
        """Return a guest, and a process of another node, is another than our home process with its id."""
        return [(row.pid, row.home, type(row)) for row in self.rows()]

    def frame(self, width: int, height: int) -> Frame:
        """Return the list, and why the chosen one is where it is."""
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
        """Return where it may be sent now."""
        process = self.monitor.picture.process(self.pid)
        return processes.targets(self.monitor.picture, process) if process else []

    def keys(self) -> list[object]:
        """Their names."""
        return [target.name for target in self.targets()]

    def frame(self, width: int, height: int) -> Frame:
        """Return the list of targets."""
        return frames.target_list(self.monitor.picture, self.pid, self.targets(), self.chosen, width, height)

    def action_enter(self) -> None:
        """Moves it."""
        self.app.pop_screen()
        if isinstance(self.key, str):
            self.monitor.say(f"process {self.pid} is to go: {self.key} …")
            self.monitor.move(self.pid, self.key)
