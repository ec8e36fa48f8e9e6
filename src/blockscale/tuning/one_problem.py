"""Tuning one problem for one engine: screen, re-time the finalists, choose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blockscale.engines import Engine
from blockscale.executor.base import Device
from blockscale.problem import Candidate, Problem, TileConfig, Trial, TrialStatus
from blockscale.search import Strategy, make_strategy
from blockscale.selection import Selection, SelectionRules, finalists, select
from blockscale.space import Space
from blockscale.tuning.baselines import Baseline
from blockscale.tuning.budget import Allowance
from blockscale.tuning.choice import chosen_entry
from blockscale.tuning.events import Observer, ProblemResult, TrialFinished
from blockscale.tuning.ledger import Ledger
from blockscale.tuning.request import TuneRequest

# Configs asked for at once: enough to keep a compile pool busy, few enough that the search learns between batches.
_BATCH = 16

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


class ProblemTuner:
    """Runs jobs one after the other against a device."""

    def __init__(self, request: TuneRequest, device: Device, ledger: Ledger, observer: Observer) -> None:
        self._request = request
        self._device = device
        self._ledger = ledger
        self._observe = observer
        self._rules = SelectionRules()

    def tune(self, job: Job, allowance: Allowance) -> Decision:
        """Search the job's space within ``allowance``, then decide among the finalists."""
        space = job.engine.space(job.problem, self._device.spec)
        screened: dict[Candidate, Trial] = {}
        for trial, reused in self._screening(job, space, allowance, screened):
            allowance.spend(trial.elapsed_s)
            screened[trial.candidate] = trial
            self._observe(
                TrialFinished(job.engine.name, trial, reused, _best_us(screened), _time_of(job.baseline, screened))
            )
        finals = self._finals(job, screened, allowance)
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
            roofline_us=self._device.spec.roofline_us(job.problem),
            reason=selection.reason,
            screened=len(screened),
        )
        return Decision(result, selection, finals.get(selection.winner) if selection.winner else None)

    def _screening(
        self, job: Job, space: Space, allowance: Allowance, screened: Mapping[Candidate, Trial]
    ) -> Iterator[tuple[Trial, bool]]:
        """Trials of the baselines, then of what the strategy asks for, until it ends or the allowance is spent.

        The caller puts each trial into ``screened`` before it asks for the next.
        """
        runnable: list[Candidate] = []
        for candidate in job.baseline.candidates:
            reason = space.reason(candidate.config)
            if reason is None:
                runnable.append(candidate)
            else:
                yield Trial(job.problem, candidate, TrialStatus.ILLEGAL, message=reason), False
        yield from self._ledger.screen(job.problem, runnable)
        strategy = self._strategy(job, space, [c.config for c in runnable])
        while allowance.left_for_screening and (configs := strategy.ask(_BATCH)):
            candidates = [Candidate(job.engine.kernel_for(job.problem, c, self._device.spec), c) for c in configs]
            yield from self._ledger.screen(job.problem, [c for c in candidates if c not in screened])
            for candidate in candidates:
                strategy.tell(candidate.config, screened[candidate].time_us)

    def _strategy(self, job: Job, space: Space, priors: list[TileConfig]) -> Strategy:
        r = self._request
        return make_strategy(r.search, space, priors, r.trials, problem_seed(r.seed, job.problem))

    def _finals(self, job: Job, screened: dict[Candidate, Trial], allowance: Allowance) -> dict[Candidate, Trial]:
        """Final trials by candidate; a candidate that failed there is out, and further ones take the empty places."""
        left = dict(screened)
        finals: dict[Candidate, Trial] = {}
        for _ in range(_FINAL_ROUNDS):
            chosen = finalists(left.values(), job.baseline.candidates, self._rules)
            if not chosen:
                break
            trials = {t.candidate: t for t in self._ledger.finals(job.problem, chosen)}
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


def _best_us(screened: dict[Candidate, Trial]) -> float | None:
    return min((t.time_us for t in screened.values() if t.time_us is not None), default=None)


def _time_of(baseline: Baseline, screened: dict[Candidate, Trial]) -> float | None:
    trial = screened.get(baseline.candidate)
    return trial.time_us if trial else None
