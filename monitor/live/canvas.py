"""A textual widget that shows lines of pieces, and draws again only those that have changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from monitor.drawings.pieces import Line, Piece, text_of
from monitor.drawings.styles import words


class Canvas(Widget):
    """Lines from the top left corner."""

    def __init__(self, colour: bool) -> None:
        super().__init__()
        self._colour = colour
        self._lines: Sequence[Line] = []
        self._styles: dict[tuple[str, int], Style] = {}

    def show(self, lines: Sequence[Line]) -> None:
        """Shows these lines from now on."""
        before, self._lines = self._lines, lines
        width = self.size.width
        if len(before) != len(lines):
            self.refresh()
            return
        changed = [Region(0, y, width, 1) for y, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new]
        if changed:
            self.refresh(*changed)

    def texts(self) -> list[str]:
        """Return the text of the lines."""
        return [text_of(line).rstrip() for line in self._lines]

    def render_line(self, y: int) -> Strip:
        """One line, as textual wants it."""
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width)
        return Strip([Segment(piece.text, self._style(piece)) for piece in self._lines[y]]).adjust_cell_length(width)

    def _style(self, piece: Piece) -> Style:
        key = (piece.style, piece.fade)
        if key not in self._styles:
            self._styles[key] = Style.parse(" ".join(words(piece, self._colour)) or "none")
        return self._styles[key]
