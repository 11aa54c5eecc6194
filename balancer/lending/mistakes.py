"""What is wrong with a configuration: one sentence, and which key it is about."""

from __future__ import annotations

Where = tuple[str | int, ...]
"""The way to a key: names of tables and keys, and numbers (from 0) within lists."""


class Mistake(ValueError):
    """One sentence; `where` is the key that it is about."""

    def __init__(self, where: Where, sentence: str) -> None:
        super().__init__(sentence)
        self.where = where


def named(where: Where) -> str:
    """Return a table as its heading in the file has it: [lend.owner], [[lend.class]] 2."""
    words = [str(word) for word in where if isinstance(word, str)]
    if where and isinstance(where[-1], int):
        return f"[[{'.'.join(words)}]] {where[-1] + 1}"
    return f"[{'.'.join(words)}]"
