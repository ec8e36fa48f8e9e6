"""In which order, and on which GPU, problems are tuned."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

from blockscale.executor.cost import measuring_s
from blockscale.problem import Problem

T = TypeVar("T")


def longest_first(problems: Iterable[Problem]) -> list[Problem]:
    """Problems by falling expected cost, ties by their sizes: the order in which a queue hands them out.

    Whoever takes the next free problem from such a queue finishes within 4/3 of the best possible makespan
    (Graham's bound for longest-processing-time-first scheduling).
    """
    return sorted(problems, key=lambda p: (-measuring_s(p), p))


def split_evenly(items: Sequence[T], workers: int, seed: int) -> list[list[T]]:
    """Items shuffled by ``seed`` and split over ``workers`` so that their counts differ by at most one.

    The static schedule of the engines' own tuning script: fair in count, blind to cost. No run uses it; it is what
    ``longest_first`` is to be compared with on several GPUs. The caller's sequence is left as it is; with more workers
    than items some lists are empty.

    Raises:
        ValueError: ``workers`` is less than 1.
    """
    if workers < 1:
        raise ValueError(f"workers = {workers}: at least one is needed")
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)
    return [shuffled[i::workers] for i in range(workers)]
