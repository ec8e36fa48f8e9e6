"""A device that fails in every way a real one can, on purpose and reproducibly. For tests."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from blockscale.errors import IncompleteRunError
from blockscale.executor.base import Device, DeviceClock, Done, Work
from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, Phase, Problem, Trial, TrialStatus


class Fault(StrEnum):
    """What goes wrong with one trial."""

    HANG = "hang"  # the time limit ends it
    DIE = "die"  # the measuring process is gone, e.g. after an illegal memory access
    COMPILE_ERROR = "compile_error"
    OUT_OF_RESOURCES = "out_of_resources"
    WRONG_IN_FINALS = "wrong_in_finals"  # a race: right while screening, wrong on fresh inputs
    NOISE = "noise"  # every sample is off by up to a half
    SLOW_SCREEN = "slow_screen"  # a clock that fell just then: all samples of the screening are a sixth too long
    OUTLIER = "outlier"  # one sample is ten times too long
    DEVICE_LOST = "device_lost"  # the device is gone for good
    KILL = "kill"  # the whole process is killed, without any chance to tidy up


_FAILURES = {
    Fault.HANG: (TrialStatus.TIMEOUT, "no answer within {limit_s:g} s"),
    Fault.DIE: (TrialStatus.WORKER_DIED, "the measuring process ended with signal 11"),
    Fault.COMPILE_ERROR: (TrialStatus.COMPILE_ERROR, "PassManager::run failed"),
    Fault.OUT_OF_RESOURCES: (
        TrialStatus.OUT_OF_RESOURCES,
        "out of resource: shared memory, Required: 262144, Hardware limit: 232448",
    ),
}


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which trials go wrong, and how; the first rule that applies decides.

    ``at_trial`` counts every trial that the device hands back, screening and finals, from 1. ``on_candidate`` holds for
    each trial of the candidate. ``rates`` gives each fault the share of (problem, candidate) pairs that it hits; which
    ones depends on ``seed`` alone, not on the order of trials. ``scrambled`` hands finished work back in an order that
    ``seed`` draws, whatever the ranks.
    """

    at_trial: Mapping[int, Fault] = field(default_factory=dict)
    on_candidate: Mapping[Candidate, Fault] = field(default_factory=dict)
    rates: Mapping[Fault, float] = field(default_factory=dict)
    seed: int = 0
    time_limit_s: float = 10.0  # what a hang costs the run; nobody waits for it here
    scrambled: bool = False

    def fault_for(self, count: int, problem: Problem, candidate: Candidate) -> Fault | None:
        """The fault of the trial that is the ``count``-th of the device."""
        if count in self.at_trial:
            return self.at_trial[count]
        if candidate in self.on_candidate:
            return self.on_candidate[candidate]
        share = self.random_for(problem, candidate, "rule").random()
        for fault, rate in self.rates.items():
            if share < rate:
                return fault
            share -= rate
        return None

    def random_for(self, problem: Problem, candidate: Candidate, purpose: str) -> random.Random:
        """A generator that depends on seed, problem, candidate and purpose only."""
        name = json.dumps([self.seed, repr(problem), repr(candidate), purpose])
        return random.Random(hashlib.sha256(name.encode()).digest())


class FaultyDevice:
    """Another device with faults; satisfies ``Device`` but for what the plan breaks."""

    def __init__(self, inner: Device, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self._count = 0
        self._lost = False
        self._at_work = 0  # started and not taken from the inner device yet
        self._held: list[Done] = []
        self._shuffle = random.Random(plan.seed)

    @property
    def spec(self) -> DeviceSpec:
        """Limits of the inner device."""
        return self._inner.spec

    @property
    def environment(self) -> Environment:
        """Environment of the inner device."""
        return self._inner.environment

    def prepare(self, problems: Sequence[Problem]) -> None:
        """As the inner device."""
        self._check_present()
        self._inner.prepare(problems)

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        """As the inner device."""
        return self._inner.can_try(problem, candidate)

    def start(self, work: Work, rank: int) -> None:
        """As the inner device.

        Raises:
            IncompleteRunError: the plan has lost the device.
        """
        self._check_present()
        self._inner.start(work, rank)
        self._at_work += 1

    def next_done(self) -> Done:
        """As the inner device, faults apart.

        Raises:
            IncompleteRunError: the plan has lost the device.
        """
        self._check_present()
        done = self._next_scrambled() if self._plan.scrambled else self._inner.next_done()
        problem = done.work.problem
        faults = [self._next_fault(problem, candidate) for candidate in done.work.candidates]
        trials = [self._spoil(trial, fault) for trial, fault in zip(done.trials, faults, strict=True)]
        return Done(done.work, tuple(trials))

    def clock(self) -> DeviceClock:
        """As the inner device."""
        return self._inner.clock()

    def warnings(self) -> list[str]:
        """As the inner device."""
        return self._inner.warnings()

    def close(self) -> None:
        """Close the inner device."""
        self._inner.close()

    def _next_scrambled(self) -> Done:
        while self._at_work:
            self._held.append(self._inner.next_done())
            self._at_work -= 1
        if not self._held:
            raise RuntimeError("nothing was started")
        return self._held.pop(self._shuffle.randrange(len(self._held)))

    def _next_fault(self, problem: Problem, candidate: Candidate) -> Fault | None:
        """Count one trial; faults beyond the trial itself strike here, before it is handed back."""
        self._count += 1
        fault = self._plan.fault_for(self._count, problem, candidate)
        if fault is Fault.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault is Fault.DEVICE_LOST:
            self._lost = True
            self._check_present()
        return fault

    def _check_present(self) -> None:
        if self._lost:
            raise IncompleteRunError(
                f"{self.spec.name} was lost after {self._count - 1} trials: what was measured is saved, start the same "
                "command again once the device answers."
            )

    def _spoil(self, trial: Trial, fault: Fault | None) -> Trial:
        if fault is None:
            return trial
        if fault in _FAILURES:
            status, message = _FAILURES[fault]
            limit_s = self._plan.time_limit_s
            elapsed_s = limit_s if fault is Fault.HANG else trial.elapsed_s
            return _failed(trial, status, message.format(limit_s=limit_s), elapsed_s)
        if fault is Fault.WRONG_IN_FINALS:
            if trial.phase is Phase.SCREEN:
                return trial
            return _failed(trial, TrialStatus.WRONG_RESULT, "0.1% of the outputs are off", trial.elapsed_s)
        generator = self._plan.random_for(trial.problem, trial.candidate, trial.phase)
        samples = list(trial.samples_us)
        if fault is Fault.SLOW_SCREEN:
            samples = [sample * (7 / 6 if trial.phase is Phase.SCREEN else 1) for sample in samples]
        elif fault is Fault.NOISE:
            samples = [sample * generator.uniform(0.5, 1.5) for sample in samples]
        elif samples:
            samples[generator.randrange(len(samples))] *= 10
        return replace(trial, samples_us=tuple(samples))


def _failed(trial: Trial, status: TrialStatus, message: str, elapsed_s: float) -> Trial:
    return replace(trial, status=status, message=message, samples_us=(), elapsed_s=elapsed_s)
