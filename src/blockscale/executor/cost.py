"""What trying one config costs a device, roughly: for the order of work, budgets, and recordings that do not say."""

from __future__ import annotations

from blockscale.problem import Problem

# Read off runs on an H200 (rotated inputs, graph replays, verification): about 8 ms at decode sizes, 40 ms at M = 4096
# on a 4608×7168 weight.
_FIXED_S = 0.008
_PER_PRODUCT_S = 0.032 / (4096 * 4608 * 7168)


def measuring_s(problem: Problem) -> float:
    """Device seconds to verify and time one compiled config: a fixed part, and one that grows with M·N·K."""
    return _FIXED_S + _PER_PRODUCT_S * problem.flops / 2
