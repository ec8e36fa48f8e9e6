"""Tuning one problem for one engine: screen, re-time the finalists, choose."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from blockscale.costmodel import CostModel, Portfolio
from blockscale.engines import Engine
from blockscale.executor.base import Device
from blockscale.problem import Candidate, Kernel, Phase, Problem, TileConfig, Trial, TrialStatus
from blockscale.search import Knowledge, Strategy, StrategyName, make_strategy
from blockscale.selection import Selection, SelectionRules, finalists, select
from blockscale.space import Clause, Space
from blockscale.tuning.baselines import Baseline
from blockscale.tuning.budget import Allowance
from blockscale.tuning.choice import chosen_entry
from blockscale.tuning.events import Observer, ProblemResult, TrialFinished
from blockscale.tuning.request import TuneRequest

# Configs asked for at once. Few enough that a search learns between batches, since many problems keep the compilers
# busy; a search that learns nothing gets enough to do so alone.
_BATCH: Mapping[StrategyName, int] = {"auto": 16, "random": 64, "exhaustive": 64}

# When every finalist fails its second check, the next fastest are tried, so often.
_FINAL_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Job:
    """One problem for one engine, with what would run otherwise."""

    engine: Engine
    problem: Problem
    baseline: Baseline


@dataclass(frozen=True, slots=True)
class Decision:
    """What a job came to: the row for people, and the trial behind the chosen entry."""

    result: ProblemResult
    selection: Selection
    final: Trial | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Candidates that a job wants tried: each for itself in screening, together in finals."""

    phase: Phase
    candidates: Sequence[Candidate]


Answer: TypeAlias = tuple[Trial, bool]
"""A trial, and whether the store knew it before."""

Result = TypeVar("Result")
Asking: TypeAlias = Generator[Ask, Sequence[Answer], Result]
"""Yields what it wants tried and is sent the trials, in the order of the candidates; ends with a result."""


class ProblemTuner:
    """How a job goes. What it comes to depends on the trials alone, not on when those are made."""

    def __init__(self, request: TuneRequest, device: Device, observer: Observer, portfolio: Portfolio | None) -> None:
        self._request = request
        self._device = device
        self._spec = device.spec
        self._observe = observer
        self._rules = SelectionRules()
        self._portfolio = portfolio
        self._cost_models: dict[Kernel, CostModel] = {}

    def tune(self, job: Job, knowledge: Sequence[Knowledge], allowance: Allowance) -> Asking[Decision]:
        """Search the job's space within ``allowance``, then re-time the finalists and choose among them."""
        screened, expected_us = yield from self._screening(job, knowledge, allowance)
        finals = yield from self._finals(job, screened, expected_us, allowance)
        selection = select(
            list(finals.values()), job.baseline.candidate, self._rules, overwrite=self._request.overwrite
        )
        result = ProblemResult(
            engine=job.engine.name,
            problem=job.problem,
            outcome=selection.outcome,
            entry=chosen_entry(job.engine, job.baseline, selection),
            time_us=selection.time_us,
            baseline_us=selection.baseline_us,
            roofline_us=self._spec.roofline_us(job.problem),
            reason=selection.reason,
            screened=len(screened),
        )
        return Decision(result, selection, finals.get(selection.winner) if selection.winner else None)

    def _screening(
        self, job: Job, knowledge: Sequence[Knowledge], allowance: Allowance
    ) -> Asking[tuple[dict[Candidate, Trial], dict[Candidate, float]]]:
        """Trials of the baselines, then of what the strategy asks for, until it ends or the allowance is spent.

        Beside the trials, those among them that the strategy doubts, with the µs that it expects instead.
        """
        space = self._space(job)
        screened: dict[Candidate, Trial] = {}
        best_us: float | None = None

        def note(answers: Sequence[Answer]) -> None:
            nonlocal best_us
            for trial, reused in answers:
                allowance.spend(trial.elapsed_s)
                screened[trial.candidate] = trial
                best_us = min((time for time in (best_us, trial.time_us) if time is not None), default=None)
                baseline_us = _time_of(job.baseline, screened)
                self._observe(TrialFinished(job.engine.name, trial, reused, best_us, baseline_us))

        reasons = {c: space.reason(c.config) for c in job.baseline.candidates}
        note([(Trial(job.problem, c, TrialStatus.ILLEGAL, message=r), False) for c, r in reasons.items() if r])
        runnable = [c for c, reason in reasons.items() if reason is None]
        strategy = self._strategy(job, space, [c.config for c in runnable], knowledge)
        at_once = _BATCH[self._request.search]
        # The baselines are tried whatever the search asks for, together with its first configs.
        asked = self._candidates(job, strategy.ask(at_once))
        wanted = list(dict.fromkeys([*runnable, *asked]))
        while wanted or asked:
            note((yield Ask(Phase.SCREEN, wanted)))
            for candidate in asked:
                strategy.tell(candidate.config, screened[candidate].time_us)
            asked = self._candidates(job, strategy.ask(at_once)) if asked and allowance.left_for_screening else []
            wanted = [c for c in asked if c not in screened]
        doubted = strategy.doubted()
        return screened, dict(zip(self._candidates(job, list(doubted)), doubted.values(), strict=True))

    def _space(self, job: Job) -> Space:
        """The engine's space, less what the device could not answer for."""

        def check(problem: Problem, config: TileConfig) -> str | None:
            known = self._device.can_try(problem, Candidate(job.engine.kernel_for(problem, config, self._spec), config))
            return None if known else f"{self._spec.name} has no recorded trial of it"

        space = job.engine.space(job.problem, self._spec)
        return Space(space.problem, space.spec, space.axes, (*space.clauses, Clause("the device can answer", check)))

    def _candidates(self, job: Job, configs: Sequence[TileConfig]) -> list[Candidate]:
        return [Candidate(job.engine.kernel_for(job.problem, c, self._spec), c) for c in configs]

    def _strategy(
        self, job: Job, space: Space, priors: Sequence[TileConfig], knowledge: Sequence[Knowledge]
    ) -> Strategy:
        r = self._request
        seed = problem_seed(r.seed, job.problem)
        return make_strategy(r.search, space, priors, r.trials, seed, knowledge, self._cost_model(job))

    def _cost_model(self, job: Job) -> CostModel:
        """What is expected of the kernel that the engine launches by default, one for all its problems."""
        kernel = job.baseline.default.kernel
        if kernel not in self._cost_models:
            self._cost_models[kernel] = CostModel(self._spec, self._portfolio, kernel)
        return self._cost_models[kernel]

    def _finals(
        self,
        job: Job,
        screened: Mapping[Candidate, Trial],
        expected_us: Mapping[Candidate, float],
        allowance: Allowance,
    ) -> Asking[dict[Candidate, Trial]]:
        """Final trials by candidate; a candidate that failed there is out, and further ones take the empty places."""
        left = dict(screened)
        finals: dict[Candidate, Trial] = {}
        for _ in range(_FINAL_ROUNDS):
            chosen = finalists(left.values(), job.baseline.candidates, self._rules, expected_us)
            if not chosen:
                break
            trials = {trial.candidate: trial for trial, _ in (yield Ask(Phase.FINAL, chosen))}
            for trial in trials.values():
                allowance.spend(trial.elapsed_s)
            finals |= trials
            if any(t.time_us is not None for t in trials.values()):
                break
            for candidate in trials:
                del left[candidate]
        return finals


def problem_seed(seed: int, problem: Problem) -> int:
    """Seed of one problem's search: the run's seed, made different for every problem, equal on every machine."""
    digest = hashlib.sha256(f"{seed} {problem.shape} {problem.quant} {problem.out_dtype}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _time_of(baseline: Baseline, screened: Mapping[Candidate, Trial]) -> float | None:
    trial = screened.get(baseline.candidate)
    return trial.time_us if trial else None
