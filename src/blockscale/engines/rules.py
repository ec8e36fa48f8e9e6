"""Rules of legality and use that several engines share."""

from __future__ import annotations

from blockscale.hardware import DeviceSpec, Vendor
from blockscale.problem import Problem, QuantFormat, QuantScheme, TileConfig
from blockscale.space import Clause

_AMD_FIELDS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


def block_k_divides(problem: Problem, config: TileConfig) -> str | None:
    """Reason when BLOCK_SIZE_K does not divide block_k: the kernels take one scale a K tile."""
    group = problem.quant.block_k
    if group % config.block_k == 0:
        return None
    return f"BLOCK_SIZE_K = {config.block_k} does not divide block_k = {group}: a K tile would need several scales"


def compile_options(spec: DeviceSpec) -> Clause:
    """Clause on fields that the launch hands on to the compiler, which fails on those it does not know."""

    def check(problem: Problem, config: TileConfig) -> str | None:
        unknown = [name for name, _ in config.extra]
        if spec.vendor is Vendor.CUDA:
            unknown += [name for name in _AMD_FIELDS if getattr(config, name) is not None]
        if not unknown:
            return None
        return f"{', '.join(unknown)}: the launch fails on a field that the compiler for {spec.arch} does not know"

    return Clause("compile options", check)


def fp8_refusal(quant: QuantScheme, spec: DeviceSpec) -> str | None:
    """Reason when FP8 is asked of a device without an FP8 format that Triton compiles."""
    if quant.format is not QuantFormat.FP8 or spec.supports_fp8:
        return None
    return f"{spec.name} ({spec.arch}) has no FP8, which SM89 and gfx94x brought"


ROUTED_EXPERTS_NOTE = (
    "Routed experts run on a fused kernel with files of its own: tune them with the MoE tuner of {engine} "
    "({tuner}); these files do not reach them."
)
RESTART_NOTE = "A running server keeps the configs it looked up first: restart it to use these."
