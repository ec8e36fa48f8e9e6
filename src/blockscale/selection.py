"""From trials to the entry that is written: finalists, the winner under noise, and the guard against doing harm.

Pure functions over trials; the same trials give the same choice, whatever order they were measured in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from blockscale.problem import Candidate, Trial


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """What counts as a difference.

    ``finalists`` is how many screened candidates are re-timed at most, besides the baselines: those within
    ``contention`` (a share of the time) of the fastest. Screened again and again over a run, the same config spreads by
    0.4 to 2.2%, mostly about 1.3% (benchmarks/measuring_cost.py), so the difference of two by 1.8%, and 4% is twice
    that. One screen in a hundred is off by more, now and then by a fifth, mostly where the GPU just then ran into its
    power limit: ``doubted`` is how many more are re-timed whose like say that they belong within ``contention``. Two
    medians that differ by less than ``sigmas`` standard errors are a tie, but a tie never hides more than
    ``tie_limit`` (a share of the time), so that a noisy device cannot trade speed for simplicity.
    """

    finalists: int = 6
    contention: float = 0.04
    doubted: int = 2
    sigmas: float = 2.0
    tie_limit: float = 0.01


class Outcome(StrEnum):
    """How the entry of one problem came about."""

    TUNED = "tuned"  # the winner beats what would run otherwise
    KEPT = "kept"  # nothing beat what would run otherwise, which is written under the key
    NO_VALID_CANDIDATE = "no_valid_candidate"


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice for one problem. ``winner`` is None only without a valid candidate; times are medians in µs."""

    outcome: Outcome
    winner: Candidate | None
    time_us: float | None
    baseline_us: float | None
    reason: str


def standard_error_us(samples: Sequence[float]) -> float:
    """Standard error of the median of ``samples``, in µs; 0 for a single sample.

    The spread is estimated robustly by the median absolute deviation (× 1.4826 for a normal distribution), with two
    samples by their range over 1.128 (the expected range of two normal samples in units of sigma); the median of a
    normal sample has √(π/2) ≈ 1.253 times the standard error of its mean.
    """
    n = len(samples)
    if n < 2:
        return 0.0
    if n == 2:
        sigma = abs(samples[0] - samples[1]) / 1.128
    else:
        middle = statistics.median(samples)
        sigma = 1.4826 * statistics.median(abs(s - middle) for s in samples)
    return 1.253 * sigma / math.sqrt(n)


def ties(a: Trial, b: Trial, rules: SelectionRules) -> bool:
    """Whether two timed trials cannot be told apart under ``rules``."""
    time_a, time_b = _time(a), _time(b)
    noise = rules.sigmas * math.hypot(standard_error_us(a.samples_us), standard_error_us(b.samples_us))
    return abs(time_a - time_b) <= min(noise, rules.tie_limit * min(time_a, time_b))


def levelled(finals: Sequence[Trial]) -> list[Trial]:
    """Trials that were timed in interleaved rounds, with what each round did to all of them taken out.

    A GPU that steps to a lower clock midway slows every candidate from then on; where the step falls near the middle,
    plain medians land on different sides of it. Each sample is divided by its round's drift: the median over candidates
    of sample to candidate's median, scaled so that the middle round stays as measured. Trials with fewer than three
    samples, or with different numbers of them, are no rounds and stay as they are.
    """
    timed = [t for t in finals if t.time_us is not None]
    rounds = {len(t.samples_us) for t in timed}
    if len(timed) < 2 or len(rounds) != 1 or min(rounds) < 3:
        return list(finals)
    shares = [[sample / _time(t) for sample in t.samples_us] for t in timed]
    drift = [statistics.median(column) for column in zip(*shares, strict=True)]
    middle = statistics.median(drift)
    return [
        replace(t, samples_us=tuple(s * middle / d for s, d in zip(t.samples_us, drift, strict=True)))
        if t.time_us is not None
        else t
        for t in finals
    ]


def finalists(
    screened: Iterable[Trial],
    baselines: Sequence[Candidate],
    rules: SelectionRules,
    expected_us: Mapping[Candidate, float] | None = None,
) -> list[Candidate]:
    """Candidates to re-time: the baselines that ran, then the fastest others, fastest first, then doubted ones.

    ``expected_us`` has those whose screened time is doubted, with the µs that their like make likely.
    """
    timed = {t.candidate: _time(t) for t in screened if t.time_us is not None}
    fixed = [c for c in dict.fromkeys(baselines) if c in timed]
    limit_us = (1 + rules.contention) * min(timed.values(), default=0.0)

    def contenders(times_us: Mapping[Candidate, float], most: int) -> list[Candidate]:
        ranked = sorted(times_us, key=lambda c: (times_us[c], c.config.complexity, c))
        return [c for c in ranked if c not in fixed and times_us[c] <= limit_us][:most]

    fastest = contenders(timed, rules.finalists)
    slow = {c: us for c, us in (expected_us or {}).items() if c in timed and timed[c] > limit_us}
    return fixed + fastest + contenders(slow, rules.doubted)


def select(
    finals: Sequence[Trial],
    baseline: Candidate,
    rules: SelectionRules = SelectionRules(),
    *,
    overwrite: bool = False,
) -> Selection:
    """Choose the entry of one problem from its re-timed finalists, which are levelled first.

    The winner has the lowest median; among those that tie with it the simplest config wins. It must beat ``baseline``
    (what would run otherwise) by more than noise, else the baseline takes its place, unless ``overwrite`` is set.
    """
    valid: Mapping[Candidate, Trial] = {t.candidate: t for t in levelled(finals) if t.time_us is not None}
    base = valid.get(baseline)
    base_us = base.time_us if base else None
    if not valid:
        return Selection(Outcome.NO_VALID_CANDIDATE, None, None, None, "no candidate ran and gave right numbers")
    fastest = min(valid.values(), key=lambda t: (_time(t), t.candidate.config.complexity, t.candidate))
    best = min(
        (t for t in valid.values() if ties(t, fastest, rules)),
        key=lambda t: (t.candidate.config.complexity, _time(t), t.candidate),
    )
    if base is None:
        reason = "what would run otherwise does not run or gives wrong numbers"
        return Selection(Outcome.TUNED, best.candidate, best.time_us, None, reason)
    if overwrite and best is not base:
        return Selection(Outcome.TUNED, best.candidate, best.time_us, base_us, "overwrite: not compared")
    if _time(best) >= _time(base) or ties(best, base, rules):
        # A faster candidate may have been traded for a simpler one within noise; it still counts against the baseline.
        if _time(fastest) >= _time(base) or ties(fastest, base, rules):
            return Selection(Outcome.KEPT, baseline, base_us, base_us, "nothing beats what would run otherwise")
        best = fastest
    return Selection(Outcome.TUNED, best.candidate, best.time_us, base_us, "beats what would run otherwise")


def _time(trial: Trial) -> float:
    if trial.time_us is None:
        raise ValueError(f"{trial.candidate} has no time: {trial.status}")
    return trial.time_us
