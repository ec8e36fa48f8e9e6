"""The default search: measure where a cost model, corrected by every result so far, expects the most improvement."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blockscale.costmodel import CostModel, distance
from blockscale.costmodel.analytic import Array
from blockscale.problem import Problem, TileConfig
from blockscale.search.base import Knowledge, legal_starts
from blockscale.search.surrogate import (
    Observations,
    Surrogate,
    SurrogateSettings,
    coordinates,
    expected_improvement,
)
from blockscale.space import Space


@dataclass(frozen=True, slots=True)
class ModelSearchSettings:
    """How wide the search looks, in configs, and when it has seen enough.

    ``worth_a_look`` is the improvement (share of the best time) that must be expected of a config for another round;
    the rest of the round may promise ``round_share`` of it. Since an expected improvement is an average over being
    wrong and being right, 0.4% stands for a small chance of gaining several per cent, and no good one of gaining 1%.
    """

    first: int = 6  # of the first round
    first_blind: int = 10  # where no recording corrects the cost model
    first_taught: int = 3  # where this run's other problems have shown something
    round: int = 4
    worth_a_look: float = 0.004
    round_share: float = 0.9
    slow: float = 0.7  # log: whatever is slower than this over the best says no more than that
    leaders: int = 4  # tiles whose best config's neighbours are in view
    expected: int = 200  # configs in view because the cost model expects much, where no recording helps
    tiles: int = 32  # configs in view because the cost model expects much of their tile, where recordings help
    spread: int = 16  # configs in view at random, against a wrong model
    known_problems: int = 6
    known_configs: int = 24  # of each known problem, the fastest
    doubt: float = 0.6  # standard deviations above what all others say: then a time is doubted
    teaches_within: float = 4.0  # distance of a known problem that lets the search be brief: a factor of 16 in M
    surrogate: SurrogateSettings = field(default_factory=SurrogateSettings)


class ModelSearch:
    """Rounds of a few configs with the highest expected improvement, among those in view.

    In view are what did well on recorded problems and on this run's other problems, neighbours of the leaders, a thin
    random spread, and what the cost model expects most of: its best tiles, for a device that no recording is akin to
    its best configs. A round has a fixed size, whatever ``ask`` is called with, so the configs asked do not depend on
    how many the caller can try at once. A failed config is passed over and says nothing about those beside it.
    """

    def __init__(
        self,
        space: Space,
        priors: Sequence[TileConfig],
        trials: int | None,
        seed: int,
        knowledge: Sequence[Knowledge],
        cost_model: CostModel,
        settings: ModelSearchSettings | None = None,
    ) -> None:
        self._space = space
        self._settings = settings or ModelSearchSettings()
        self._left = trials
        self._cost_model = cost_model
        self._asked: set[TileConfig] = set()
        self._times: dict[TileConfig, float] = {}
        self._queue: list[TileConfig] = []
        self._waiting: set[TileConfig] = set()
        self._known = _trimmed(knowledge, self._settings)
        surrogate = self._settings.surrogate
        near = (distance(space.problem, known.problem) <= self._settings.teaches_within for known in self._known)
        self._taught = any(near)
        error = surrogate.blind_error
        if cost_model.is_informed:
            beyond = min(cost_model.beyond_recorded(space.problem), surrogate.furthest)
            error = surrogate.taught_error if self._taught else surrogate.error
            error += surrogate.error_per_distance * beyond
        confidence = surrogate.taught_confidence if self._taught else surrogate.confidence
        self._surrogate = Surrogate(self._likeness(), error, confidence, surrogate)
        self._taught_by = [self._observed(i, known.problem, known.times) for i, known in enumerate(self._known, 1)]
        self._looked_around: set[TileConfig] = set()
        self._view = _View(self._describe)
        self._view.add(self._first_view(random.Random(seed)))
        self._enqueue(legal_starts(space, priors))
        self._started = False

    def ask(self, n: int) -> list[TileConfig]:
        """The rest of the round, at most ``n``; a new round once every config of the last was told."""
        all_told = not self._queue and not self._waiting and self._left != 0
        if all_told or not self._started:  # the first round goes out together with the priors
            self._enqueue(self._next_round())
        self._started = True
        if self._left is not None:
            n = min(n, self._left)
            self._left -= min(n, len(self._queue))
        batch, self._queue = self._queue[:n], self._queue[n:]
        self._waiting.update(batch)
        if not batch and not self._waiting:  # the end
            self._cost_model.forget(self._space.problem, but=self._times)
        return batch

    def tell(self, config: TileConfig, time_us: float | None) -> None:
        """Note an outcome; None counts as a try that showed nothing."""
        self._waiting.discard(config)
        if time_us is not None:
            self._times[config] = time_us

    def doubted(self) -> Mapping[TileConfig, float]:
        """Configs that came out slower than all other results make likely, with the µs that those expect.

        Rounded, so that the last bits of another machine's arithmetic do not decide what is re-timed.
        """
        if not self._times:
            return {}
        above, deviation = self._surrogate.left_out(self._observations())
        doubted = np.round(above - self._settings.doubt * deviation, 9) > 0
        expected_us = np.round(np.exp(self._logs(self._times) - above), 9)
        return {c: float(us) for c, us, far in zip(self._times, expected_us, doubted, strict=True) if far}

    def _enqueue(self, configs: Iterable[TileConfig]) -> None:
        for config in configs:
            if config not in self._asked:
                self._asked.add(config)
                self._queue.append(config)

    def _next_round(self) -> list[TileConfig]:
        s = self._settings
        self._look_around()
        pool = self._view.open(self._asked)
        if not pool.configs:
            return self._anything()
        prediction = self._surrogate.predict(self._observations(), pool.places)
        mean = pool.expected + prediction.mean
        best = math.log(min(self._times.values())) if self._times else float(mean.min())
        size = s.round if self._times else self._first_size()
        chosen: list[int] = []
        open_ = np.ones(len(pool.configs), dtype=bool)
        while len(chosen) < size and open_.any():
            gains = np.where(open_, expected_improvement(mean, prediction.variance, best), -1.0)
            # Rounded, so that the last bits of another machine's arithmetic do not decide.
            index = int(np.argmax(np.round(gains, 9)))
            if self._times and gains[index] < s.worth_a_look * (s.round_share if chosen else 1.0):
                break
            chosen.append(index)
            prediction.suppose_measured(index)
            # The rest of a tile's configs can wait for what this one shows.
            open_ &= pool.tiles != pool.tiles[index]
        return [pool.configs[index] for index in chosen] or self._last_steps()

    def _last_steps(self) -> list[TileConfig]:
        """The best config one step away in num_stages and in GROUP_SIZE_M, as far as these were not tried.

        Pipeline depth and the order of blocks act through latencies and caches that nothing else tells of, so there
        nothing is left to the model.
        """
        if not self._times:
            return []
        best = _fastest_first(self._times)[0]
        axes = [axis for axis in self._space.axes if axis.name in ("num_stages", "group_m")]
        steps = [best.with_(**{a.name: value}) for a in axes for value in a.steps(getattr(best, a.name))]
        legal = legal_starts(self._space, steps)
        return [config for config in legal if config not in self._asked and not self._cost_model.hopeless(config)]

    def _first_size(self) -> int:
        s = self._settings
        if self._taught:
            return s.first_taught
        return s.first if self._cost_model.is_informed else s.first_blind

    def _look_around(self) -> None:
        """Bring neighbours of the leaders, the best config of each of the best tiles, into view."""
        tiles: dict[tuple[object, ...], TileConfig] = {}
        for config in _fastest_first(self._times):
            tiles.setdefault(_tile(config), config)
        for leader in list(tiles.values())[: self._settings.leaders]:
            if leader not in self._looked_around:
                self._looked_around.add(leader)
                self._view.add(c for c in self._around(leader) if not self._cost_model.hopeless(c))

    def _around(self, leader: TileConfig) -> list[TileConfig]:
        """Its neighbours, and itself with every GROUP_SIZE_M: one value says little of the next."""
        groups = [axis.values for axis in self._space.axes if axis.name == "group_m"]
        regrouped = [leader.with_(group_m=value) for values in groups for value in values]
        return [*self._space.neighbours(leader), *legal_starts(self._space, regrouped)]

    def _anything(self) -> list[TileConfig]:
        """Where nothing in view is left, before anything ran: the space in its own order."""
        if self._times:
            return []
        fresh = (config for config in self._space if config not in self._asked)
        return [config for config, _ in zip(fresh, range(self._settings.first), strict=False)]

    def _first_view(self, rng: random.Random) -> list[TileConfig]:
        s, problem = self._settings, self._space.problem
        good = [config for config in self._cost_model.known_good(problem) if self._can_hold(config)]
        good += [self._space.canonical(config) for known in self._known for config in known.times]
        view = legal_starts(self._space, good)
        view += self._expected_tiles() if self._cost_model.is_informed else self._most_expected()
        view += self._space.sample(rng, s.spread)
        return [config for config in view if not self._cost_model.hopeless(config)]

    def _can_hold(self, config: TileConfig) -> bool:
        """Whether the space has the axes along which a config was changed: other engines' kernels take more fields."""
        names = {axis.name for axis in self._space.axes}
        return ("swap_ab" in names or not config.swap_ab) and ("split_k" in names or config.split_k == 1)

    def _expected_tiles(self) -> list[TileConfig]:
        """The tiles and splits that the cost model expects most of, whatever recordings hold; one config of each."""
        pinned = {a.name: a.values[len(a.values) // 2] for a in self._space.axes if a.name in ("group_m", "num_stages")}
        # A K step as deep as one scale allows.
        group = self._space.problem.quant.block_k
        depths = [value for a in self._space.axes if a.name == "block_k" for value in a.values if group % value == 0]
        pinned |= {"block_k": max(depths)} if depths else {}
        return list(itertools.islice(self._most_promising_first(self._space.pinned(**pinned)), self._settings.tiles))

    def _most_expected(self) -> list[TileConfig]:
        """What the cost model expects most of, a tile in one GROUP_SIZE_M: it is blind to that, neighbours lead on."""
        ranked = list(itertools.islice(self._most_promising_first(self._space), 8 * self._settings.expected))
        tiles = {config.with_(group_m=1): config for config in reversed(ranked)}
        return list(reversed(tiles.values()))[: self._settings.expected]

    def _most_promising_first(self, space: Space) -> Iterator[TileConfig]:
        """The configs of a space by what the cost model expects, the hopeless ones left out.

        Expectations come many at a time, legality one by one: it is asked of those only that are taken.
        """
        configs = [config for config in space.spellings() if not self._cost_model.hopeless(config)]
        expected = self._cost_model.expected_log_us(space.problem, configs)
        ranked = (configs[i] for i in np.argsort(expected, kind="stable"))
        return (config for config in ranked if space.reason(config) is None)

    def _observations(self) -> Observations:
        """What is known of other problems, and this one's results."""
        own = self._observed(0, self._space.problem, self._times)
        observed = [each for each in (*self._taught_by, own) if len(each.errors)] or [own]
        return Observations(
            np.concatenate([each.places for each in observed]),
            np.concatenate([each.errors for each in observed]),
            np.concatenate([each.problems for each in observed]),
        )

    def _observed(self, index: int, problem: Problem, times: Mapping[TileConfig, float]) -> Observations:
        """The results of one problem."""
        configs = list(times)
        errors = self._logs(times) - self._cost_model.expected_log_us(problem, configs)
        return Observations(self._places(configs), errors, np.full(len(configs), index))

    def _logs(self, times: Mapping[TileConfig, float]) -> Array:
        """Logarithms of times; far slower ones than the best count as just slow."""
        logs: Array = np.log(np.fromiter(times.values(), dtype=np.float64))
        slowest = logs.min(initial=math.inf) + self._settings.slow
        return logs.clip(max=slowest)

    def _describe(self, configs: Sequence[TileConfig]) -> tuple[Array, Array]:
        """Places of configs, and what the cost model expects of them."""
        return self._places(configs), self._cost_model.expected_log_us(self._space.problem, configs)

    def _places(self, configs: Sequence[TileConfig]) -> Array:
        return coordinates(configs, self._space.axes, self._settings.surrogate)

    def _likeness(self) -> Array:
        """How alike the errors on two problems are: 1 on the diagonal, less with distance."""
        s = self._settings.surrogate
        problems = [self._space.problem, *(known.problem for known in self._known)]
        apart = np.array([[distance(a, b) for b in problems] for a in problems])
        shared = (1 - s.own) * np.exp(-apart / s.problem_reach)
        return np.where(np.eye(len(problems), dtype=bool), 1.0, shared)


class _View:
    """The configs in view with what is worked out of each once: place, expectation, and a number for its tile."""

    def __init__(self, describe: Callable[[Sequence[TileConfig]], tuple[Array, Array]]) -> None:
        self._describe = describe
        self._index: dict[TileConfig, int] = {}
        self._tiles: dict[tuple[object, ...], int] = {}
        self._all: _Pool | None = None

    def add(self, configs: Iterable[TileConfig]) -> None:
        """Bring configs into view."""
        new = [config for config in dict.fromkeys(configs) if config not in self._index]
        if not new:
            return
        for config in new:
            self._index[config] = len(self._index)
        tiles = np.array([self._tiles.setdefault(_tile(config), len(self._tiles)) for config in new])
        added = _Pool(new, *self._describe(new), tiles)
        self._all = added if self._all is None else self._all.and_also(added)

    def open(self, asked: Collection[TileConfig]) -> _Pool:
        """What is in view and not among those asked."""
        if self._all is None:
            return _Pool([], *self._describe([]), np.zeros(0, dtype=np.int64))
        keep = np.ones(len(self._index), dtype=bool)
        keep[[self._index[config] for config in asked if config in self._index]] = False
        return self._all.only(keep)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Configs and, a row or number for each: places [configs, axes], expectations (log µs), tiles' numbers."""

    configs: list[TileConfig]
    places: Array
    expected: Array
    tiles: NDArray[np.int64]

    def and_also(self, other: _Pool) -> _Pool:
        """Both, one after the other."""
        return _Pool(
            [*self.configs, *other.configs],
            np.concatenate([self.places, other.places]),
            np.concatenate([self.expected, other.expected]),
            np.concatenate([self.tiles, other.tiles]),
        )

    def only(self, keep: NDArray[np.bool_]) -> _Pool:
        """Those marked."""
        configs = [config for config, kept in zip(self.configs, keep, strict=True) if kept]
        return _Pool(configs, self.places[keep], self.expected[keep], self.tiles[keep])


def _tile(config: TileConfig) -> tuple[object, ...]:
    return config.block_m, config.block_n, config.block_k, config.swap_ab, config.split_k


def _fastest_first(times: Mapping[TileConfig, float]) -> list[TileConfig]:
    """Configs by their time, of equal ones the simpler first."""
    return sorted(times, key=lambda config: (times[config], config.complexity))


def _trimmed(knowledge: Sequence[Knowledge], settings: ModelSearchSettings) -> list[Knowledge]:
    """The first few problems with the fastest of their configs, so that the surrogate stays small."""
    kept = []
    for known in knowledge:
        fastest = _fastest_first(known.times)
        if fastest:
            times = {config: known.times[config] for config in fastest[: settings.known_configs]}
            kept.append(Knowledge(known.problem, times))
    return kept[: settings.known_problems]
