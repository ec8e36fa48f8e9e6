"""Which keys a file needs beside the tuned ones, so that the nearest-key lookup loses least over all batch sizes.

An engine serves batch size M with the entry of the nearest key, so between two keys it switches half way, while the
faster of both configs mostly changes just above a whole number of tiles of the smaller key's. A further key costs
nothing: it holds a config that was tried at the keys around, under a batch size where the switch should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockscale.problem import TileConfig
from blockscale.tuning.between import Array, Ladder

_WIDEST_GAP = 1 << 16  # batch sizes


@dataclass(frozen=True, slots=True)
class KeyRules:
    """When a further key is worth its place. Gains are natural logarithms of time, summed over M with weight 1 / M.

    ``most`` is how many further keys a file may have. A batch size changes its config only for a gain that exceeds
    ``margin`` (``margin_uninformed`` where no recorded problem stands behind the expected times): 95 of 100 of those
    are off by less than 5%. A key must gain ``least_gain`` beyond that: 1% from M to 1.1 M, say.
    ``candidates`` of the fastest at either key are looked at, those within ``contention`` (a share of the time).

    A config that is not certain to be no slower than the engine's default must be expected to be faster by
    ``advantage`` where the upper key is at most twice the lower one, else by ``wide_advantage``: 99 of 100 expected
    ratios to the default are less wrong. Read off the recorded tables of an H200 (benchmarks/key_loss.py, December
    2026).
    """

    most: int = 12
    margin: float = 0.05
    margin_uninformed: float = 0.1
    least_gain: float = 0.001
    candidates: int = 5
    contention: float = 0.15
    advantage: float = 0.08
    wide_advantage: float = 0.27


@dataclass(frozen=True, slots=True)
class FurtherKey:
    """A key that nothing was measured at. It serves ``first`` to ``last``; times in µs are at ``M``.

    ``saves`` is the expected share of time that it saves over the batch sizes it serves, weighted by 1 / M.
    """

    M: int
    config: TileConfig
    first: int
    last: int
    expected_us: float
    at_most_us: float
    saves: float


@dataclass(frozen=True)
class Gap:
    """The batch sizes between two neighbouring keys ``a`` < ``b``, and the costs of serving them.

    ``cost`` is of shape [configs, b − a + 1] for M = a … b: log µs and margin, infinite where a config may not serve
    M. The first config is that of ``a``, the second that of ``b``.
    """

    a: int
    b: int
    configs: tuple[TileConfig, ...]
    expected: Array  # log µs, shaped as cost
    cost: Array
    positions: tuple[int, ...]  # where further keys may be, ascending
    forced: frozenset[int]  # where there must be one

    @property
    def middle(self) -> int:
        """The last batch size that ``a`` serves without further keys: ties go to the smaller key."""
        return (self.a + self.b) // 2


Plan: TypeAlias = tuple[tuple[int, int], ...]
"""Further keys of a gap, ascending: batch size and number of the config."""


@dataclass(frozen=True)
class KeyFit:
    """What further keys are fitted to.

    ``default`` is what the engine runs without a file; ``may_serve`` says whether a config is legal at a batch size.
    Keys of ``forced`` are in the file already and are given a config anew.
    """

    ladder: Ladder
    default: TileConfig
    may_serve: Callable[[int, TileConfig], bool]
    forced: frozenset[int] = frozenset()
    rules: KeyRules = KeyRules()

    def further_keys(self, entries: Mapping[int, TileConfig | None]) -> list[FurtherKey]:
        """The further keys, ascending, that leave the least expected time over all M between the keys of ``entries``.

        ``entries`` has the config of each key, None where it is unknown. Beside such a key, or one at which nothing was
        tried, nothing is changed, nor between keys so far apart that no table of all M could be made. A config
        serves a batch size where it did not before only if it is legal there and either the default itself or no slower
        than that, as `KeyRules` has it.
        """
        gaps = []
        for a, b in pairwise(sorted(entries)):
            config_a, config_b = entries[a], entries[b]
            tried = a in self.ladder.times and b in self.ladder.times
            if tried and 1 < b - a <= _WIDEST_GAP and config_a is not None and config_b is not None:
                gap = self._gap(a, b, self._candidates(a, b, config_a, config_b))
                if gap is not None:
                    gaps.append(gap)
        most = max(self.rules.most, len(self.forced))
        chosen = _shared_out([_plans(gap, most) for gap in gaps], most, self.rules.least_gain)
        return [key for gap, plan in zip(gaps, chosen, strict=True) for key in self._described(gap, plan)]

    def _candidates(self, a: int, b: int, config_a: TileConfig, config_b: TileConfig) -> tuple[TileConfig, ...]:
        """Configs worth looking at between two keys: theirs first, even if equal, then the default and the fastest."""
        others = [self.default]
        for m in (a, b):
            table = self.ladder.times[m]
            limit_us = (1 + self.rules.contention) * min(table.values())
            ranked = sorted((c for c in table if table[c] <= limit_us), key=lambda c: (table[c], c.complexity, c))
            others += ranked[: self.rules.candidates]
        return (config_a, config_b, *(c for c in dict.fromkeys(others) if c not in (config_a, config_b)))

    def _gap(self, a: int, b: int, configs: tuple[TileConfig, ...]) -> Gap | None:
        """The costs between two keys; None where the times of their own configs are unknown."""
        ends = _ends(self.ladder, a, b)
        expected_us = self.ladder.expected_us((*configs, self.default), ends)
        if np.isnan(expected_us[:2]).any():
            return None
        safe = np.array([[self._is_safe(c, start, end) for start, end in _ranges(a, ends)] for c in configs])
        if self.ladder.is_informed:
            advantage = self.rules.advantage if b <= 2 * a else self.rules.wide_advantage
            safe |= (1 + advantage) * expected_us[:-1] <= expected_us[-1]
        safe |= np.array([[c == self.default] for c in configs])
        safe &= np.array([[self.may_serve(end, c) for end in ends] for c in configs])
        of_size = np.repeat(np.arange(len(ends)), np.diff([a, *ends]))
        expected, safe = (
            np.pad(x[:, of_size], ((0, 0), (1, 1)), mode="edge") for x in (np.log(expected_us[:-1]), safe)
        )
        margin = self.rules.margin if self.ladder.is_informed else self.rules.margin_uninformed
        cost = np.where(safe & ~np.isnan(expected), expected + margin, np.inf)
        split = (a + b) // 2 - a + 1
        for part, serving in ((slice(None, split), 0), (slice(split, None), 1)):
            for row, config in enumerate(configs):
                if config == configs[serving]:
                    cost[row, part] = expected[row, part]
        places = {m for end in (a, *ends[:-1]) for m in (end, end + 1)} | self.forced
        positions = tuple(sorted(m for m in places if a < m < b))
        return Gap(a, b, configs, expected, cost, positions, self.forced.intersection(positions))

    def _is_safe(self, config: TileConfig, first: int, last: int) -> bool:
        """Whether ``config`` is certain to take no longer than the default from ``first`` to ``last``, one range."""
        return self.ladder.at_most_us(config, last) <= self.ladder.at_least_us(self.default, first)

    def _described(self, gap: Gap, plan: Plan) -> list[FurtherKey]:
        """The keys of a plan with what they serve and save."""
        nodes = [gap.a, *(m for m, _ in plan), gap.b]
        described = []
        for before, (m, number), after in zip(nodes, plan, nodes[2:], strict=False):
            first, last = (before + m) // 2 + 1, (m + after) // 2
            served = np.arange(max(first, gap.a + 1), min(last, gap.b - 1) + 1)
            at = served - gap.a
            gains = np.where(served <= gap.middle, gap.expected[0, at], gap.expected[1, at]) - gap.expected[number, at]
            config = gap.configs[number]
            described.append(
                FurtherKey(
                    M=m,
                    config=config,
                    first=first,
                    last=last,
                    expected_us=float(np.exp(gap.expected[number, m - gap.a])),
                    at_most_us=self.ladder.at_most_us(config, m),
                    saves=1 - math.exp(-float(np.average(gains, weights=1 / served))),
                )
            )
        return described


def _ends(ladder: Ladder, a: int, b: int) -> list[int]:
    """The last sizes of the ranges between ``a`` and ``b`` in which nothing changes: whole numbers of small tiles.

    No tile has fewer than 16 rows, and half of one matters too; beyond 512 rows every fourth will do.
    """
    ends, m = {b - 1, *(size for size in ladder.times if a < size < b)}, a
    while m < b:
        ends.add(m)
        step = 8 if m < 64 else 16 if m < 512 else 64
        m = (m // step + 1) * step
    return sorted(ends - {a})


def _ranges(a: int, ends: Sequence[int]) -> list[tuple[int, int]]:
    """First and last size of each range."""
    return [(before + 1, end) for before, end in zip((a, *ends), ends, strict=False)]


def _plans(gap: Gap, most: int) -> list[tuple[float, Plan]]:
    """The cheapest way to serve a gap with 0, 1, … further keys: its cost and the keys; infinite where there is none.

    Dynamic programming over the last key: of all ways to a key with one config, only the cheapest goes on.
    """
    nodes = np.array([gap.a, *gap.positions, gap.b])
    barred = np.isinf(gap.cost)
    weighted = np.where(barred, 0, gap.cost) / np.arange(gap.a, gap.b + 1)
    # What M = a … m cost and how many of them are barred: the difference of two is what lies between.
    sums = np.cumsum(weighted, axis=1), np.cumsum(barred, axis=1)

    def between(first: NDArray[np.int64], last: NDArray[np.int64]) -> Array:
        """Cost of serving the batch sizes after ``first`` up to ``last``, of shape [configs, ranges]."""
        cost, bars = (s[:, last - gap.a] - s[:, first - gap.a] for s in sums)
        return np.where(bars > 0, np.inf, cost)

    ways = np.full((len(gap.configs), len(nodes)), np.inf)
    ways[0, 0] = 0.0
    steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # node and config before, shaped as ways
    plans: list[tuple[float, Plan]] = []
    for _ in range(min(most, len(gap.positions)) + 1):
        arrived = np.full_like(ways, np.inf)
        from_node, from_config = np.zeros(ways.shape, dtype=np.int64), np.zeros(ways.shape, dtype=np.int64)
        for start in range(len(nodes) - 1):
            ends = np.arange(start + 1, _reach(gap, nodes, start) + 1)
            middle = (nodes[start] + nodes[ends]) // 2
            left = ways[:, [start]] + between(np.full_like(middle, nodes[start]), middle)
            cheapest = left.argmin(axis=0)
            # The upper key itself is none of the gap's batch sizes.
            total = left.min(axis=0) + between(middle, np.minimum(nodes[ends], gap.b - 1))
            better = total < arrived[:, ends]
            for array, value in ((arrived, total), (from_node, start), (from_config, cheapest)):
                array[:, ends] = np.where(better, value, array[:, ends])
        steps.append((from_node, from_config))
        plans.append((float(arrived[1, -1]), _traced(nodes, steps)))
        arrived[:, -1] = np.inf
        ways = arrived
    return plans


def _reach(gap: Gap, nodes: NDArray[np.int64], start: int) -> int:
    """The last node that may follow ``start``: the next key that is there anyway."""
    return next((i for i in range(start + 1, len(nodes)) if int(nodes[i]) in gap.forced), len(nodes) - 1)


def _traced(nodes: NDArray[np.int64], steps: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Plan:
    """The keys of the cheapest way to the upper key, back from there."""
    node, config = len(nodes) - 1, 1
    plan: list[tuple[int, int]] = []
    for from_node, from_config in reversed(steps):
        node, config = int(from_node[config, node]), int(from_config[config, node])
        plan.insert(0, (int(nodes[node]), config))
    return tuple(plan[1:])  # the first is the lower key


def _shared_out(plans: Sequence[Sequence[tuple[float, Plan]]], most: int, price: float) -> list[Plan]:
    """A plan for each gap, of at most ``most`` keys together, so that costs and ``price`` a key are least."""
    # By keys spent: the cost so far and the plans taken.
    spent: dict[int, tuple[float, list[Plan]]] = {0: (0.0, [])}
    for of_gap in plans:
        following: dict[int, tuple[float, list[Plan]]] = {}
        for used, (cost, taken) in spent.items():
            for keys, (more, plan) in enumerate(of_gap):
                total = cost + more + price * keys
                if used + keys <= most and total < following.get(used + keys, (math.inf,))[0]:
                    following[used + keys] = total, [*taken, plan]
        spent = following
    if not spent:  # too few keys for what may serve around those that are there
        return [()] * len(plans)
    return min(spent.values(), key=lambda way: way[0])[1]
