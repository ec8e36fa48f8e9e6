"""How long one launch takes when the weights come from device memory, as they do in a served model.

A CUDA graph replays launches over rotated input sets that together exceed the L2 cache, so neither Python's launch cost
nor a warm cache is in the number. A graph holds one pass over the sets; a sample is as many replays of it as fill its
time. Clocks are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from blockscale.problem import Problem, ceil_div

_ENOUGH_ALONE_BYTES = 1 << 30

Launch = Callable[[], None]
"""Starts one whole GEMM on the current stream."""


@dataclass(frozen=True)
class Series:
    """One timed series of replays, queued in one go: ``ahead`` untimed ones, then ``count`` samples of ``passes``."""

    count: int
    passes: int = 1
    ahead: int = 1


class Replay(Protocol):
    """A recorded pass over the input sets."""

    def samples_us(self, series: Series) -> list[float]:
        """Run the series back to back; what each of its samples took on the GPU, all passes of it, in µs."""
        ...


class Gpu(Protocol):
    """What timing needs of a GPU."""

    def capture(self, launches: Sequence[Launch]) -> Replay:
        """Record these launches, without running them, for replay without host work in between.

        Each kernel among them has run before, and `synchronize` has been called since.
        """
        ...

    def synchronize(self) -> None:
        """Wait for all work; raises the error of a launch that failed."""
        ...


@dataclass(frozen=True)
class TimingPlan:
    """How long and how often to time; all times in µs.

    The first look at a candidate is one pass, timed though the GPU was idle before it. The wait for its launch, about
    10 µs, is measured along; a pass of less than ``alone_us`` would be off by more than 3%, so it is looked at again
    properly: ``look_samples`` passes behind an untimed one, of which one may be disturbed.

    A candidate whose best pass takes more than ``coarse_factor`` times the best so far keeps that look. 1.25 is far
    beyond the noise of a look (1 to 3%) and leaves every candidate that a neighbouring problem might prefer. A single
    pass that says so is repeated, in case it was disturbed, unless it took both ``slow_us`` and twice as long as is
    coarse: no disturbance explains that, and repeating what spills its registers costs the time of ten others.

    The others get ``samples`` of ``sample_us`` each. Within one screening these agree to 0.1%; screening the same
    config again later spreads by 0.4 to 2%, which more samples do not mend. Finals take ``rounds`` of one sample of
    ``round_us`` a candidate.

    Replays begin behind untimed passes of ``ahead_us`` together, which keep the GPU busy while the rest is queued. A
    pass of ``unhurried_us`` needs none: the wait is at most 0.5% of it.
    """

    coarse_factor: float = 1.25
    alone_us: float = 300.0
    look_samples: int = 3
    slow_us: float = 5000.0
    samples: int = 3
    sample_us: float = 400.0
    rounds: int = 5
    round_us: float = 700.0
    ahead_us: float = 100.0
    unhurried_us: float = 2000.0

    def first_look(self) -> Series:
        """The one pass that says how long a pass takes."""
        return Series(1, ahead=0)

    def second_look(self, first_us: float, limit_us: float) -> Series | None:
        """What to time after a first look of ``first_us`` at a candidate that is coarse beyond ``limit_us`` a pass.

        None where the first look says enough.
        """
        if first_us < self.alone_us:
            return Series(self.look_samples)
        in_doubt = limit_us < first_us < max(self.slow_us, 2 * limit_us)
        return Series(1, ahead=0) if in_doubt else None

    def screening(self, pass_us: float) -> Series:
        """The samples of a screened candidate that is not coarse."""
        return Series(self.samples, _passes(self.sample_us, pass_us), self._ahead(pass_us))

    def final_round(self, pass_us: float) -> Series:
        """The sample of a finalist in one round."""
        return Series(1, _passes(self.round_us, pass_us), self._ahead(pass_us))

    def _ahead(self, pass_us: float) -> int:
        return 0 if pass_us >= self.unhurried_us else _passes(self.ahead_us, pass_us)


def _passes(at_least_us: float, pass_us: float) -> int:
    return max(1, math.ceil(at_least_us / pass_us))


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


def round_orders(count: int, rounds: int) -> list[list[int]]:
    """The order of each interleaved round, every one started by another candidate, so that drift favours none."""
    return [[(start + i) % count for i in range(count)] for start in range(rounds)] if count else []
