"""Text with a style, and the small drawings that all views are made of. No colour is needed to read any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from balancer.lending.formats import format_size

BARS = " ▁▂▃▄▅▆▇█"


class Piece(NamedTuple):
    """Some text of one style: "plain", "title", "low", "middle", "high", "memory", "chosen", "faded" or "alarm";
    `fade` as Node.fade."""

    text: str
    style: str = "plain"
    fade: int = 0


Line = list[Piece]


def bar(share: float, width: int, blocks: bool) -> str:
    """Return a bar of `width` columns filled to a share of 0 to 1, in eighths of a column if `blocks` may be used."""
    share = min(1.0, max(0.0, share))
    if not blocks:
        return ("#" * round(share * width)).ljust(width, ".")
    eighths = round(share * width * 8)
    text = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
    return text.ljust(width, "·")


def column(share: float, height: int, blocks: bool) -> str:
    """Return a bar that stands, one character for each line from the top."""
    share = min(1.0, max(0.0, share))
    if not blocks:
        return ("#" * round(share * height)).rjust(height)
    eighths = round(share * height * 8)
    return ((BARS[eighths % 8] if eighths % 8 else "") + "█" * (eighths // 8)).rjust(height)


def format_age(age: float) -> str:
    """Return an age as one writes it in four columns."""
    if age < 9.95:
        return f"{age:.1f}s"
    return f"{age:.0f}s" if age < 999.5 else f"{min(age / 3600, 999):.0f}h"


def compact(size: int) -> str:
    """Return bytes in at most five columns."""
    number = format_size(size)
    return number if len(number) <= 4 else f"{float(number[:-1]):.0f}{number[-1]}"


def clip(pieces: Sequence[Piece], width: int) -> Line:
    """Return the first `width` columns of a line."""
    clipped = []
    for piece in pieces:
        clipped.append(piece._replace(text=piece.text[:width]))
        width -= len(clipped[-1].text)
    return clipped


def fill(pieces: Sequence[Piece], width: int) -> Line:
    """Return the line in exactly `width` columns."""
    line = clip(pieces, width)
    missing = width - sum(len(piece.text) for piece in line)
    return [*line, Piece(" " * missing, line[-1].style if line and line[-1].style == "chosen" else "plain")] if missing else line


def shorten(text: str, width: int) -> str:
    """Return the text in at most `width` columns; a ~ reports that something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "~"[: max(0, width)]


def level(load: float) -> str:
    """Return the style of a load."""
    return "low" if load < 1.05 else "middle" if load < 2.05 else "high"


def joined(pieces: Sequence[Piece]) -> Line:
    """Return the same line in as few pieces as it can be."""
    line: Line = []
    for piece in pieces:
        if line and line[-1][1:] == piece[1:]:
            line[-1] = piece._replace(text=line[-1].text + piece.text)
        elif piece.text:
            line.append(piece)
    return line


def text_of(line: Sequence[Piece]) -> str:
    """Nothing but the text."""
    return "".join(piece.text for piece in line)
