"""What a bench gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from kernel_helpers.common.errors import FarhomeError


class BenchFailed(FarhomeError):
    """A bench that could not measure what it is for; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Result:
    """One case: medians of ours and of the baseline, in `unit`, of `n` samples of ours; ratio is ours to baseline."""

    case: str
    ours: float
    unit: str
    baseline: float
    baseline_name: str
    ratio: float
    n: int

    @classmethod
    def of(cls, case: str, ours: Sequence[float], baseline: Sequence[float], *, unit: str, baseline_name: str) -> Result:
        """Return the result of samples. Errors: BenchFailed if there are none, or the baseline is zero."""
        if not ours or not baseline or median(baseline) <= 0:
            raise BenchFailed(f"case {case} has nothing to compare")
        ratio = median(ours) / median(baseline)
        return cls(case, median(ours), unit, median(baseline), baseline_name, ratio, len(ours))

    def to_json(self) -> dict[str, object]:
        """Return the result as the fixed form of benches has it."""
        return asdict(self)
