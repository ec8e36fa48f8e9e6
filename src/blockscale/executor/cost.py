"""What trying one config costs a device, roughly: for the order of work, budgets, and recordings that do not say."""

from __future__ import annotations

from blockscale.problem import Problem

# Read off screens on an H200 in a run of 234 problems (benchmarks/whole_model.py): 6 ms at decode sizes, 2.5 ms more at
# M = 4096 on a 4608×7168 weight.
_FIXED_S = 0.006
_PER_PRODUCT_S = 0.0025 / (4096 * 4608 * 7168)

# As many trials of its own weigh as much in a problem's ratio as all that was measured elsewhere.
_TRUSTED_TRIALS = 8


def measuring_s(problem: Problem) -> float:
    """Device seconds to verify and time one compiled config: a fixed part, and one that grows with M·N·K."""
    return _FIXED_S + _PER_PRODUCT_S * problem.flops / 2


class MeasuredCost:
    """Expected seconds of a trial, corrected by what the trials of a run really took.

    Kept as ratios of measured to expected seconds: that of a problem's own trials, and as long as there are few, that
    of all trials together.
    """

    def __init__(self) -> None:
        self._all = _Sums()
        self._of: dict[Problem, _Sums] = {}

    def note(self, problem: Problem, seconds: float) -> None:
        """Count one trial of ``problem`` that took ``seconds`` of its device."""
        for sums in (self._all, self._of.setdefault(problem, _Sums())):
            sums.expected_s += measuring_s(problem)
            sums.measured_s += seconds

    def trial_s(self, problem: Problem) -> float:
        """Device seconds that the next trial of ``problem`` may take."""
        usual = self._all.measured_s / self._all.expected_s if self._all.expected_s else 1.0
        own = self._of.get(problem, _Sums())
        lean_s = _TRUSTED_TRIALS * measuring_s(problem)
        return measuring_s(problem) * (own.measured_s + usual * lean_s) / (own.expected_s + lean_s)


class _Sums:
    """Seconds of the same trials, as expected and as measured."""

    def __init__(self) -> None:
        self.expected_s = 0.0
        self.measured_s = 0.0
