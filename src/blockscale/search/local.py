"""The default search: start where the estimate points, then walk to the neighbours of whatever measured best."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from blockscale.problem import TileConfig
from blockscale.search.base import legal_starts
from blockscale.search.estimate import estimate_us, must_spill
from blockscale.space import Space


@dataclass(frozen=True, slots=True)
class LocalSearchSettings:
    """How wide the local search looks, in configs."""

    starts: int = 24  # from the estimate
    starts_per_tile: int = 2  # of which share tile, SWAP_AB and SPLIT_K
    spread: int = 6  # space-filling, against a wrong estimate
    generation: int = 8  # proposed between two looks at the results
    beam: int = 4  # leaders whose neighbours are tried
    extension_margin: float = 1.1  # a start with SWAP_AB or SPLIT_K may be estimated this much above the best plain one
    patience: int = 40  # configs in a row that do not gain `gain`
    gain: float = 0.002


DEFAULT_SETTINGS = LocalSearchSettings()


class LocalSearch:
    """Priors, estimated starts and a thin spread first; then generations of neighbours of the leaders.

    A generation has a fixed size, whatever ``ask`` is called with, so the configs asked do not depend on how many the
    caller can try at once. A failed config is passed over and says nothing about those beside it.
    """

    def __init__(
        self,
        space: Space,
        priors: Sequence[TileConfig],
        trials: int | None,
        seed: int,
        settings: LocalSearchSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._space = space
        self._settings = settings
        self._left = trials
        self._rng = random.Random(seed)
        self._asked: set[TileConfig] = set()
        self._times: dict[TileConfig, float] = {}
        self._best_us: float | None = None
        self._since_gain = 0
        self._estimates: dict[TileConfig, float] = {}
        self._queue: list[TileConfig] = []
        self._enqueue(legal_starts(space, priors))
        self._enqueue(_estimated_starts(space, settings))
        self._enqueue(self._spread(settings.spread))
        self._walking = False

    def ask(self, n: int) -> list[TileConfig]:
        """The rest of the generation, at most ``n``; a new generation once every config of the last was told."""
        if not self._queue and not self._finished():
            self._walking = True
            self._enqueue(self._next_generation())
        if self._left is not None:
            n = min(n, self._left)
            self._left -= min(n, len(self._queue))
        batch, self._queue = self._queue[:n], self._queue[n:]
        return batch

    def tell(self, config: TileConfig, time_us: float | None) -> None:
        """Note an outcome; None counts as a try that gained nothing."""
        gained = False
        if time_us is not None:
            self._times[config] = time_us
            gained = self._best_us is None or time_us < self._best_us * (1 - self._settings.gain)
            if self._best_us is None or time_us < self._best_us:
                self._best_us = time_us
        # The starts are a fixed programme: patience counts from the first step away from them.
        self._since_gain = 0 if gained or not self._walking else self._since_gain + 1

    def _finished(self) -> bool:
        return self._left == 0 or self._since_gain >= self._settings.patience

    def _enqueue(self, configs: Iterable[TileConfig]) -> None:
        for config in configs:
            if config not in self._asked:
                self._asked.add(config)
                self._queue.append(config)

    def _next_generation(self) -> list[TileConfig]:
        leaders = sorted(self._times, key=lambda config: (self._times[config], config.complexity))
        proposals: dict[TileConfig, float] = {}
        for leader in leaders[: self._settings.beam]:
            for neighbour in self._space.neighbours(leader):
                if neighbour not in self._asked and not must_spill(neighbour, self._space.spec):
                    expected = self._times[leader] * self._estimate(neighbour) / self._estimate(leader)
                    proposals[neighbour] = min(expected, proposals.get(neighbour, expected))
        if not proposals:  # nothing ran yet, or every step was taken: look elsewhere
            return self._elsewhere()
        best_first = sorted(proposals, key=lambda config: (proposals[config], config.complexity))
        return best_first[: self._settings.generation]

    def _spread(self, n: int) -> list[TileConfig]:
        """About ``n`` space-filling configs; those that are known to be hopeless are left out, not replaced."""
        return [config for config in self._space.sample(self._rng, n) if not must_spill(config, self._space.spec)]

    def _elsewhere(self) -> list[TileConfig]:
        size = self._settings.generation
        fresh = [config for config in self._spread(size) if config not in self._asked]
        if not fresh:
            fresh = [config for config in self._space if config not in self._asked]
        return fresh[:size]

    def _estimate(self, config: TileConfig) -> float:
        if config not in self._estimates:
            self._estimates[config] = estimate_us(self._space.problem, config, self._space.spec)
        return self._estimates[config]


def _estimated_starts(space: Space, settings: LocalSearchSettings) -> list[TileConfig]:
    # The estimate is blind to GROUP_SIZE_M: rank with a middle value, the walk finds the right one.
    middle = {axis.name: axis.values[(len(axis.values) - 1) // 2] for axis in space.axes if axis.name == "group_m"}
    estimates = {c: estimate_us(space.problem, c, space.spec) for c in space.pinned(**middle)}
    ranked = sorted(estimates, key=lambda config: (estimates[config], config.complexity))
    plain = _varied((config for config in ranked if not config.has_swap_split), settings)
    best_plain = estimates[plain[0]] if plain else float("inf")
    bound = settings.extension_margin * best_plain
    extended = _varied((c for c in ranked if c.has_swap_split and estimates[c] <= bound), settings)[
        : settings.starts // 2
    ]
    chosen = set(extended) | set(plain[: settings.starts - len(extended)])
    return [config for config in ranked if config in chosen]


def _varied(ranked: Iterable[TileConfig], settings: LocalSearchSettings) -> list[TileConfig]:
    """The first configs of a ranking, no more than a few of each tile."""
    return list(_limit_per_tile(ranked, settings.starts_per_tile, settings.starts))


def _limit_per_tile(ranked: Iterable[TileConfig], per_tile: int, total: int) -> Iterator[TileConfig]:
    seen: dict[tuple[int, ...], int] = {}
    count = 0
    for config in ranked:
        tile = (config.block_m, config.block_n, config.block_k, config.swap_ab, config.split_k)
        seen[tile] = seen.get(tile, 0) + 1
        if seen[tile] <= per_tile:
            count += 1
            yield config
        if count == total:
            return
