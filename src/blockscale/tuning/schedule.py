"""How the engines' own tuning script spreads work over GPUs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def split_evenly(items: Sequence[T], workers: int, seed: int) -> list[list[T]]:
    """Items shuffled by ``seed`` and split over ``workers`` so that their counts differ by at most one.

    A static schedule: fair in count, blind to cost. No run uses it; it is what a queue over several GPUs is to be
    compared with. The caller's sequence is left as it is; with more workers than items some lists are empty.

    Raises:
        ValueError: ``workers`` is less than 1.
    """
    if workers < 1:
        raise ValueError(f"workers = {workers}: at least one is needed")
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)
    return [shuffled[i::workers] for i in range(workers)]
