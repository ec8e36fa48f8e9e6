"""Trials of a run: answered from the store where it knows them, measured and kept where it does not."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from blockscale.executor.base import Comparison, Device, Done, Work
from blockscale.executor.culprits import BREAKING, Culprits
from blockscale.problem import Candidate, Environment, Phase, Problem, Trial, TrialStatus
from blockscale.store import Store


class Ledger:
    """Nothing measured in this environment is measured again; every new trial is on disk before it is used.

    A candidate that broke the measuring process twice in this environment, in whatever run, is not given to the device
    again: its trials are failures that say so.
    """

    def __init__(self, store: Store, device: Device) -> None:
        self._store = store
        self._device = device
        self._culprits = Culprits()
        for _, trial in store.trials(self.environment, statuses=BREAKING):
            self._culprits.note(trial)
        self._refused: deque[Done] = deque()  # never given to the device
        self._shortened: dict[Work, Done] = {}  # what the device got of a comparison, and that with the others' trials
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
        reasons = {c: reason for c in work.candidates if (reason := self._culprits.refusal(c)) is not None}
        if not reasons:
            self._device.start(work, rank)
            return
        refused = Done(
            work,
            tuple(
                Trial(work.problem, c, TrialStatus.ILLEGAL, work.phase, message=reason) for c, reason in reasons.items()
            ),
        )
        left = tuple(c for c in work.candidates if c not in reasons)
        if left:
            rest = Comparison(work.problem, left)
            self._shortened[rest] = refused
            self._device.start(rest, rank)
        else:
            self._refused.append(refused)

    def next_done(self) -> Done:
        """The next finished work; its trials are in the store."""
        done = self._refused.popleft() if self._refused else self._measured()
        if done.work.phase is Phase.FINAL:
            self._store.add_comparison(self.environment, done.trials)
        else:
            for trial in done.trials:
                self._store.add(self.environment, trial)
        return done

    def _measured(self) -> Done:
        """The next work that the device has finished, with all its candidates."""
        began = time.perf_counter()
        done = self._device.next_done()
        self.waited_s += time.perf_counter() - began
        for trial in done.trials:
            self._culprits.note(trial)
            self.measured += trial.status is not TrialStatus.UNRECORDED
        refused = self._shortened.pop(done.work, None)
        if refused is None:
            return done
        trials = {trial.candidate: trial for trial in (*done.trials, *refused.trials)}
        return Done(refused.work, tuple(trials[candidate] for candidate in refused.work.candidates))
