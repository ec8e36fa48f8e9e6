"""Which batch sizes to tune for what a server launched."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from blockscale.problem import GemmShape, Problem, WeightShape
from blockscale.shapes.served.launches import ServedShapes

# FLOP per byte at which a GPU's FP8 peak and its memory take equally long: H200, 1979 TFLOP/s dense by 4.8 TB/s
# (NVIDIA's data sheet). Others are near enough for what it decides: how heavy a large M is beside a small one.
_BALANCE = 412
# Batch sizes that may become keys: 4% apart for 1 to 16384. More would cost seconds and change nothing to speak of.
_MOST_CANDIDATES = 256


def weighed_batch_sizes(served: ServedShapes, default: Sequence[int], most: int) -> tuple[int, ...]:
    """The keys to tune, at most ``most``, ascending; ``default`` where no M is known.

    Engines serve M by the key nearest to it by absolute difference, the lower on a tie. Chosen are those M of
    ``served`` that make the sum over all launches of time · \\|log2(M / key)\\| least, the smallest and the largest
    among them. The time of a launch is taken as the larger of what its bytes and its FLOPs need (`Problem.bytes_moved`,
    `Problem.flops`), on a GPU that does 412 FLOP a byte. All M are keys where there are no more than ``most``.

    A log that tells forward passes and no launches covers an hour or a single request, and a file with few keys serves
    everything else from them: those of ``default`` that lie farthest from its M fill what is left of ``most``.

    The choice is exact, by dynamic programming over neighbouring keys, up to 256 different M; of more, the heaviest in
    each of as many equal steps of log2(M) may become keys, and all are weighed.

    Raises:
        ValueError: ``most`` is below 2.
    """
    if most < 2:
        raise ValueError("the smallest and the largest batch size are two keys")
    loads = _launch_loads(served)
    if not loads:
        return tuple(default)
    if len(loads) <= most:
        told_by_launches = any(served.launches.values())
        return tuple(sorted(loads)) if told_by_launches else _filled_up(loads, default, most)
    costs = _KeyCosts(loads)
    return _cheapest_path(_candidates(loads), costs, most)


def _launch_loads(served: ServedShapes) -> dict[int, float]:
    """Modelled time of all launches by M; weights without an M of their own take part in every forward pass."""
    loads: dict[int, float] = {}
    for weight, by_m in served.launches.items():
        for m, count in (by_m or served.passes).items():
            loads[m] = loads.get(m, 0.0) + count * _modelled_time(weight, m)
    return loads


def _modelled_time(weight: WeightShape, m: int) -> float:
    """Time of one launch, in units of a byte moved."""
    problem = Problem(GemmShape(m, weight.N, weight.K))
    return max(problem.bytes_moved, problem.flops / _BALANCE)


def _filled_up(sizes: Iterable[int], default: Iterable[int], most: int) -> tuple[int, ...]:
    """``sizes`` and of ``default`` as many as fit, the one farthest from all others in log2 first."""
    keys, left = set(sizes), set(default)
    while len(keys) < most and (left := left - keys):
        keys.add(max(sorted(left), key=lambda m: min(abs(math.log2(m / key)) for key in keys)))
    return tuple(sorted(keys))


class _KeyCosts:
    """What M between two neighbouring keys cost, each served by the nearer one; constant time after sorting."""

    def __init__(self, loads: Mapping[int, float]) -> None:
        self._sizes = sorted(loads)
        self._load = [0.0, *accumulate(loads[m] for m in self._sizes)]
        self._logs = [0.0, *accumulate(loads[m] * math.log2(m) for m in self._sizes)]

    def between(self, lower: int, upper: int) -> float:
        """Cost of all M from ``lower`` to ``upper`` where these are keys and no key lies between them."""
        first = bisect_right(self._sizes, lower)
        middle = bisect_right(self._sizes, (lower + upper) // 2)  # a tie is served by the lower key
        last = bisect_right(self._sizes, upper)
        above = self._logs[middle] - self._logs[first] - math.log2(lower) * (self._load[middle] - self._load[first])
        below = math.log2(upper) * (self._load[last] - self._load[middle]) - (self._logs[last] - self._logs[middle])
        return above + below


def _candidates(loads: Mapping[int, float]) -> list[int]:
    """The M that may become keys, ascending, the smallest and the largest among them."""
    sizes = sorted(loads)
    if len(sizes) <= _MOST_CANDIDATES:
        return sizes
    smallest, largest = sizes[0], sizes[-1]
    steps = (_MOST_CANDIDATES - 2) / math.log2(largest / smallest)
    heaviest: dict[int, int] = {}
    for m in sizes[1:-1]:
        step = int(steps * math.log2(m / smallest))
        if step not in heaviest or loads[m] > loads[heaviest[step]]:
            heaviest[step] = m
    return [smallest, *heaviest.values(), largest]


def _cheapest_path(sizes: Sequence[int], costs: _KeyCosts, most: int) -> tuple[int, ...]:
    """The cheapest way from the first of ``sizes`` to the last over at most ``most``; of equals the shortest."""
    last = len(sizes) - 1
    steps = [[costs.between(sizes[i], sizes[j]) for j in range(i + 1, last + 1)] for i in range(last)]
    best = [math.inf] * (last + 1)
    best[0] = 0.0
    ways: list[list[int]] = []
    totals: list[float] = []
    for _ in range(most - 1):
        following, way = [math.inf] * (last + 1), [0] * (last + 1)
        for i in range(last):
            if best[i] == math.inf:
                continue
            for j, step in enumerate(steps[i], start=i + 1):
                if best[i] + step < following[j]:
                    following[j], way[j] = best[i] + step, i
        best = following
        ways.append(way)
        totals.append(best[last])
    used = min(range(len(totals)), key=totals.__getitem__)
    path = [last]
    for way in reversed(ways[: used + 1]):
        path.append(way[path[-1]])
    return tuple(sizes[i] for i in reversed(path))
