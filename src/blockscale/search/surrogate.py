"""A Gaussian process over configs: what the measured ones say about those not measured yet.

It models the logarithm of a time as the cost model's expectation plus an error. Errors of configs that are alike are
alike, on one problem and, less so, on problems that are alike; each problem has besides a constant error of its own.
Rasmussen and Williams, Gaussian Processes for Machine Learning, chapter 2, has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from blockscale.costmodel.analytic import Array
from blockscale.problem import TileConfig
from blockscale.space import Axis

# Steps along an axis over which errors stay alike (to 1/e). Fitted on the recorded H200 as SurrogateSettings was.
_REACH = MappingProxyType(
    {
        "block_m": 0.7,
        "block_n": 1.2,
        "block_k": 0.8,
        "group_m": 20.0,
        "num_warps": 1.0,
        "num_stages": 2.2,
        "swap_ab": 1.5,
        "split_k": 1.2,
    }
)
_OTHER_REACH = 2.0  # of axes that no recording has


@dataclass(frozen=True, slots=True)
class SurrogateSettings:
    """Standard deviations are of natural logarithms of times: 0.3 is about 30%.

    ``error`` is how far off the cost model is on one config among others of a recorded problem (``taught_error`` where
    results of alike problems correct it too); it grows by
    ``error_per_distance`` up to ``furthest`` from all that were recorded (`blockscale.costmodel.distance`), and is
    ``blind_error`` where none corrects the clock. ``offset`` is that of a whole problem, ``noise`` of a measurement.
    ``own`` is the share of the error's variance that no other problem shares, ``problem_reach`` the distance of
    problems over which the rest stays alike. A problem whose results surprise the model more or less than these say
    widens or narrows them; ``confidence`` is how many results they weigh in that, ``taught_confidence`` where results
    of alike problems have narrowed them already.
    """

    error: float = 0.13
    taught_error: float = 0.08
    error_per_distance: float = 0.1
    furthest: float = 2.0
    blind_error: float = 0.4
    offset: float = 0.5
    noise: float = 0.01
    own: float = 0.15
    confidence: float = 16.0
    taught_confidence: float = 5.0
    problem_reach: float = 4.0
    axis_reach: Mapping[str, float] = field(default_factory=lambda: _REACH)


def coordinates(configs: Sequence[TileConfig], axes: Sequence[Axis], settings: SurrogateSettings) -> Array:
    """Places of configs [configs, axes] in units of each axis's reach; values between two of an axis lie between."""
    columns = []
    for axis in axes:
        known = [math.log2(1 + value) for value in axis.values]
        values = [axis.values[0] if (v := getattr(c, axis.name)) is None else v for c in configs]
        steps = np.interp(np.log2(1 + np.array(values, dtype=np.float64)), known, np.arange(len(known)))
        columns.append(steps / settings.axis_reach.get(axis.name, _OTHER_REACH))
    return np.stack(columns, axis=1) if columns else np.zeros((len(configs), 0))


@dataclass(frozen=True)
class Observations:
    """Measured configs of several problems: coordinates [n, axes], errors of the expectation [n] (log measured minus
    log expected), and which problem each belongs to [n]; problem 0 is the one searched, and its configs stand last."""

    places: Array
    errors: Array
    problems: NDArray[np.int64]


class Prediction:
    """Mean and variance of the error of every config asked about; ``suppose_measured`` narrows the variance.

    ``surprise`` is how much larger than assumed the variance of what was observed is.
    """

    def __init__(
        self, places: Array, mean: Array, variance: Array, explained: Array, surrogate: Surrogate, surprise: float = 1.0
    ) -> None:
        self.mean = mean
        self._variance = variance
        self.surprise = surprise
        self._places = places
        self._explained = explained  # [observations, configs]: rows of L⁻¹·K
        self._surrogate = surrogate

    @property
    def variance(self) -> Array:
        """Variance of each error, widened by the surprise."""
        return self._variance * self.surprise

    def suppose_measured(self, index: int) -> None:
        """Narrow the variance as a measurement of one config would; the mean stays, as if it came out as expected."""
        column = self._surrogate.own_covariance(self._places, self._places[index : index + 1])[:, 0]
        column = column - self._explained.T @ self._explained[:, index]
        row = column / math.sqrt(max(float(column[index]), 0.0) + self._surrogate.settings.noise**2)
        self._explained = np.vstack([self._explained, row])
        self._variance = np.maximum(self._variance - row**2, 0.0)


class Surrogate:
    """The process, given how alike the problems are (``alike`` [problems, problems], ones on the diagonal) and how far
    off the cost model is on a config (``error``, a standard deviation, which weighs ``confidence`` results)."""

    def __init__(self, alike: Array, error: float, confidence: float, settings: SurrogateSettings) -> None:
        self._alike = alike
        self._error = error
        self._confidence = confidence
        self.settings = settings

    def own_covariance(self, a: Array, b: Array) -> Array:
        """Covariance [a, b] of the errors at two sets of places on the problem searched."""
        return self._error**2 * _nearness(a, b) + self.settings.offset**2

    def predict(self, observed: Observations, places: Array) -> Prediction:
        """What ``observed`` says of the errors at ``places`` on the problem searched."""
        s = self.settings
        variance = np.full(len(places), self._error**2 + s.offset**2)
        n = len(observed.errors)
        if n == 0:
            return Prediction(places, np.zeros(len(places)), variance, np.zeros((0, len(places))), self)
        tasks = observed.problems
        between = self._covariance(observed)
        towards = self._error**2 * _nearness(observed.places, places) * self._alike[tasks, 0][:, None]
        towards += s.offset**2 * (tasks == 0)[:, None]
        lower = np.linalg.cholesky(between)
        solved = np.linalg.solve(lower, np.column_stack([towards, observed.errors]))
        explained, whitened = solved[:, :-1], solved[:, -1]
        left = np.maximum(variance - (explained**2).sum(axis=0), 0.0)
        surprise = self._surprise(whitened[tasks == 0])
        return Prediction(places, explained.T @ whitened, left, explained, self, surprise)

    def left_out(self, observed: Observations) -> tuple[Array, Array]:
        """What all other results say of each one of the problem searched, in the order observed.

        Gives how far each error is above the mean that the others predict, and the standard deviation of that
        prediction, the noise of the one measurement included. Rasmussen and Williams, equation 5.12.
        """
        own = observed.problems == 0
        lower = np.linalg.cholesky(self._covariance(observed))
        inverse = np.linalg.solve(lower, np.eye(len(lower)))
        precision = (inverse**2).sum(axis=0)
        whitened = inverse @ observed.errors
        above = inverse.T @ whitened / precision
        return above[own], np.sqrt(self._surprise(whitened[own]) / precision[own])

    def _covariance(self, observed: Observations) -> Array:
        """Covariance [n, n] of what was observed."""
        s, tasks = self.settings, observed.problems
        alike = self._alike[np.ix_(tasks, tasks)]
        covariance = self._error**2 * _nearness(observed.places, observed.places) * alike
        covariance += s.offset**2 * (tasks[:, None] == tasks[None, :]) + s.noise**2 * np.eye(len(tasks))
        return covariance

    def _surprise(self, whitened: Array) -> float:
        """From how far each result was off what all before it said, in standard deviations."""
        return (self._confidence + float(whitened @ whitened)) / (self._confidence + len(whitened))


def expected_improvement(mean: Array, variance: Array, best: float) -> Array:
    """How far below ``best`` each value is expected to fall, counting nothing where it does not.

    Jones, Schonlau and Welch, Efficient Global Optimization of Expensive Black-Box Functions, 1998, equation 15. Where
    ``best`` is more than four standard deviations away, less than 1e-5 of one is expected: 0 is given.
    """
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    z = (best - mean) / deviation
    gains = np.zeros(len(z))
    near = z > -4.0
    z, deviation = z[near], deviation[near]
    below = 0.5 * (1 + np.array([math.erf(value) for value in z / math.sqrt(2)]))
    gains[near] = deviation * (z * below + np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))
    return gains


def _nearness(a: Array, b: Array) -> Array:
    """exp(−L1 distance) of every place in ``a`` to every one in ``b``; axis by axis, which keeps arrays small."""
    apart = np.zeros((len(a), len(b)))
    for of_a, of_b in zip(a.T, b.T, strict=True):
        apart += np.abs(of_a[:, None] - of_b[None, :])
    nearness: Array = np.exp(-apart)
    return nearness
