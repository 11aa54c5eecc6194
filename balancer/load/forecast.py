"""The near future of a load: of several simple predictors, the word of the one that was nearest lately.

As the Network Weather Service does it (Wolski, Spring and Hayes, FGCS 15(5), 1999): no predictor is the best for all loads,
but which one is the best for this load now can be seen from what each of them foretold.
"""

from __future__ import annotations

import math
from collections import deque

KEPT = 30
FORGETS = 0.9
"""What is left of an error after each sample."""


class Forecaster:
    """Takes samples at equal distances, and foretells the next one."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=KEPT)
        self._smooth = dict.fromkeys((0.1, 0.3), 0.0)
        self._foretold: dict[str, float] = {}
        self._errors: dict[str, float] = {}

    def sample(self, value: float) -> None:
        """Take the next sample."""
        for name, foretold in self._foretold.items():
            self._errors[name] = FORGETS * self._errors.get(name, 0.0) + abs(foretold - value)
        for weight, smooth in self._smooth.items():
            self._smooth[weight] = smooth + weight * (value - smooth) if self._samples else value
        self._samples.append(value)
        recent = list(self._samples)
        self._foretold = {
            "the last": value,
            "the mean of 5": _mean(recent[-5:]),
            "the mean of 30": _mean(recent),
            "the median of 5": _median(recent[-5:]),
            "the median of 30": _median(recent),
        } | {f"smoothed by {weight}": smooth for weight, smooth in self._smooth.items()}

    @property
    def best(self) -> str | None:
        """The name of the predictor that was nearest lately; None before the first sample."""
        return min(self._foretold, key=lambda name: self._errors.get(name, 0.0), default=None)

    @property
    def next(self) -> float:
        """What the next sample will be by the best predictor; 0 before the first."""
        best = self.best
        return self._foretold[best] if best is not None else 0.0


# As in `statistics`, which takes 4 ms of a start to be loaded.
def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _median(values: list[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
