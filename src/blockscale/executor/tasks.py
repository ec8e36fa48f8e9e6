"""Work on its way through a GPU of this machine: compiled, measured, and then a trial for each candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TypeAlias

from blockscale.executor.base import SAME_CODE, Done, Work
from blockscale.measure.compile_pool import CompileOutcome
from blockscale.measure.protocol import Measured
from blockscale.problem import Candidate, Problem, Trial, TrialStatus
from blockscale.space import LaunchGrid, launch_grid

# What a launch does to the GPU: equal for two candidates that are the same work.
Launched: TypeAlias = tuple[Problem, str, LaunchGrid]


@dataclass
class Task:
    """Work on its way: each of its candidates is compiled, then it is measured."""

    work: Work
    rank: int
    outcomes: list[CompileOutcome | None]
    _lock: Lock = field(default_factory=Lock)

    def compiled(self, place: int, outcome: CompileOutcome) -> bool:
        """Note how one candidate's compilation ended, from any thread; whether it was the last."""
        with self._lock:
            self.outcomes[place] = outcome
            return all(outcome is not None for outcome in self.outcomes)

    def refuse(self, place: int, reason: str) -> None:
        """Have a candidate not launched, if it could be."""
        outcome = self.outcomes[place]
        if outcome is not None and outcome.status is TrialStatus.OK:
            self.outcomes[place] = replace(outcome, status=TrialStatus.ILLEGAL, message=reason)

    def launched(self, place: int) -> Launched | int | None:
        """What a candidate launches, or its place where its code is not known; None where it is not launched."""
        outcome, candidate = self.outcomes[place], self.work.candidates[place]
        if outcome is None or outcome.status is not TrialStatus.OK:
            return None
        problem = self.work.problem
        return (problem, outcome.code, launch_grid(problem, candidate.config)) if outcome.code else place

    def leaders(self) -> dict[Launched | int, int]:
        """The places of the candidates to measure: of those that launch the same, the first."""
        places: dict[Launched | int, int] = {}
        for place in range(len(self.outcomes)):
            if (launched := self.launched(place)) is not None:
                places.setdefault(launched, place)
        return places

    def done(self, measured: Sequence[Measured], spent_s: float) -> Done:
        """The finished work, given the results of its leaders and the seconds that they took together."""
        leaders = self.leaders()
        results = dict(zip(leaders, measured, strict=True))
        trials = []
        for place, candidate in enumerate(self.work.candidates):
            outcome, launched = self.outcomes[place], self.launched(place)
            assert outcome is not None
            if launched is None:
                trial = _trial(self.work, candidate, Measured(outcome.status, message=outcome.message))
            elif leaders[launched] == place:
                trial = _trial(self.work, candidate, results[launched], spent_s / len(leaders))
            else:
                trial = _trial(self.work, candidate, copied(results[launched]))
            trials.append(replace(trial, compile_s=outcome.compile_s))
        return Done(self.work, tuple(trials))


def copied(measured: Measured) -> Measured:
    """A result for another candidate that launches the very same code."""
    return replace(measured, labels=(*measured.labels, SAME_CODE))


def _trial(work: Work, candidate: Candidate, measured: Measured, elapsed_s: float = 0.0) -> Trial:
    return Trial(
        problem=work.problem,
        candidate=candidate,
        status=measured.status,
        phase=work.phase,
        samples_us=measured.samples_us,
        message=measured.message,
        elapsed_s=elapsed_s,
        labels=measured.labels,
    )
