"""A run's time budget, in device seconds as the trials report them, so that a replayed run spends the same."""

from __future__ import annotations

import math

from blockscale.executor.cost import measuring_s
from blockscale.problem import Problem

# Part of a problem's allowance that screening leaves for re-timing the finalists.
_FINALS_SHARE = 0.2


class Allowance:
    """What one problem may spend; unlimited without a budget."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.spent_s = 0.0

    def spend(self, seconds: float) -> None:
        """Count the cost of one trial."""
        self.spent_s += seconds

    @property
    def left_for_screening(self) -> bool:
        """Whether another batch may be screened."""
        return self.spent_s < self._seconds * (1 - _FINALS_SHARE)


class Budget:
    """Splits the seconds of a run over its problems by expected cost; what one leaves over, the next ones get."""

    def __init__(self, seconds: float | None, problems: list[Problem]) -> None:
        self._left_s = math.inf if seconds is None else seconds
        self._cost_ahead_s = sum(map(measuring_s, problems))

    def allowance(self, problem: Problem) -> Allowance:
        """The share of ``problem`` in what is left. Call in the order in which problems are tuned."""
        if math.isinf(self._left_s):
            return Allowance(math.inf)
        cost_s = measuring_s(problem)
        share = cost_s / self._cost_ahead_s if self._cost_ahead_s > 0 else 1.0
        self._cost_ahead_s -= cost_s
        return Allowance(max(self._left_s, 0.0) * min(share, 1.0))

    def settle(self, allowance: Allowance) -> None:
        """Take what was spent off what is left."""
        self._left_s -= allowance.spent_s
