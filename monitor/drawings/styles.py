"""How the styles of pieces look on a terminal, with its own sixteen colours and without any."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.drawings.pieces import Line, Piece

COLOURS = {"low": "blue", "middle": "yellow", "high": "magenta", "memory": "cyan", "alarm": "red"}
"""Blue, yellow and magenta can be distinguished by those who cannot distinguish green from red."""
ATTRIBUTES = {"title": ("bold",), "chosen": ("reverse",), "faded": ("dim",), "alarm": ("bold", "reverse")}
_CODES = {"bold": "1", "dim": "2", "reverse": "7", "blue": "34", "red": "31", "yellow": "33", "magenta": "35", "cyan": "36"}
ALTERNATE, ORDINARY = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""To the alternate screen, without a cursor, and back."""


def words(piece: Piece, colour: bool) -> list[str]:
    """Return the names of what a piece is drawn with, as rich calls them."""
    found = [*ATTRIBUTES.get(piece.style, ())]
    if piece.fade and "dim" not in found:
        found.append("dim")
    if colour and piece.fade < 2 and piece.style in COLOURS:
        found.append(COLOURS[piece.style])
    return found


def painted(lines: Sequence[Line], colour: bool) -> str:
    """Return a whole screen as a terminal takes it: the first one is there long before textual is."""
    text = [ALTERNATE, "\x1b[2J"]
    for number, line in enumerate(lines, start=1):
        text.append(f"\x1b[{number};1H")
        for piece in line:
            codes = ";".join(_CODES[word] for word in words(piece, colour))
            text.append(f"\x1b[{codes}m{piece.text}\x1b[0m" if codes else piece.text)
    return "".join(text)
