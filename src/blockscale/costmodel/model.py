"""Expected times: the analytic clock, corrected by what a forest learnt of its errors on recorded problems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from blockscale.costmodel.analytic import Array, ConfigArrays, analytic_us, must_spill
from blockscale.costmodel.features import features
from blockscale.costmodel.portfolio import Portfolio
from blockscale.hardware import DeviceSpec
from blockscale.problem import Kernel, Problem, TileConfig
from blockscale.space import canonical

# Weights of one doubling of M, N and K in the distance of two problems: M decides the kind of tile, N and K how many.
DISTANCE_WEIGHTS = (1.0, 0.5, 0.5)
# Of how many of the most similar recorded problems good configs are worth having in view.
SOURCES = 12


def distance(a: Problem, b: Problem) -> float:
    """How unlike two problems' sizes are: weighted sum of the doublings between them."""
    sizes = zip(DISTANCE_WEIGHTS, ("M", "N", "K"), strict=True)
    return sum(w * abs(math.log2(getattr(a.shape, f) / getattr(b.shape, f))) for w, f in sizes)


class CostModel:
    """What configs of any problem may take on one device, for one engine's plain ``kernel``, before measuring."""

    def __init__(self, spec: DeviceSpec, portfolio: Portfolio | None = None, kernel: Kernel = Kernel.FP8) -> None:
        self._spec = spec
        self._sources = _of_akin(portfolio.sources_by_kernel, kernel) if portfolio else None
        self._forest = _of_akin(portfolio.forests, kernel) if portfolio else None
        self._expected: dict[Problem, dict[TileConfig, float]] = {}

    @property
    def is_informed(self) -> bool:
        """Whether recorded problems correct the clock."""
        return self._forest is not None

    def expected_log_us(self, problem: Problem, configs: Sequence[TileConfig]) -> Array:
        """Natural logarithm of the expected µs of each config; only differences within one problem mean anything."""
        known = self._expected.setdefault(problem, {})
        new = [config for config in configs if config not in known]
        if new:
            known.update(zip(new, map(float, self._expect(problem, new)), strict=True))
        return np.array([known[config] for config in configs])

    def forget(self, problem: Problem, but: Iterable[TileConfig]) -> None:
        """Let go of what was worked out for a problem, ``but`` of configs that other searches will ask for.

        A search may have looked at its whole space, and a run has hundreds of problems.
        """
        known = self._expected.get(problem, {})
        self._expected[problem] = {config: known[config] for config in but if config in known}

    def _expect(self, problem: Problem, configs: Sequence[TileConfig]) -> Array:
        arrays = ConfigArrays.of(configs, problem.quant, self._spec)
        clock_us = analytic_us(problem, arrays, self._spec)
        expected: Array = np.log(clock_us)
        if self._forest is not None:
            expected += self._forest.predict(features(problem, arrays, self._spec, clock_us))
        return expected

    def beyond_recorded(self, problem: Problem) -> float:
        """How far from the most similar recorded problem this one is (`distance`); infinite where none is known."""
        return min((distance(problem, source.problem) for source in self._sources or ()), default=math.inf)

    def known_good(self, problem: Problem) -> list[TileConfig]:
        """Configs that did well on the most similar recorded problems, spelled for this problem; not all are legal."""
        akin = sorted(self._sources or (), key=lambda source: (distance(problem, source.problem), source.problem))
        found = dict.fromkeys(config for source in akin[:SOURCES] for config in source.times)
        return list(dict.fromkeys(canonical(problem, config) for config in found))

    def hopeless(self, config: TileConfig) -> bool:
        """Whether a config is known to be slow on any problem, and slow to compile."""
        return must_spill(config, self._spec)


Learnt = TypeVar("Learnt")


def _of_akin(by_kernel: Mapping[Kernel, Learnt], kernel: Kernel) -> Learnt | None:
    """What was learnt of a kernel, else of the one most akin to it."""
    akin = {
        Kernel.FP8: (Kernel.FP8, Kernel.FP8_MASKED),
        Kernel.FP8_MASKED: (Kernel.FP8_MASKED, Kernel.FP8),
        Kernel.FP8_UNROLLED_X4: (Kernel.FP8_UNROLLED_X4, Kernel.FP8),
        Kernel.INT8: (Kernel.INT8, Kernel.FP8_MASKED, Kernel.FP8),
    }
    return next((by_kernel[known] for known in akin.get(kernel, (kernel,)) if known in by_kernel), None)
