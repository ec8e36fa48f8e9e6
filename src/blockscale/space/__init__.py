"""The configs worth trying: axes, the legality predicate with its reasons, canonical form, neighbours and samples."""

from blockscale.space.axes import Axis, combinations, cuda_axes, hopper_axes, rocm_axes, stock_axes
from blockscale.space.clauses import (
    Clause,
    hardware_clauses,
    has_warpgroup_mma,
    shared_memory_bytes,
    uses_warpgroup_mma,
)
from blockscale.space.core import Space, build_space
from blockscale.space.launch import LaunchGrid, canonical, launch_grid

__all__ = [
    "Axis",
    "Clause",
    "LaunchGrid",
    "Space",
    "build_space",
    "canonical",
    "combinations",
    "cuda_axes",
    "hardware_clauses",
    "has_warpgroup_mma",
    "hopper_axes",
    "launch_grid",
    "rocm_axes",
    "shared_memory_bytes",
    "stock_axes",
    "uses_warpgroup_mma",
]
