"""Axes: one tunable field each, its values and which of them are next to each other."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blockscale.hardware import DeviceSpec, Vendor
from blockscale.problem import Problem, QuantFormat, TileConfig


@dataclass(frozen=True, slots=True)
class Axis:
    """One field of ``TileConfig`` and the values that a search may give it, ascending."""

    name: str
    values: tuple[int, ...]

    def before(self, value: int) -> int | None:
        """The largest value below ``value``, which need not lie on the axis; None at the end."""
        index = bisect_left(self.values, value)
        return self.values[index - 1] if index else None

    def after(self, value: int) -> int | None:
        """The smallest value above ``value``, which need not lie on the axis; None at the end."""
        index = bisect_right(self.values, value)
        return self.values[index] if index < len(self.values) else None

    def steps(self, value: int) -> tuple[int, ...]:
        """The values next to ``value``, the smaller one first."""
        return tuple(v for v in (self.before(value), self.after(value)) if v is not None)


def combinations(axes: Sequence[Axis]) -> Iterator[TileConfig]:
    """Every combination of the axes' values; the last axis moves fastest."""
    names = [axis.name for axis in axes]
    for values in itertools.product(*(axis.values for axis in axes)):
        fields: dict[str, Any] = dict(zip(names, values, strict=True))
        yield TileConfig(**fields)


def cuda_axes(problem: Problem) -> tuple[Axis, ...]:
    """The stock CUDA space: 1,280 combinations, 1,920 for FP8 in blocks of 32 along K."""
    small_k = problem.quant.format is QuantFormat.FP8 and problem.quant.block_k == 32
    return (
        Axis("num_stages", (2, 3, 4, 5)),
        Axis("block_m", (16, 32, 64, 128, 256)),
        Axis("block_k", (32, 64, 128) if small_k else (64, 128)),
        Axis("block_n", (32, 64, 128, 256)),
        Axis("num_warps", (4, 8)),
        Axis("group_m", (1, 16, 32, 64)),
    )


def rocm_axes() -> tuple[Axis, ...]:
    """The stock ROCm space: 800 combinations."""
    return (
        Axis("num_stages", (2,)),
        Axis("waves_per_eu", (0,)),
        Axis("block_m", (32, 64, 128, 256)),
        Axis("block_k", (32, 64, 128, 256)),
        Axis("block_n", (16, 32, 64, 128, 256)),
        Axis("num_warps", (4, 8)),
        Axis("group_m", (1, 4, 8, 16, 32)),
    )


def hopper_axes() -> tuple[Axis, ...]:
    """What the Hopper kernel adds; a config with neither is a stock one."""
    return (Axis("swap_ab", (False, True)), Axis("split_k", (1, 2, 4, 8, 16)))


def stock_axes(problem: Problem, spec: DeviceSpec) -> tuple[Axis, ...]:
    """The stock space of the device's vendor."""
    return cuda_axes(problem) if spec.vendor is Vendor.CUDA else rocm_axes()
