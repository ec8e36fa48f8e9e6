"""Trials of a run: answered from the store where it knows them, measured and kept where it does not."""

from __future__ import annotations

import time
from collections.abc import Sequence

from blockscale.executor.base import Device, Done, Work
from blockscale.problem import Candidate, Environment, Phase, Problem, Trial, TrialStatus
from blockscale.store import Store


class Ledger:
    """Nothing measured in this environment is measured again; every new trial is on disk before it is used."""

    def __init__(self, store: Store, device: Device) -> None:
        self._store = store
        self._device = device
        self.measured = 0
        self.reused = 0
        self.waited_s = 0.0  # for the device, in seconds

    @property
    def environment(self) -> Environment:
        """The environment that all trials belong to."""
        return self._device.environment

    def known_screening(self, problem: Problem, candidate: Candidate) -> Trial | None:
        """The screening trial that the store holds of a candidate."""
        known = self._store.find(self.environment, problem, candidate, Phase.SCREEN)
        self.reused += known is not None
        return known

    def known_comparison(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Trial] | None:
        """The candidates' final trials, where the store holds them from one comparison."""
        known = self._store.find_comparison(self.environment, problem, candidates)
        self.reused += len(known or ())
        return known

    def start(self, work: Work, rank: int) -> None:
        """Have the device do what the store does not know."""
        self._device.start(work, rank)

    def next_done(self) -> Done:
        """The next finished work; its trials are in the store."""
        began = time.perf_counter()
        done = self._device.next_done()
        self.waited_s += time.perf_counter() - began
        if done.work.phase is Phase.FINAL:
            self._store.add_comparison(self.environment, done.trials)
        else:
            for trial in done.trials:
                self._store.add(self.environment, trial)
        self.measured += sum(t.status is not TrialStatus.UNRECORDED for t in done.trials)
        return done
