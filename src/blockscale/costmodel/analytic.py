"""A rough clock for configs that nothing has been measured of: waves, bytes, stages, matrix instructions.

It orders configs, and decides nothing: what counts is measured. Its constants are rounded properties of GPUs of the
last years; the cost of a barrier and what the L2 gives were read off one H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from blockscale.hardware import DeviceSpec, Peaks
from blockscale.problem import Problem, QuantScheme, TileConfig
from blockscale.space import has_warpgroup_mma, shared_memory_bytes, uses_warpgroup_mma

CLOCK_GHZ = 1.7
FP32_LANES = 128  # FMAs a cycle of one SM or CU
THREADS_PER_UNIT = 2048
REGISTERS_PER_THREAD = 255
ADDRESS_REGISTERS = 40
LOCAL_MEMORY_BYTES_PER_CYCLE = 64  # of one unit, for spilled registers
LOAD_LATENCY_US = 0.8  # device memory, under load
SYNC_US_PER_WARP = 0.05  # barrier, addresses and issue of one K step; more warps wait longer for each other
LAUNCH_US = 2.0
REDUCTION_LAUNCH_US = 1.5  # a second kernel in the same graph
L2_BYTES_PER_CYCLE = 38  # that one unit draws from L2 while all do
FALLBACK_MMA_RATE = 0.5  # of the older mma, where too few rows rule a warpgroup's instruction out
UNKNOWN_PEAKS = Peaks(bandwidth_gb_s=2000, tflops_8bit=700)

Array = NDArray[np.float64]


@lru_cache(maxsize=1 << 16)
def _constants(config: TileConfig, quant: QuantScheme, spec: DeviceSpec) -> tuple[float, ...]:
    """What the clock needs of a config whatever the sizes of the problem are; in the order of ``ConfigArrays``."""
    slow = has_warpgroup_mma(spec) and not uses_warpgroup_mma(config, spec)
    return (
        config.block_m,
        config.block_n,
        config.block_k,
        config.num_warps,
        config.num_stages,
        config.split_k,
        config.group_m,
        config.swap_ab,
        FALLBACK_MMA_RATE if slow else 1.0,
        max(shared_memory_bytes(quant, config, spec), 1),
    )


@dataclass(frozen=True)
class ConfigArrays:
    """Some configs as columns, each of shape [configs]; made once and used for many problems of one scheme."""

    block_m: Array
    block_n: Array
    block_k: Array
    num_warps: Array
    num_stages: Array
    split_k: Array
    group_m: Array
    swap_ab: Array  # 0 or 1
    mma_rate: Array  # share of the matrix unit's rate
    shared_bytes: Array

    @classmethod
    def of(cls, configs: Sequence[TileConfig], quant: QuantScheme, spec: DeviceSpec) -> Self:
        """The columns of ``configs`` in their order."""
        rows = np.array([_constants(config, quant, spec) for config in configs], dtype=np.float64)
        return cls(*rows.reshape(-1, 10).T)


@dataclass(frozen=True)
class Launches:
    """What configs make of a problem: each a column of shape [configs]."""

    tiles_m: Array
    blocks: Array  # of the whole grid, splits included
    steps: Array  # of K, of one block
    registers: Array  # a thread's, with the product of a step beside the accumulators
    resident: Array  # blocks that fit on a unit at a time, at least 1

    @classmethod
    def of(cls, problem: Problem, configs: ConfigArrays, spec: DeviceSpec) -> Self:
        """The launches of ``configs`` on a device with the limits of ``spec``."""
        shape = problem.shape
        threads = configs.num_warps * spec.warp_size
        # The accumulator and the product of this step, which the scales multiply, are live together.
        registers = 2 * configs.block_m * configs.block_n / threads + ADDRESS_REGISTERS
        shared = max(spec.shared_memory_per_unit, spec.shared_memory_bytes)
        resident = np.minimum(
            spec.registers_per_unit // (np.minimum(registers, REGISTERS_PER_THREAD) * threads),
            np.minimum(shared // configs.shared_bytes, THREADS_PER_UNIT // threads),
        )
        tiles_m = np.ceil(shape.M / configs.block_m)
        return cls(
            tiles_m=tiles_m,
            blocks=tiles_m * np.ceil(shape.N / configs.block_n) * configs.split_k,
            steps=np.ceil(np.ceil(shape.K / configs.block_k) / configs.split_k),
            registers=registers,
            resident=np.maximum(1, resident),
        )


def analytic_us(problem: Problem, configs: ConfigArrays, spec: DeviceSpec) -> Array:
    """Roughly how long one launch of each config takes, in µs, with cold caches and the split-K reduction included."""
    peaks = spec.peaks or UNKNOWN_PEAKS
    shape = problem.shape
    threads = configs.num_warps * spec.warp_size
    elements = configs.block_m * configs.block_n
    launches = Launches.of(problem, configs, spec)

    # What one K step of one block costs its unit, in µs.
    sync = SYNC_US_PER_WARP * configs.num_warps
    rate = peaks.tflops_8bit * 1e6 / spec.compute_units * configs.mma_rate  # operations a µs of one unit
    matrix = 2 * elements * configs.block_k / rate
    # The product of both scales, then the FMA.
    scaling = 2 * elements / np.minimum(FP32_LANES, threads) / (CLOCK_GHZ * 1e3)
    l2_rate = L2_BYTES_PER_CYCLE * CLOCK_GHZ * 1e3  # bytes a µs of one unit
    traffic = (configs.block_m + configs.block_n) * configs.block_k / l2_rate
    # Matrix instructions need whole tiles in registers: where two do not fit, one goes out and comes back each step.
    spill = 2 * 4 * elements / (LOCAL_MEMORY_BYTES_PER_CYCLE * CLOCK_GHZ * 1e3)
    spill = np.where(launches.registers > REGISTERS_PER_THREAD, spill, 0.0)

    per_unit = np.ceil(launches.blocks / spec.compute_units)
    together = np.minimum(per_unit, launches.resident)
    # Blocks of one unit hide each other's latency, a round of them after the other, but all share its pipes.
    pipes = np.maximum(np.maximum(matrix, scaling), np.maximum(traffic, spill))
    load = LOAD_LATENCY_US / np.maximum(configs.num_stages - 1, 1)
    latency = np.maximum(sync + matrix + scaling + spill, load)
    rounds = np.ceil(per_unit / together)
    loop = np.maximum(
        rounds * (LOAD_LATENCY_US + launches.steps * latency), LOAD_LATENCY_US + per_unit * launches.steps * pipes
    )
    memory = problem.bytes_moved / peaks.bandwidth_gb_s / 1e3
    partial_bytes = 4 * shape.M * shape.N * configs.split_k
    reduction = REDUCTION_LAUNCH_US + 2 * partial_bytes / (l2_rate * spec.compute_units)
    return LAUNCH_US + np.maximum(loop, memory) + np.where(configs.split_k > 1, reduction, 0.0)


def must_spill(config: TileConfig, spec: DeviceSpec) -> bool:
    """Whether the accumulators alone exceed what a thread can hold.

    Such configs run, five times slower and more, and the compiler takes 2 to 15 s over each instead of half a second.
    """
    return config.block_m * config.block_n > REGISTERS_PER_THREAD * config.num_warps * spec.warp_size
