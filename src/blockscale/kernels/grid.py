"""How many programs a launch has. Without torch: engines decide by it which kernel runs."""

from __future__ import annotations

from blockscale.hardware import DeviceSpec
from blockscale.problem import Problem, TileConfig, ceil_div


def tile_count(problem: Problem, config: TileConfig) -> int:
    """Output tiles that cover C: the length of the launch grid, splits not counted."""
    return ceil_div(problem.shape.M, config.block_m) * ceil_div(problem.shape.N, config.block_n)


def grid_fits_compute_units(problem: Problem, config: TileConfig, spec: DeviceSpec) -> bool:
    """Whether every tile gets a compute unit of its own: the rule by which the unrolled AMD kernel is chosen."""
    return tile_count(problem, config) <= spec.compute_units
