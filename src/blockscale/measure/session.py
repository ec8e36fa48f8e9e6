"""Screening and finals on one GPU: launch, verify, time, verify again. What fails is that candidate's result."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from blockscale.kernels.inputs import GemmInputs
from blockscale.measure.classify import classify
from blockscale.measure.conditions import Conditions, steady
from blockscale.measure.protocol import Measured
from blockscale.measure.rotation import FINAL_SEED, SCREEN_SEED, Rotation, RotationPool
from blockscale.measure.timing import Gpu, Launch, Replay, TimingPlan, round_orders
from blockscale.problem import Candidate, Problem, TrialStatus

log = logging.getLogger(__name__)


class Kernels(Protocol):
    """The kernels as measuring uses them."""

    def launches(
        self, problem: Problem, candidate: Candidate, sets: Sequence[GemmInputs], outputs: Sequence[torch.Tensor]
    ) -> list[Launch]:
        """A launch of the whole GEMM for each input set and its output, with everything checked and allocated."""
        ...


class _WrongError(Exception):
    """The output did not pass the comparison with the reference."""

    def __init__(self, status: TrialStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class _Finalist:
    """A candidate in the finals: its replay until it fails and what a pass of it takes, its samples so far."""

    replay: Replay | None = None
    pass_us: float = 0.0
    samples_us: tuple[float, ...] = ()
    labels: frozenset[str] = frozenset()
    failed: Measured | None = None


class Session:
    """Measures candidates on the GPU of this process."""

    def __init__(self, gpu: Gpu, kernels: Kernels, pool: RotationPool, conditions: Conditions) -> None:
        self._gpu = gpu
        self._kernels = kernels
        self._pool = pool
        self._conditions = conditions
        self.plan = TimingPlan()

    def screen(self, problem: Problem, candidate: Candidate, best_us: float | None) -> Measured:
        """Verify and time one candidate; ``COARSE`` when its first look is far behind ``best_us`` (µs)."""
        rotation = self._pool.rotation(problem, SCREEN_SEED)
        return self._guarded(lambda: self._screen(rotation, candidate, best_us))

    def _screen(self, rotation: Rotation, candidate: Candidate, best_us: float | None) -> Measured:
        sets = len(rotation.sets)
        limit_us = math.inf if best_us is None else self.plan.coarse_factor * best_us * sets
        replay = self._capture(rotation, candidate)
        looks_us, labels = self._look(rotation, replay, limit_us)
        # By the best pass: a disturbance only ever makes one longer.
        if min(looks_us) > limit_us:
            return _measured(TrialStatus.COARSE, [look_us / sets for look_us in looks_us], labels)
        series = self.plan.screening(min(looks_us))
        rotation.fill_nan()
        totals_us, labels = steady(self._conditions, lambda: replay.samples_us(series))
        _verify(rotation)
        return _measured(TrialStatus.OK, [total_us / (series.passes * sets) for total_us in totals_us], labels)

    def _capture(self, rotation: Rotation, candidate: Candidate) -> Replay:
        """Record one pass over the sets, after a launch of the first set that loads the kernel and shows its errors."""
        launches = self._kernels.launches(rotation.problem, candidate, rotation.sets, rotation.outputs)
        launches[0]()
        self._gpu.synchronize()
        return self._gpu.capture(launches)

    def _look(self, rotation: Rotation, replay: Replay, limit_us: float) -> tuple[list[float], frozenset[str]]:
        """Times of single verified passes in µs, few but enough to tell whether one takes longer than ``limit_us``."""
        rotation.fill_nan()
        looks_us, labels = steady(self._conditions, lambda: self._passes_us(replay, limit_us))
        _verify(rotation)
        return looks_us, labels

    def _passes_us(self, replay: Replay, limit_us: float) -> list[float]:
        first_us = replay.samples_us(self.plan.first_look())
        second = self.plan.second_look(first_us[0], limit_us)
        if second is None:
            return first_us
        looks_us = replay.samples_us(second)
        return looks_us if second.ahead else first_us + looks_us

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Measured | None]:
        """Time candidates in interleaved rounds on inputs that screening did not use, each replay verified.

        A result of None: not measured, since an earlier candidate poisoned the process.
        """
        rotation = self._pool.rotation(problem, FINAL_SEED)
        finalists = [_Finalist() for _ in candidates]
        steps = [(f, partial(self._enter, rotation, c, f)) for f, c in zip(finalists, candidates, strict=True)]
        for order in round_orders(len(candidates), self.plan.rounds):
            steps += [(finalists[i], partial(self._round, rotation, finalists[i])) for i in order]
        self._conditions.begin()
        for finalist, step in steps:
            if finalist.failed is None and self._attempt(finalist, step):
                return [f.failed for f in finalists]
        labels = self._conditions.end()
        return [f.failed or _measured(TrialStatus.OK, f.samples_us, f.labels | labels) for f in finalists]

    def _attempt(self, finalist: _Finalist, step: Callable[[], Measured]) -> bool:
        """Run one step of a finalist; whether it poisoned the process."""
        measured = self._guarded(step)
        if measured.status is not TrialStatus.OK:
            finalist.failed = measured
            finalist.replay = None
        return measured.poisoned

    def _enter(self, rotation: Rotation, candidate: Candidate, finalist: _Finalist) -> Measured:
        finalist.replay = self._capture(rotation, candidate)
        looks_us, _ = self._look(rotation, finalist.replay, math.inf)
        finalist.pass_us = min(looks_us)
        return Measured(TrialStatus.OK)

    def _round(self, rotation: Rotation, finalist: _Finalist) -> Measured:
        replay, series = finalist.replay, self.plan.final_round(finalist.pass_us)
        assert replay is not None
        rotation.fill_nan()
        (total_us,), labels = steady(self._conditions, lambda: replay.samples_us(series))
        _verify(rotation)
        finalist.samples_us += (total_us / (series.passes * len(rotation.sets)),)
        finalist.labels |= labels
        return Measured(TrialStatus.OK)

    def _guarded(self, measure: Callable[[], Measured]) -> Measured:
        try:
            return measure()
        except _WrongError as wrong:
            self._pool.forget()  # a kernel that writes where it should not may have hit the inputs as well
            return Measured(wrong.status, message=str(wrong))
        except Exception as error:
            failure = classify(error, TrialStatus.LAUNCH_ERROR)
            log.info("candidate failed: %s", failure.message)
            poisoned = failure.poisoned or not self._healthy()
            return Measured(failure.status, message=failure.message, poisoned=poisoned)

    def _healthy(self) -> bool:
        """Whether the GPU still answers: after a sticky error each call fails, whatever the first one said."""
        try:
            self._gpu.synchronize()
        except Exception:
            return False
        return True


def _measured(status: TrialStatus, samples_us: Sequence[float], labels: frozenset[str]) -> Measured:
    return Measured(status, tuple(samples_us), labels=tuple(sorted(labels)))


def _verify(rotation: Rotation) -> None:
    verdict = rotation.check()
    if not verdict.ok:
        raise _WrongError(verdict.status, verdict.message)
