"""What trying one config costs a device, roughly: for the order of work, budgets, and recordings that do not say."""

from __future__ import annotations

from blockscale.problem import Problem

# Read off screens on an H200 in a run of 234 problems (benchmarks/whole_model.py): 6 ms at decode sizes, 2.5 ms more at
# M = 4096 on a 4608×7168 weight.
_FIXED_S = 0.006
_PER_PRODUCT_S = 0.0025 / (4096 * 4608 * 7168)


def measuring_s(problem: Problem) -> float:
    """Device seconds to verify and time one compiled config: a fixed part, and one that grows with M·N·K."""
    return _FIXED_S + _PER_PRODUCT_S * problem.flops / 2
