"""Figures as people write them. Imports nothing: what starts quickly has them too."""

from __future__ import annotations

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def format_size(size: int) -> str:
    """Return bytes as people write them, such as "1.5G"."""
    for unit in ("T", "G", "M", "K"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.1f}".removesuffix(".0") + unit
    return str(max(0, size))


def format_clock(minute: int) -> str:
    """Return a minute of the day as clocks show it."""
    return f"{minute // 60}:{minute % 60:02d}"


def format_hours(hours: tuple[tuple[int, int], ...]) -> str:
    """Spans of minutes of the day as people write them."""
    return ", ".join(f"from {format_clock(start)} to {format_clock(end)}" for start, end in hours) or "at any hour"


def format_days(days: frozenset[int]) -> str:
    """Days as they are written in the policy: "mon-fri, sun"."""
    runs: list[list[int]] = []
    for day in sorted(days):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return ", ".join(DAYS[run[0]] + (f"-{DAYS[run[-1]]}" if len(run) > 1 else "") for run in runs)


def format_seconds(seconds: float) -> str:
    """Return a time as people write it, such as "10 m" or "0.1 s"."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
