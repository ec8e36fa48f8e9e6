"""Legality: what a device can run, one clause a rule, each with its reason in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blockscale.hardware import DeviceSpec
from blockscale.problem import Problem, QuantFormat, QuantScheme, TileConfig, ceil_div

_WARPGROUP_ROWS = 64
_WARPGROUP_WARPS = 4


@dataclass(frozen=True)
class Clause:
    """One rule of legality. ``check`` gives the reason why a config breaks the rule, None where it keeps it."""

    name: str
    check: Callable[[Problem, TileConfig], str | None]


def shared_memory_bytes(quant: QuantScheme, config: TileConfig, spec: DeviceSpec) -> int:
    """Shared memory that one block of the kernel asks for, in bytes, for 8-bit operands.

    Buffers for the operands of a K step, counted as Triton 3.9 allocates them when it compiles the kernel for sm_89,
    sm_90, sm_100, sm_120 and gfx942 (``metadata.shared``): ``num_stages`` where a warpgroup's instruction reads both
    operands from shared memory; one fewer where they pass through registers, as the last stage is there. A single
    stage loads nothing ahead, and its operands may share one buffer: the smaller one is all that is certain. The
    scales' buffers (some KiB at most) are left out, so that no config is asked for more than it needs to run.
    """
    if config.num_stages == 1:
        return min(config.block_m, config.block_n) * config.block_k
    # INT8 has no tcgen05 instruction on SM103 (nor in Triton 3.6 on SM100) and falls back to the older one there.
    falls_back = quant.format is QuantFormat.INT8 and spec.compute_capability >= 100
    from_shared = uses_warpgroup_mma(config, spec) and not falls_back
    buffers = config.num_stages if from_shared else config.num_stages - 1
    return buffers * (config.block_m + config.block_n) * config.block_k


def has_warpgroup_mma(spec: DeviceSpec) -> bool:
    """Whether the device has wgmma (SM90) or tcgen05 (SM100 and kin); consumer Blackwell (SM120) has neither."""
    return 90 <= spec.compute_capability < 120


def uses_warpgroup_mma(config: TileConfig, spec: DeviceSpec) -> bool:
    """Whether Triton compiles the dot to a warpgroup's instruction: four warps that share 64 rows of the first operand.

    A smaller dot falls back to the older instruction.
    """
    rows = config.block_n if config.swap_ab else config.block_m
    return has_warpgroup_mma(spec) and rows >= _WARPGROUP_ROWS and config.num_warps >= _WARPGROUP_WARPS


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _check_values(problem: Problem, config: TileConfig) -> str | None:
    # tl.arange takes powers of two only; the warps of a block and the split-K reduction halve in steps as well.
    for key, value in (
        ("BLOCK_SIZE_M", config.block_m),
        ("BLOCK_SIZE_N", config.block_n),
        ("BLOCK_SIZE_K", config.block_k),
        ("num_warps", config.num_warps),
        ("SPLIT_K", config.split_k),
    ):
        if not _is_power_of_two(value):
            return f"{key} = {value} is no positive power of two"
    for key, value in (("GROUP_SIZE_M", config.group_m), ("num_stages", config.num_stages)):
        if value < 1:
            return f"{key} = {value} is not positive"
    return None


def _check_dot(problem: Problem, config: TileConfig) -> str | None:
    # The smallest 8-bit matrix instructions: m16n8k32 on NVIDIA, 16×16×32 on AMD. Triton swaps the operands' places at
    # will (SWAP_AB does so by hand), so 16 holds for M and N alike.
    if config.block_k < 32:
        return f"BLOCK_SIZE_K = {config.block_k} is below 32, the depth of one 8-bit matrix instruction"
    if min(config.block_m, config.block_n) < 16:
        return f"a tile of {config.block_m}×{config.block_n} is below 16×16, the size of one 8-bit matrix instruction"
    return None


def _check_split(problem: Problem, config: TileConfig) -> str | None:
    k_tiles = ceil_div(problem.shape.K, config.block_k)
    if config.split_k > k_tiles:
        return f"SPLIT_K = {config.split_k} leaves splits idle: K = {problem.shape.K} has {k_tiles} tiles"
    return None


def hardware_clauses(spec: DeviceSpec) -> tuple[Clause, ...]:
    """What any kernel asks of this device, cheapest check first. A config that passes may still fail to compile."""

    def check_threads(problem: Problem, config: TileConfig) -> str | None:
        threads = config.num_warps * spec.warp_size
        if threads > spec.max_threads_per_block:
            return f"{threads} threads exceed the {spec.max_threads_per_block} that a block may have on {spec.name}"
        return None

    def check_registers(problem: Problem, config: TileConfig) -> str | None:
        # The accumulator is float32 in registers, one a tile element, and a block lives on one unit. A full file
        # (256×256 on 65,536) spills but runs.
        accumulator = config.block_m * config.block_n
        if accumulator > spec.registers_per_unit:
            return f"an accumulator of {accumulator} floats exceeds the {spec.registers_per_unit} registers of a unit"
        return None

    def check_shared_memory(problem: Problem, config: TileConfig) -> str | None:
        needed = shared_memory_bytes(problem.quant, config, spec)
        if needed > spec.shared_memory_bytes:
            return f"{needed} bytes of shared memory exceed the {spec.shared_memory_bytes} of {spec.name}"
        return None

    return (
        Clause("values", _check_values),
        Clause("matrix instruction", _check_dot),
        Clause("threads", check_threads),
        Clause("registers", check_registers),
        Clause("split-K", _check_split),
        Clause("shared memory", check_shared_memory),
    )
