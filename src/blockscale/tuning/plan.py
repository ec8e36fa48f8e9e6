"""What each problem of a run learns from, and the order that follows: all from the request, nothing from outcomes.

Within one weight and engine the batch sizes form a tree over log2 M: the middle and the ends first, then sizes spread
over the gaps that are left; each learns from all earlier levels of its weight. Across weights, where no recording
teaches, waves of 1, 2, 4, 8, … weights learn from the most similar weights of earlier waves at the nearest batch size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from blockscale.executor.cost import measuring_s
from blockscale.problem import Problem, WeightShape
from blockscale.tuning.schedule import remaining_s

_SIMILAR_WEIGHTS = 3
# What a job takes on an H200 (docs/results/h200-whole-model.md): screens of `measuring_s`, and rounds that wait for the
# compiler in between.
_TRIALS = 25
_COMPILING_S = 2.0


def levels(batch_sizes: Sequence[int]) -> dict[int, int]:
    """Level in the tree of each batch size: 0 are the ends and the one nearest to their geometric middle.

    Every further level puts up to three sizes into each gap, at its middle and at those of both halves. A level is a
    chain of rounds that wait for the compiler, so a flat tree ends sooner, and three levels hold the stock sizes.
    """
    sizes = sorted(set(batch_sizes))
    level = dict.fromkeys((sizes[0], _nearest(sizes, _middle(sizes[0], sizes[-1])), sizes[-1]), 0)
    depth = 1
    while len(level) < len(sizes):
        known = sorted(level)
        for low, high in pairwise(known):
            for m in _quarters([m for m in sizes if low < m < high], low, high):
                level[m] = depth
        depth += 1
    return level


def _quarters(between: Sequence[int], low: int, high: int) -> list[int]:
    """Of the sizes between two, that nearest to the geometric middle and those nearest to the middles beside it."""
    if not between:
        return []
    middle = _nearest(between, _middle(low, high))
    below, above = [m for m in between if m < middle], [m for m in between if m > middle]
    found = [middle]
    if below:
        found.append(_nearest(below, _middle(low, middle)))
    if above:
        found.append(_nearest(above, _middle(middle, high)))
    return found


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """The problems of one weight, level by level, within a level the costliest first."""
    level = levels([p.shape.M for p in problems])
    return sorted(problems, key=lambda p: (level[p.shape.M], -measuring_s(p), p))


def sources(jobs: Sequence[tuple[str, Problem]], *, across_weights: bool) -> list[tuple[int, ...]]:
    """For each (engine, problem) the indices of those that it learns from, the most akin first; all stand before it.

    ``jobs`` are listed weight by weight, each weight's problems ``in_order``. The most akin is an earlier engine's job
    of the same problem, then come the own weight's, then, ``across_weights``, those of other weights: where recorded
    problems teach as much already, waiting for other weights would only leave the GPU idle.
    """
    index = {job: i for i, job in enumerate(jobs)}
    weights = list(dict.fromkeys(problem.shape.weight for _, problem in jobs))
    wave = {weight: math.floor(math.log2(i + 1)) for i, weight in enumerate(weights)}
    by_file: dict[tuple[str, WeightShape], list[Problem]] = {}
    for engine, problem in jobs:
        by_file.setdefault((engine, problem.shape.weight), []).append(problem)
    level = {file: levels([p.shape.M for p in problems]) for file, problems in by_file.items()}

    def of(engine: str, problem: Problem) -> tuple[int, ...]:
        weight, m = problem.shape.weight, problem.shape.M
        own = level[engine, weight]
        similar = [w for w in weights if across_weights and wave[w] < wave[weight] and (engine, w) in level]
        similar = sorted(similar, key=lambda w: _distance(w, weight))[:_SIMILAR_WEIGHTS]
        akin = [(other, problem) for other in dict.fromkeys(e for e, _ in jobs)]
        akin += [(engine, p) for p in _nearest_first(by_file[engine, weight], m) if own[p.shape.M] < own[m]]
        for w in similar:
            known = [p for p in _nearest_first(by_file[engine, w], m) if level[engine, w][p.shape.M] <= own[m]]
            akin += [(engine, p) for p in known[:1]]
        found = [index[job] for job in akin if job in index]
        return tuple(i for i in found if i < index[engine, problem])

    return [of(*job) for job in jobs]


def ranks(problems: Sequence[Problem], learns_from: Sequence[Sequence[int]]) -> list[int]:
    """The place of each job in the order in which a device takes what waits, 0 first: what holds up most goes first.

    That is where the longest chain of jobs begins that still has to be tried one after the other. With problems taken
    the longest first instead, GPUs wait at the end of a run for the chains of the last weights.
    """
    expected_s = [_TRIALS * measuring_s(problem) + _COMPILING_S for problem in problems]
    left_s = remaining_s(expected_s, learns_from)
    order = sorted(range(len(problems)), key=lambda i: (-left_s[i], i))
    return [place for _, place in sorted(zip(order, range(len(order)), strict=True))]


def depths(learns_from: Sequence[Sequence[int]]) -> list[int]:
    """Length of the longest chain of sources above each job; 0 for those that learn from none."""
    depth: list[int] = []
    for above in learns_from:
        depth.append(max((depth[i] + 1 for i in above), default=0))
    return depth


def _middle(low: int, high: int) -> float:
    return (math.log2(low) + math.log2(high)) / 2


def _nearest(sizes: Sequence[int], log_size: float) -> int:
    return min(sizes, key=lambda m: (abs(math.log2(m) - log_size), m))


def _nearest_first(problems: Sequence[Problem], m: int) -> list[Problem]:
    return sorted(problems, key=lambda p: (abs(math.log2(p.shape.M) - math.log2(m)), p.shape.M))


def _distance(a: WeightShape, b: WeightShape) -> float:
    return abs(math.log2(a.N / b.N)) + abs(math.log2(a.K / b.K))
