"""What a learnt model is told of a config on a problem: sizes, and what the analytic clock derives from them."""

from __future__ import annotations

import numpy as np

from blockscale.costmodel.analytic import Array, ConfigArrays, Launches
from blockscale.hardware import DeviceSpec
from blockscale.problem import Problem

# Names of the columns of `features`, in their order: a model is kept with them, and one that was taught others is
# refused. Counts stand as base-2 logarithms, so that a model's steps are factors.
FEATURES = (
    "block_m",
    "block_n",
    "block_k",
    "group_m",
    "num_warps",
    "num_stages",
    "split_k",
    "swap_ab",
    "mma_rate",
    "rows_per_tile",
    "tiles_m",
    "filled_rows",
    "blocks",
    "blocks_per_unit",
    "last_round",
    "waves",
    "last_wave",
    "resident",
    "steps",
    "steps_per_unit",
    "bytes_in_flight",
    "elements_per_thread",
    "M",
    "N",
    "K",
    "over_memory",
)


def features(problem: Problem, configs: ConfigArrays, spec: DeviceSpec, clock_us: Array) -> Array:
    """The columns named in ``FEATURES`` of each config, of shape [configs, features]; ``clock_us`` is `analytic_us`.

    ``last_round`` and ``last_wave`` say how much longer the units are at work than if the blocks filled the last round
    of one a unit, or of as many as fit on it; ``over_memory`` is the clock's time over that of the bytes alone.
    """
    shape = problem.shape
    launches = Launches.of(problem, configs, spec)
    per_unit = launches.blocks / spec.compute_units
    waves = per_unit / launches.resident
    whole = np.ones(len(configs.block_m))
    bytes_us = problem.bytes_moved / 1e6
    columns = (
        np.log2(configs.block_m),
        np.log2(configs.block_n),
        np.log2(configs.block_k),
        np.log2(configs.group_m),
        np.log2(configs.num_warps),
        configs.num_stages,
        np.log2(configs.split_k),
        configs.swap_ab,
        configs.mma_rate,
        np.log2(shape.M / configs.block_m),
        launches.tiles_m,
        launches.tiles_m * configs.block_m / shape.M,
        np.log2(launches.blocks),
        np.log2(per_unit),
        np.ceil(per_unit) / per_unit,
        np.log2(waves),
        np.ceil(waves) / waves,
        np.log2(launches.resident),
        np.log2(launches.steps),
        np.log2(launches.steps * np.ceil(per_unit)),
        np.log2(configs.num_stages * configs.block_k * (configs.block_m + configs.block_n)),
        np.log2(configs.block_m * configs.block_n / (configs.num_warps * spec.warp_size)),
        np.log2(shape.M) * whole,
        np.log2(shape.N) * whole,
        np.log2(shape.K) * whole,
        np.log(clock_us / bytes_us),
    )
    return np.stack(columns, axis=1)
