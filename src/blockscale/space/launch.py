"""How a config cuts a problem into blocks, and which configs launch the very same work."""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.problem import Problem, TileConfig, ceil_div

# What CUDA engines ship; the canonical spelling of "all rows in one group" is one of these where one is large enough.
STOCK_GROUPS = (1, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class LaunchGrid:
    """Counts of tiles along M and N and of splits of K; each (tile, split) is one block."""

    tiles_m: int
    tiles_n: int
    splits: int

    @property
    def blocks(self) -> int:
        """Blocks of the launch, a reduction not counted."""
        return self.tiles_m * self.tiles_n * self.splits


def launch_grid(problem: Problem, config: TileConfig) -> LaunchGrid:
    """The grid that a config launches for a problem."""
    shape = problem.shape
    return LaunchGrid(ceil_div(shape.M, config.block_m), ceil_div(shape.N, config.block_n), config.split_k)


def canonical(problem: Problem, config: TileConfig) -> TileConfig:
    """The one spelling of all configs that launch the same blocks in the same order.

    Blocks walk down ``GROUP_SIZE_M`` rows of tiles before they move one column on. So GROUP_SIZE_M means nothing with
    one row or one column (1 is taken), and all values that reach every row are one: the smallest stock value that
    does, beyond the stock values the smallest power of two.
    """
    grid = launch_grid(problem, config)
    if grid.tiles_m == 1 or grid.tiles_n == 1:
        group = 1
    elif config.group_m >= grid.tiles_m:
        group = next((g for g in STOCK_GROUPS if g >= grid.tiles_m), 1 << (grid.tiles_m - 1).bit_length())
    else:
        return config
    return config if group == config.group_m else config.with_(group_m=group)
