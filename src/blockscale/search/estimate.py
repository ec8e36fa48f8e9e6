"""A rough clock for a config that nothing has been measured of: waves, bytes, stages, matrix instructions.

It orders starting points and neighbours, and decides nothing: what counts is measured. Its constants are rounded
properties of GPUs of the last years; the cost of a barrier and the L2's share were read off one H200.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.hardware import DeviceSpec, Peaks
from blockscale.problem import Problem, TileConfig, ceil_div
from blockscale.space import has_warpgroup_mma, launch_grid, shared_memory_bytes, uses_warpgroup_mma

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
L2_OVER_MEMORY = 2.0  # L2-to-SM bandwidth over that of device memory
FALLBACK_MMA_RATE = 0.5  # of the older mma, where too few rows rule a warpgroup's instruction out
UNKNOWN_PEAKS = Peaks(bandwidth_gb_s=2000, tflops_8bit=700)


@dataclass(frozen=True, slots=True)
class _Step:
    """What one K step of one block costs its unit, in µs."""

    sync: float
    matrix: float
    scaling: float
    traffic: float
    spill: float

    @property
    def latency(self) -> float:
        return self.sync + self.matrix + self.scaling + self.spill


def estimate_us(problem: Problem, config: TileConfig, spec: DeviceSpec) -> float:
    """Roughly how long one launch takes, in µs, with cold caches and the split-K reduction included."""
    peaks = spec.peaks or UNKNOWN_PEAKS
    step = _step(config, spec, peaks)
    grid = launch_grid(problem, config)
    steps = ceil_div(ceil_div(problem.shape.K, config.block_k), config.split_k)
    per_unit = ceil_div(grid.blocks, spec.compute_units)
    together = min(per_unit, _blocks_per_unit(problem, config, spec))
    # Blocks of one unit hide each other's latency, but share its pipes.
    round_us = max(
        step.latency,
        LOAD_LATENCY_US / max(config.num_stages - 1, 1),
        together * max(step.matrix, step.scaling, step.traffic, step.spill),
    )
    rounds = ceil_div(per_unit, together)
    loop_us = rounds * (LOAD_LATENCY_US + steps * round_us)
    memory_us = problem.bytes_moved / peaks.bandwidth_gb_s / 1e3
    return LAUNCH_US + max(loop_us, memory_us) + _reduction_us(problem, config, peaks)


def _step(config: TileConfig, spec: DeviceSpec, peaks: Peaks) -> _Step:
    rate = peaks.tflops_8bit * 1e6 / spec.compute_units  # operations a µs of one unit
    if has_warpgroup_mma(spec) and not uses_warpgroup_mma(config, spec):
        rate *= FALLBACK_MMA_RATE
    elements = config.block_m * config.block_n
    lanes = min(FP32_LANES, config.num_warps * spec.warp_size)
    return _Step(
        sync=SYNC_US_PER_WARP * config.num_warps,
        matrix=2 * elements * config.block_k / rate,
        scaling=2 * elements / lanes / (CLOCK_GHZ * 1e3),  # the product of both scales, then the FMA
        traffic=(config.block_m + config.block_n)
        * config.block_k
        / (L2_OVER_MEMORY * peaks.bandwidth_gb_s * 1e3 / spec.compute_units),
        spill=_spill_us(config, spec),
    )


def _registers_per_thread(config: TileConfig, spec: DeviceSpec) -> int:
    # The accumulator and the product of this step, which the scales multiply, are live together.
    return 2 * config.block_m * config.block_n // (config.num_warps * spec.warp_size) + ADDRESS_REGISTERS


def _spill_us(config: TileConfig, spec: DeviceSpec) -> float:
    if _registers_per_thread(config, spec) <= REGISTERS_PER_THREAD:
        return 0.0
    # Matrix instructions need whole tiles in registers: where two do not fit, one goes out and comes back each step.
    tile_bytes = 4 * config.block_m * config.block_n
    return 2 * tile_bytes / (LOCAL_MEMORY_BYTES_PER_CYCLE * CLOCK_GHZ * 1e3)


def must_spill(config: TileConfig, spec: DeviceSpec) -> bool:
    """Whether the accumulators alone exceed what a thread can hold.

    Such configs run, five times slower and more, and the compiler takes 2 to 15 s over each instead of half a second.
    """
    return config.block_m * config.block_n > REGISTERS_PER_THREAD * config.num_warps * spec.warp_size


def _blocks_per_unit(problem: Problem, config: TileConfig, spec: DeviceSpec) -> int:
    threads = config.num_warps * spec.warp_size
    registers = min(_registers_per_thread(config, spec), REGISTERS_PER_THREAD) * threads
    shared = max(shared_memory_bytes(problem, config, spec), 1)
    return max(
        1,
        min(spec.registers_per_unit // registers, spec.shared_memory_bytes // shared, THREADS_PER_UNIT // threads),
    )


def _reduction_us(problem: Problem, config: TileConfig, peaks: Peaks) -> float:
    if config.split_k == 1:
        return 0.0
    partial_bytes = 4 * problem.shape.M * problem.shape.N * config.split_k
    return REDUCTION_LAUNCH_US + 2 * partial_bytes / (L2_OVER_MEMORY * peaks.bandwidth_gb_s * 1e3)
