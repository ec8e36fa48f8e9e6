"""How long one launch takes when the weights come from device memory, as they do in a served model.

A CUDA graph replays many launches over rotated input sets that together exceed the L2 cache, so neither Python's
launch cost nor a warm cache is in the number. Clocks are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from blockscale.problem import Problem, ceil_div

_ENOUGH_ALONE_BYTES = 1 << 30

Launch = Callable[[], None]
"""Starts one whole GEMM on the current stream."""


class Replay(Protocol):
    """A recorded series of launches."""

    def samples_us(self, count: int) -> list[float]:
        """Run the series once untimed and then ``count`` times, back to back; what each took on the GPU, in µs."""
        ...


class Gpu(Protocol):
    """What timing needs of a GPU."""

    def capture(self, launches: Sequence[Launch]) -> Replay:
        """Record these launches, without running them, for replay without host work in between."""
        ...

    def synchronize(self) -> None:
        """Wait for all work; raises the error of a launch that failed."""
        ...


@dataclass(frozen=True)
class TimingPlan:
    """How long and how often to time. A screened candidate that takes ``coarse_factor`` times the best so far keeps
    its first look of one launch a set; the others get ``samples`` replays of at least ``replay_us``."""

    coarse_factor: float = 4.0
    samples: int = 5
    replay_us: float = 1000.0
    rounds: int = 7
    final_replay_us: float = 2000.0
    most_launches: int = 2048


def touched_bytes(problem: Problem) -> int:
    """Bytes that one launch reads or writes: both operands, their scales, the output."""
    shape, quant = problem.shape, problem.quant
    groups = ceil_div(shape.K, quant.block_k)
    scales = 4 * groups * (shape.M + ceil_div(shape.N, quant.block_n))
    return problem.bytes_moved + scales


def set_count(problem: Problem, l2_bytes: int, most: int = 256) -> int:
    """How many input sets to rotate: one pass touches more than twice the L2 cache; at least 2, at most ``most``.

    Matrices so small that ``most`` sets still fit into L2 are served from L2 by a real model too. One launch that
    touches a GiB replaces the whole cache many times over, and a second set would only take memory.
    """
    if touched_bytes(problem) >= _ENOUGH_ALONE_BYTES:
        return 1
    return min(most, max(2, 2 * l2_bytes // touched_bytes(problem) + 1))


def launches_per_replay(launch_us: float, sets: int, at_least_us: float, most: int) -> int:
    """A whole number of passes over the sets that takes about ``at_least_us``: at least one, about ``most`` launches
    at most."""
    passes = ceil_div(int(at_least_us), max(1, int(launch_us * sets)))
    return sets * max(1, min(passes, most // sets))


def round_orders(count: int, rounds: int) -> list[list[int]]:
    """The order of each interleaved round, every one started by another candidate, so that drift favours none."""
    return [[(start + i) % count for i in range(count)] for start in range(rounds)] if count else []
