"""A run's time budget, in device seconds as the trials report them, so that a replayed run spends the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    """Splits the seconds of a run over its problems by expected cost; what one leaves over, later waves get."""

    def __init__(self, seconds: float | None, problems: Sequence[Problem]) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._cost_ahead_s = sum(map(measuring_s, problems))
        self._given: list[Allowance] = []

    def wave(self, problems: Sequence[Problem]) -> list[Allowance]:
        """The shares of ``problems`` in what is left. Call when all that earlier calls gave is spent as it will be."""
        left_s = max(self._seconds - sum(allowance.spent_s for allowance in self._given), 0.0)
        costs_s = [measuring_s(problem) for problem in problems]
        ahead_s = max(self._cost_ahead_s, sum(costs_s))
        self._cost_ahead_s -= sum(costs_s)
        allowances = [Allowance(left_s * (cost_s / ahead_s)) for cost_s in costs_s]
        self._given += allowances
        return allowances
