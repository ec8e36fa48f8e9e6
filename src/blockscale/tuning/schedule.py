"""How problems may be spread over GPUs: the static splits of the engines' own scripts, and a queue.

Of these a run uses `remaining_s` alone, for the order of its queue, which is its device's. The others are what
`benchmarks/schedule_simulation.py` compares with it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def contiguous(items: Sequence[T], workers: int) -> list[list[T]]:
    """Items in their order, cut into ``workers`` pieces whose counts differ by at most one, as vLLM's script does.

    Blind to cost: the last GPU gets all the large batch sizes. With more workers than items some pieces are empty.

    Raises:
        ValueError: ``workers`` is less than 1.
    """
    _require_worker(workers)
    cuts = [i * len(items) // workers for i in range(workers + 1)]
    return [list(items[begin:end]) for begin, end in pairwise(cuts)]


def shuffled(items: Sequence[T], workers: int, seed: int) -> list[list[T]]:
    """As `contiguous`, of the items shuffled by ``seed``, as SGLang's script does; the caller's order stays.

    Fair in count, blind to cost.

    Raises:
        ValueError: ``workers`` is less than 1.
    """
    mixed = list(items)
    random.Random(seed).shuffle(mixed)
    return contiguous(mixed, workers)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Items (by index) of each worker in the order in which it takes them, and when each ends, in seconds."""

    by_worker: tuple[tuple[int, ...], ...]
    end_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """When the last item ends; 0 of none."""
        return max(self.end_s, default=0.0)


def queued(
    expected_s: Sequence[float],
    workers: int,
    real_s: Sequence[float] | None = None,
    after: Sequence[Sequence[int]] | None = None,
) -> Schedule:
    """A worker that is free takes, of what may begin, the item that is expected to take longest.

    ``expected_s`` is all that is known beforehand; ``real_s`` is what items then take, by default the same. An item may
    begin when those ``after`` which it comes have ended; without it all may begin at once.

    Raises:
        ValueError: ``workers`` is less than 1, or some items come after each other in a circle.
    """
    _require_worker(workers)
    real_s = expected_s if real_s is None else real_s
    waits_for = [set(before) for before in after] if after is not None else [set() for _ in expected_s]
    followers: list[list[int]] = [[] for _ in expected_s]
    for item, before in enumerate(waits_for):
        for other in before:
            followers[other].append(item)
    ready = [(-expected_s[item], item) for item, before in enumerate(waits_for) if not before]
    heapq.heapify(ready)
    free = list(range(workers))
    at_work: list[tuple[float, int, int]] = []  # a heap: when, item, worker
    taken: list[list[int]] = [[] for _ in range(workers)]
    end_s = [0.0] * len(expected_s)
    now_s = 0.0
    while ready or at_work:
        while ready and free:
            worker = heapq.heappop(free)
            _, item = heapq.heappop(ready)
            taken[worker].append(item)
            end_s[item] = now_s + real_s[item]
            heapq.heappush(at_work, (end_s[item], item, worker))
        now_s, item, worker = heapq.heappop(at_work)
        heapq.heappush(free, worker)
        for follower in followers[item]:
            waits_for[follower].remove(item)
            if not waits_for[follower]:
                heapq.heappush(ready, (-expected_s[follower], follower))
    if any(waits_for):
        raise ValueError("some items come after each other in a circle")
    return Schedule(tuple(map(tuple, taken)), tuple(end_s))


def remaining_s(expected_s: Sequence[float], after: Sequence[Sequence[int]]) -> list[float]:
    """Expected seconds from each item's beginning to the end of the longest chain that waits for it.

    Queued by these, what holds up most goes first. Each item comes after earlier ones only.
    """
    waiting_s = [0.0] * len(expected_s)
    chain_s = list(expected_s)
    for item in reversed(range(len(expected_s))):
        chain_s[item] += waiting_s[item]
        for other in after[item]:
            waiting_s[other] = max(waiting_s[other], chain_s[item])
    return chain_s


def lower_bound_s(real_s: Sequence[float], workers: int, after: Sequence[Sequence[int]] | None = None) -> float:
    """No schedule of whole items is shorter: their mean for each worker, the longest item, the longest chain.

    Where ``after`` is given, an item comes after earlier ones only.

    Raises:
        ValueError: ``workers`` is less than 1.
    """
    _require_worker(workers)
    chain_s: list[float] = []
    for item, seconds in enumerate(real_s):
        before = () if after is None else after[item]
        chain_s.append(seconds + max((chain_s[other] for other in before), default=0.0))
    return max(sum(real_s) / workers, max(chain_s, default=0.0))


def _require_worker(workers: int) -> None:
    if workers < 1:
        raise ValueError(f"workers = {workers}: at least one is needed")
