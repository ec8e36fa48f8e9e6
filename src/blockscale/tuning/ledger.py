"""Trials of a run: answered from the store where it knows them, measured and kept where it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blockscale.executor.base import Device
from blockscale.problem import Candidate, Environment, Phase, Problem, Trial, TrialStatus
from blockscale.store import Store


class Ledger:
    """Nothing measured in this environment is measured again; every new trial is on disk before it is used."""

    def __init__(self, store: Store, device: Device) -> None:
        self._store = store
        self._device = device
        self.measured = 0
        self.reused = 0

    @property
    def environment(self) -> Environment:
        """The environment that all trials belong to."""
        return self._device.environment

    def screen(self, problem: Problem, candidates: Sequence[Candidate]) -> Iterator[tuple[Trial, bool]]:
        """Each candidate's screening trial, in order, with whether it was known before."""
        known = {c: self._store.find(self.environment, problem, c, Phase.SCREEN) for c in candidates}
        fresh = self._device.screen(problem, [c for c in candidates if known[c] is None])
        for candidate in candidates:
            trial = known[candidate]
            if trial is not None:
                self.reused += 1
                yield trial, True
            else:
                trial = next(fresh)
                self._store.add(self.environment, trial)
                self.measured += trial.status is not TrialStatus.UNRECORDED
                yield trial, False

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Trial]:
        """The candidates' interleaved trials: those of one earlier comparison that held them all, else a new one."""
        known = self._store.find_comparison(self.environment, problem, candidates)
        if known is not None:
            self.reused += len(known)
            return known
        trials = self._device.finals(problem, candidates)
        self._store.add_comparison(self.environment, trials)
        self.measured += len(trials)
        return trials
