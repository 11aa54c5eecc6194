"""Makes the inputs of the workloads: the same bytes for the same arguments, on every machine."""

from __future__ import annotations

import random


def text(size: int, seed: int = 1) -> bytes:
    """Returns about `size` bytes of lines of words, of which some are frequent and some rare."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randrange(2, 11))) for _ in range(5000)]
    parts: list[str] = []
    made = 0
    while made < size:
        line = " ".join(words[int(chance.paretovariate(0.6)) % 5000] for _ in range(chance.randrange(3, 14)))
        parts.append(line)
        made += len(line) + 1
    return ("\n".join(parts) + "\n").encode()


def random_lines(size: int, seed: int = 2) -> bytes:
    """Returns about `size` bytes of lines of 1 to 60 hexadecimal digits, to be sorted."""
    chance = random.Random(seed)
    digits = chance.randbytes(size // 2).hex().encode()
    parts: list[bytes] = []
    at = 0
    while at < len(digits):
        length = chance.randrange(1, 61)
        parts.append(digits[at : at + length])
        at += length
    return b"\n".join(parts) + b"\n"


def inserts(rows: int, per_transaction: int, seed: int = 3) -> bytes:
    """Returns SQL that inserts `rows` rows in transactions of `per_transaction`, with updates, an index and questions in between."""
    chance = random.Random(seed)
    parts = [
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL, value REAL, note BLOB);",
        "CREATE INDEX by_name ON item (name);",
    ]
    for start in range(0, rows, per_transaction):
        parts.append("BEGIN;")
        for row in range(start, min(start + per_transaction, rows)):
            name = f"{chance.randrange(10**6):06d}"
            parts.append(f"INSERT INTO item VALUES ({row}, '{name}', {chance.random():.6f}, x'{chance.randbytes(12).hex()}');")
        parts.append(f"UPDATE item SET value = value + 1 WHERE id = {chance.randrange(start + 1)};")
        parts.append("COMMIT;")
        if start // per_transaction % 50 == 0:
            parts.append("SELECT count(*), max(name), round(sum(value), 3) FROM item;")
    parts.append("PRAGMA integrity_check;")
    parts.append("SELECT name, count(*) FROM item GROUP BY substr(name, 1, 2) ORDER BY name LIMIT 100;")
    return ("\n".join(parts) + "\n").encode()
