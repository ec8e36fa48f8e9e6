"""Which of several equal GPUs each problem belongs to, and what every GPU has left to do."""

from __future__ import annotations

from collections.abc import Iterable

from blockscale.executor.base import Done
from blockscale.executor.cost import MeasuredCost
from blockscale.problem import Phase, Problem

# Configs that a problem takes before its finals, as long as this run has not seen any (docs/search.md); and what it may
# still take when it has had as many as are usual.
_USUAL_TRIALS = 24
_FEW_TRIALS = 4


class Balance:
    """Problems bound to GPUs, and the expected seconds that each GPU has left with those bound to it."""

    def __init__(self, gpus: int) -> None:
        self._cost = MeasuredCost()
        self._gpu_of: dict[Problem, int] = {}
        self._left_s: list[dict[Problem, float]] = [{} for _ in range(gpus)]
        self._screened: dict[Problem, int] = {}
        self._needed: dict[Problem, int] = {}  # of those that came to their finals: how many were screened before

    def gpu_of(self, problem: Problem) -> int | None:
        """The GPU that the problem is bound to, None where it is free."""
        return self._gpu_of.get(problem)

    def bind(self, problem: Problem, gpu: int) -> None:
        """Bind a free problem to a GPU, for good: its inputs are there, and its candidates compare."""
        self._gpu_of[problem] = gpu
        self._expect(problem)

    def note(self, done: Done) -> None:
        """Take in finished work of a bound problem."""
        problem = done.work.problem
        for trial in done.trials:
            if trial.status.timed and trial.elapsed_s:  # a hang says nothing of the next trial
                self._cost.note(problem, trial.elapsed_s)
        if done.work.phase is Phase.FINAL:
            self._needed.setdefault(problem, self._screened.get(problem, 0))
            self._left_s[self._gpu_of[problem]].pop(problem, None)
        else:
            self._screened[problem] = self._screened.get(problem, 0) + 1
            self._expect(problem)

    def left_s(self, gpu: int) -> float:
        """Device seconds that the problems bound to a GPU may still take."""
        return sum(self._left_s[gpu].values())

    def least_left(self, gpu: int, among: Iterable[int]) -> bool:
        """Whether none of ``among`` has less left to do than ``gpu``."""
        own_s = self.left_s(gpu)
        return all(own_s <= self.left_s(other) for other in among)

    def _expect(self, problem: Problem) -> None:
        usual = sum(self._needed.values()) / len(self._needed) if self._needed else _USUAL_TRIALS
        trials = max(usual - self._screened.get(problem, 0), _FEW_TRIALS)
        self._left_s[self._gpu_of[problem]][problem] = trials * self._cost.trial_s(problem)
