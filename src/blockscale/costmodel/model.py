"""Expected times: the analytic clock, corrected by how far off it was on similar problems that were recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from blockscale.costmodel.analytic import Array, ConfigArrays, analytic_us, must_spill
from blockscale.costmodel.portfolio import KEPT_WITHIN, Portfolio, Source
from blockscale.hardware import DeviceSpec
from blockscale.problem import Kernel, Problem, TileConfig
from blockscale.space import canonical

# Weights of one doubling of M, N and K in the distance of two problems: M decides the kind of tile, N and K how many.
DISTANCE_WEIGHTS = (1.0, 0.5, 0.5)
# Distance at which a source counts 1/e of one of the same size, and how many of the nearest are asked. Both came out
# flat between 1 and 4, and above 8, on the recorded H200 (benchmarks/search_regret.py).
SOURCE_REACH = 2.0
SOURCES = 12
# Configs up to this many times slower than a source's best are worth having in view on a similar problem.
GOOD_WITHIN = 1.6


def distance(a: Problem, b: Problem) -> float:
    """How unlike two problems' sizes are: weighted sum of the doublings between them."""
    sizes = zip(DISTANCE_WEIGHTS, ("M", "N", "K"), strict=True)
    return sum(w * abs(math.log2(getattr(a.shape, f) / getattr(b.shape, f))) for w, f in sizes)


@dataclass(frozen=True)
class _Near:
    """A source as it serves one problem: its weight, and how far the clock was off on its median config (log)."""

    source: Source
    weight: float
    offset: float


class CostModel:
    """What configs of any problem may take on one device, for one engine's plain ``kernel``, before measuring."""

    def __init__(self, spec: DeviceSpec, portfolio: Portfolio | None = None, kernel: Kernel = Kernel.FP8) -> None:
        self._spec = spec
        self._sources = _sources_of(portfolio, kernel) if portfolio else ()
        self._sources_spec = portfolio.spec if portfolio else spec
        self._near = lru_cache(maxsize=None)(self._nearest)
        self._offsets: dict[Problem, float] = {}
        self._expected: dict[Problem, dict[TileConfig, float]] = {}

    @property
    def is_informed(self) -> bool:
        """Whether recorded problems correct the clock."""
        return bool(self._sources)

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
        expected = np.log(analytic_us(problem, arrays, self._spec))
        near = self._near(problem)
        if near:
            recorded = ConfigArrays.of(configs, problem.quant, self._sources_spec)
            extended = np.array([config.has_swap_split for config in configs])
            weights = np.array([n.weight * (n.source.has_swap_split | ~extended) for n in near])
            corrections = np.array([self._correction(n, configs, recorded) for n in near])
            total = weights.sum(axis=0)
            expected += (weights * corrections).sum(axis=0) / np.where(total > 0, total, 1.0)
        return expected

    def known_good(self, problem: Problem) -> list[TileConfig]:
        """Configs that did well on the most similar recorded problems, spelled for this problem; not all are legal."""
        found: dict[TileConfig, None] = {}
        for near in self._near(problem):
            limit_us = GOOD_WITHIN * near.source.best_us
            found.update(dict.fromkeys(config for config, us in near.source.times.items() if us <= limit_us))
        return list(dict.fromkeys(canonical(problem, config) for config in found))

    def hopeless(self, config: TileConfig) -> bool:
        """Whether a config is known to be slow on any problem, and slow to compile."""
        return must_spill(config, self._spec)

    def _nearest(self, problem: Problem) -> tuple[_Near, ...]:
        ranked = sorted(self._sources, key=lambda source: (distance(problem, source.problem), source.problem))
        return tuple(
            _Near(source, math.exp(-distance(problem, source.problem) / SOURCE_REACH), self._offset_of(source))
            for source in ranked[:SOURCES]
        )

    def _offset_of(self, source: Source) -> float:
        if source.problem not in self._offsets:
            self._offsets[source.problem] = self._offset(source)
        return self._offsets[source.problem]

    def _offset(self, source: Source) -> float:
        configs = list(source.times)
        arrays = ConfigArrays.of(configs, source.problem.quant, self._sources_spec)
        clock = np.log(analytic_us(source.problem, arrays, self._sources_spec))
        return float(np.median(np.log(list(source.times.values())) - clock))

    def _correction(self, near: _Near, configs: Sequence[TileConfig], arrays: ConfigArrays) -> Array:
        """How much slower than the clock said each config ran on a source (log), its median config taken as 0."""
        source = near.source
        clock = np.log(analytic_us(source.problem, arrays, self._sources_spec))
        missing_us = KEPT_WITHIN * source.best_us
        times = np.array([source.times.get(canonical(source.problem, config), 0.0) for config in configs])
        corrections = np.log(np.where(times > 0, times, missing_us)) - clock - near.offset
        return np.where(times > 0, corrections, np.maximum(corrections, 0.0))


def _sources_of(portfolio: Portfolio, kernel: Kernel) -> tuple[Source, ...]:
    """The sources of a kernel, else those of the one most akin to it."""
    akin = {
        Kernel.FP8: (Kernel.FP8, Kernel.FP8_MASKED),
        Kernel.FP8_MASKED: (Kernel.FP8_MASKED, Kernel.FP8),
        Kernel.FP8_UNROLLED_X4: (Kernel.FP8_UNROLLED_X4, Kernel.FP8),
        Kernel.INT8: (Kernel.INT8, Kernel.FP8_MASKED, Kernel.FP8),
    }
    for candidate in akin.get(kernel, (kernel,)):
        found = tuple(source for source in portfolio.sources if source.kernel is candidate)
        if found:
            return found
    return ()
