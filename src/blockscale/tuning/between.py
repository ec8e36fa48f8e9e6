"""Times of configs at batch sizes between the tuned ones: what is expected, and what is certain.

Known is the time of a config at the batch sizes where it was tried. In between, three things are used, all checked on
the recorded tables of one H200 (December 2026, `benchmarks/key_loss.py --errors`):

* More rows take no less time: T(M) ≤ T(M′) for M ≤ M′, wherever M fills more than half of a tile. Below that it does
  not hold (a tile of 64 rows at M = 1 takes up to three times as long as at M = 32), so nothing is concluded there.
* Within one number of tiles the time grows by no more than `SAME_TILES`: only the rows that are stored become more.
* How a config compares with the default in between is what the cost model says, shifted to go through what is known;
  how the default grows is too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockscale.costmodel import CostModel
from blockscale.problem import Problem, TileConfig, ceil_div
from blockscale.space import canonical

# What the last rows of a tile may add to its time: 99 of 100 pairs of equal tile counts stay below.
SAME_TILES = 1.15

Array: TypeAlias = NDArray[np.float64]
Times: TypeAlias = Mapping[int, Mapping[TileConfig, float]]
"""µs by batch size and config in canonical spelling."""


class Ladder:
    """The times of one weight's configs at its tuned batch sizes, and what follows for the sizes between.

    ``reference`` is a config that was tried at all of them, the engine's default: the cost model tells the configs of
    one problem apart, and how one problem compares with the next is seen from the reference.
    """

    def __init__(
        self, times: Times, problem_at: Callable[[int], Problem], model: CostModel, reference: TileConfig
    ) -> None:
        self.times = {m: times[m] for m in sorted(times) if times[m]}
        self.problem_at = problem_at
        self._model = model
        self._reference = reference
        self._known: dict[TileConfig, dict[int, float]] = {}

    @property
    def is_informed(self) -> bool:
        """Whether recorded problems stand behind the shape of the curves."""
        return self._model.is_informed

    def known(self, config: TileConfig) -> dict[int, float]:
        """µs of a config by the batch sizes where it was tried, whatever its spelling there."""
        if config not in self._known:
            at = {m: table.get(canonical(self.problem_at(m), config)) for m, table in self.times.items()}
            self._known[config] = {m: time_us for m, time_us in at.items() if time_us is not None}
        return self._known[config]

    def expected_us(self, configs: Sequence[TileConfig], sizes: Sequence[int]) -> Array:
        """µs of each config at each batch size, of shape [configs, sizes]; NaN where it was tried at no size."""
        shapes = {m: self._shape((self._reference, *configs), m) for m in sorted({*self.times, *sizes})}
        reference = {m: math.log(us) - shapes[m][0] for m, us in self.known(self._reference).items()}
        levels = {m: float(shape[0]) + _between(reference, m) for m, shape in shapes.items()}
        expected = np.full((len(configs), len(sizes)), math.nan)
        for row, config in enumerate(configs, 1):
            known = self.known(config)
            behind = {m: math.log(us) - levels[m] - shapes[m][row] + shapes[m][0] for m, us in known.items()}
            for column, m in enumerate(sizes):
                if known:
                    log_us = levels[m] + shapes[m][row] - shapes[m][0] + _between(behind, m)
                    expected[row - 1, column] = _clipped(math.exp(log_us), known, m)
        return expected

    def at_most_us(self, config: TileConfig, m: int) -> float:
        """µs that ``config`` does not exceed at batch size ``m``; infinite where nothing is certain.

        No more than at any larger size, and little more than at a smaller one of as many tiles.
        """
        if not _fills(config, m):
            return math.inf
        known = self.known(config)
        larger = [time_us for size, time_us in known.items() if size >= m]
        smaller = [
            SAME_TILES * time_us
            for size, time_us in known.items()
            if size < m and _fills(config, size) and _tiles(config, size) == _tiles(config, m)
        ]
        return min(larger + smaller, default=math.inf)

    def at_least_us(self, config: TileConfig, m: int) -> float:
        """µs that ``config`` takes at least at batch size ``m``; 0 where nothing is certain.

        No less than at any smaller size that fills half a tile, and little less than at a larger one of as many.
        """
        known = self.known(config)
        smaller = [time_us for size, time_us in known.items() if size <= m and _fills(config, size)]
        larger = [
            time_us / SAME_TILES
            for size, time_us in known.items()
            if size > m and _tiles(config, size) == _tiles(config, m)
        ]
        return max(smaller + larger, default=0.0)

    def _shape(self, configs: Sequence[TileConfig], m: int) -> Array:
        problem = self.problem_at(m)
        spelled = [canonical(problem, config) for config in configs]
        values = self._model.expected_log_us(problem, spelled)
        self._model.forget(problem, ())
        return values


def _between(values: Mapping[int, float], m: int) -> float:
    """Interpolated over log M between the sizes next to ``m``, level beyond the ends; 0 without any value."""
    sizes = sorted(values)
    return float(np.interp(math.log(m), np.log(sizes), [values[size] for size in sizes])) if sizes else 0.0


def _clipped(time_us: float, known: Mapping[int, float], m: int) -> float:
    """A time between those of the next smaller and the next larger known size."""
    if max(known) < m:
        return max(time_us, known[max(known)])
    if min(known) > m:
        return min(time_us, known[min(known)])
    ends = known[max(size for size in known if size <= m)], known[min(size for size in known if size >= m)]
    return min(max(time_us, min(ends)), max(ends))


def _fills(config: TileConfig, m: int) -> bool:
    return 2 * m > config.block_m


def _tiles(config: TileConfig, m: int) -> int:
    return ceil_div(m, config.block_m)
