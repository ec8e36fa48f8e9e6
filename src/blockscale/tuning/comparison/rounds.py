"""How many times faster one candidate is than another, and whether the noise leaves a difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from blockscale.problem import Trial, TrialStatus
from blockscale.selection import standard_error_us

_SIGMAS = 2.0
_FEWEST_ROUNDS = 3

# The least difference that counts, as a share of the time. In interleaved rounds on an H200 one config spreads by 0.2
# to 0.5% (benchmarks/measuring_cost.py); screened again later it differs by 0.4 to 2%, a first look by 1 to 3%
# (docs/recorded-device.md), and what a recorded device answers are such screens.
INTERLEAVED_SHARE = 0.01
SCREENED_SHARE = 0.02
FIRST_LOOK_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of one candidate over that of another; ``tolerance`` is the share of a time that noise may explain."""

    value: float
    tolerance: float

    @property
    def above(self) -> bool:
        """Whether the first one is slower, beyond noise."""
        return self.value > 1 + self.tolerance

    @property
    def below(self) -> bool:
        """Whether the first one is faster, beyond noise."""
        return self.value < 1 / (1 + self.tolerance)


def median_ratio(samples_us: Sequence[float], others_us: Sequence[float]) -> float:
    """The median over rounds of a sample's time over the other one's of the same round.

    Both samples of a round were taken milliseconds apart, so a clock that steps between rounds is in neither ratio.
    """
    return statistics.median(_by_round(samples_us, others_us))


def ratio(trial: Trial, other: Trial, *, interleaved: bool) -> Ratio | None:
    """The time of ``trial`` over that of ``other``; None where one of them has none.

    ``interleaved``: their samples were taken in turns, so that they pair by round. Else, and where rounds are fewer
    than three, medians are compared. Noise is two standard errors, and at least the share that the way of measuring
    leaves open.
    """
    time_us, other_us = trial.time_us, other.time_us
    if time_us is None or other_us is None:
        return None
    if interleaved and len(trial.samples_us) == len(other.samples_us) >= _FEWEST_ROUNDS:
        value = median_ratio(trial.samples_us, other.samples_us)
        # The estimate knows no units: of ratios it is that of their median.
        error = standard_error_us(_by_round(trial.samples_us, other.samples_us)) / value
    else:
        value = time_us / other_us
        errors = [standard_error_us(t.samples_us) / us for t, us in ((trial, time_us), (other, other_us))]
        error = math.hypot(*errors)
    return Ratio(value, max(_SIGMAS * error, _least_share(trial, other, interleaved=interleaved)))


def _by_round(samples_us: Sequence[float], others_us: Sequence[float]) -> list[float]:
    return [sample / other for sample, other in zip(samples_us, others_us, strict=True)]


def _least_share(trial: Trial, other: Trial, *, interleaved: bool) -> float:
    if TrialStatus.COARSE in (trial.status, other.status):
        return FIRST_LOOK_SHARE
    return INTERLEAVED_SHARE if interleaved else SCREENED_SHARE
