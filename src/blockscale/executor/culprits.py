"""Candidates that broke the measuring process: tried once more at most, on whatever problem."""

from __future__ import annotations

from blockscale.executor.base import SAME_CODE
from blockscale.problem import Candidate, Trial, TrialStatus

BREAKING = frozenset({TrialStatus.WORKER_DIED, TrialStatus.TIMEOUT, TrialStatus.ILLEGAL_ACCESS})
"""How a trial ends that cost the measuring process."""

_CHANCES = 2


class Culprits:
    """Counts how often each candidate broke the process. Not thread-safe."""

    def __init__(self) -> None:
        self._broken: dict[Candidate, list[str]] = {}  # what happened, each time

    def note(self, trial: Trial) -> None:
        """Take in a trial; those that did not break the process say nothing."""
        if trial.status in BREAKING and SAME_CODE not in trial.labels:
            self._broken.setdefault(trial.candidate, []).append(f"{trial.status} at {trial.problem}")

    def refusal(self, candidate: Candidate) -> str | None:
        """Why the candidate is not to be launched again, None where it may be."""
        times = self._broken.get(candidate, [])
        if len(times) < _CHANCES:
            return None
        return f"not tried: it broke the measuring process before ({', '.join(times[:_CHANCES])})"
