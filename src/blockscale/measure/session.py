"""Screening and finals on one GPU: launch, verify, time, verify again. What fails is that candidate's result."""

from __future__ import annotations

import logging
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
from blockscale.measure.timing import Gpu, Launch, Replay, TimingPlan, launches_per_replay, round_orders
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
    """A candidate in the finals: its replay until it fails, its samples so far."""

    replay: Replay | None = None
    launches: int = 1
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
        launches, replay, first_us, labels = self._first_look(rotation, candidate)
        if best_us is not None and first_us > self.plan.coarse_factor * best_us:
            return Measured(TrialStatus.COARSE, (first_us,), labels=tuple(sorted(labels)))
        replay, count = self._longer(replay, launches, first_us, self.plan.replay_us)
        rotation.fill_nan()
        totals, labels = steady(self._conditions, lambda: replay.samples_us(self.plan.samples))
        _verify(rotation)
        return Measured(TrialStatus.OK, tuple(total / count for total in totals), labels=tuple(sorted(labels)))

    def _first_look(
        self, rotation: Rotation, candidate: Candidate
    ) -> tuple[list[Launch], Replay, float, frozenset[str]]:
        """Run every set once eagerly, which loads the kernel, then one verified replay of one launch a set.

        Returns the launches, their replay, its µs per launch and the labels of that moment.
        """
        launches = self._kernels.launches(rotation.problem, candidate, rotation.sets, rotation.outputs)
        for launch in launches:
            launch()
        self._gpu.synchronize()
        replay = self._gpu.capture(launches)
        rotation.fill_nan()
        (total_us,), labels = steady(self._conditions, lambda: replay.samples_us(1))
        _verify(rotation)
        return launches, replay, total_us / len(launches), labels

    def _longer(
        self, replay: Replay, launches: list[Launch], launch_us: float, at_least_us: float
    ) -> tuple[Replay, int]:
        """A replay of at least ``at_least_us`` µs in whole passes over the sets, and its number of launches."""
        count = launches_per_replay(launch_us, len(launches), at_least_us, self.plan.most_launches)
        if count == len(launches):
            return replay, count
        return self._gpu.capture(launches * (count // len(launches))), count

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Measured | None]:
        """Time candidates in interleaved rounds on inputs that screening did not use, each replay verified.

        A result of None: not measured, since an earlier candidate poisoned the process.
        """
        rotation = self._pool.rotation(problem, FINAL_SEED)
        finalists = [_Finalist() for _ in candidates]
        steps = [(f, partial(self._enter, rotation, c, f)) for f, c in zip(finalists, candidates, strict=True)]
        for order in round_orders(len(candidates), self.plan.rounds):
            steps += [(finalists[i], partial(self._round, rotation, finalists[i])) for i in order]
        for finalist, step in steps:
            if finalist.failed is None and self._attempt(finalist, step):
                return [f.failed for f in finalists]
        return [f.failed or Measured(TrialStatus.OK, f.samples_us, labels=tuple(sorted(f.labels))) for f in finalists]

    def _attempt(self, finalist: _Finalist, step: Callable[[], Measured]) -> bool:
        """Run one step of a finalist; whether it poisoned the process."""
        measured = self._guarded(step)
        if measured.status is not TrialStatus.OK:
            finalist.failed = measured
            finalist.replay = None
        return measured.poisoned

    def _enter(self, rotation: Rotation, candidate: Candidate, finalist: _Finalist) -> Measured:
        launches, replay, first_us, _ = self._first_look(rotation, candidate)
        finalist.replay, finalist.launches = self._longer(replay, launches, first_us, self.plan.final_replay_us)
        return Measured(TrialStatus.OK)

    def _round(self, rotation: Rotation, finalist: _Finalist) -> Measured:
        replay = finalist.replay
        assert replay is not None
        rotation.fill_nan()
        (total_us,), labels = steady(self._conditions, lambda: replay.samples_us(1))
        _verify(rotation)
        finalist.samples_us += (total_us / finalist.launches,)
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


def _verify(rotation: Rotation) -> None:
    verdict = rotation.check()
    if not verdict.ok:
        raise _WrongError(verdict.status, verdict.message)
