"""SGLang: what its block-scaled GEMM reads, runs and gets wrong, by version.

Versions were read in the published wheels: what a constant names is in that version and not in the one before.
"""

from __future__ import annotations

from typing import ClassVar

from blockscale.engines.base import Engine, register
from blockscale.engines.rules import (
    RESTART_NOTE,
    ROUTED_EXPERTS_NOTE,
    block_k_divides,
    compile_options,
    fp8_refusal,
)
from blockscale.hardware import DeviceSpec, Vendor
from blockscale.problem import LARGEST_OFFSET, Kernel, Problem, QuantFormat, QuantScheme, TileConfig, WeightShape
from blockscale.space import Clause, launch_grid

# The kernel masks K on demand and steps the scales by BLOCK_SIZE_K // block_k groups a tile, which is none when
# BLOCK_SIZE_K is smaller: the first scale then serves all of K (sgl-project/sglang#14141).
FIRST_STEPPING_WHOLE_GROUPS = "0.5.6.post1"
FIRST_STEPPING_WITHIN_GROUPS = "0.5.10"  # one group every block_k // BLOCK_SIZE_K tiles (#20819)
FIRST_RAISING_BLOCK_K = "0.5.12"  # the FP8 loader raises a BLOCK_SIZE_K below block_k, on whatever device
FIRST_SPARING_DIVISORS = "0.5.14"  # on CUDA only one that does not divide block_k
FIRST_WITH_GFX1250 = "0.5.19"  # a kernel of its own, launched with one stage
FIRST_WITH_HOPPER = "0.5.21"  # SWAP_AB and SPLIT_K
# Not yet in 0.5.23: on CUDA a tile may take several groups along K, on a kernel of its own without SWAP_AB and SPLIT_K.
FIRST_TAKING_SEVERAL_GROUPS = "main"
_GROUPS_OF_SEVERAL = (32, 64, 128)
_TILES_OF_SEVERAL = (64, 128, 256)
# The test for the unrolled AMD kernel has no return statement up to 0.5.23: serving never takes it (#37682, open).
FIRST_DISPATCHING_UNROLLED: str | None = None


@register
class SGLang(Engine):
    """One version of SGLang."""

    name: ClassVar[str] = "sglang"
    newest: ClassVar[str] = "0.5.23"
    default_num_stages: ClassVar[int] = 3
    loaders: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kernels/ops/gemm/fp8_kernel.py", "kernels/ops/gemm/configs"),  # from 0.5.21
        ("kernels/ops/quantization/fp8_kernel.py", "kernels/ops/quantization/configs"),  # from 0.5.16
        ("srt/layers/quantization/fp8_kernel.py", "srt/layers/quantization/configs"),
    )

    def file_name(self, weight: WeightShape, quant: QuantScheme, device_name: str) -> str:
        """As ``Engine.file_name``; one space in the block shape."""
        device = device_name.replace(" ", "_")
        block = f"[{quant.block_n}, {quant.block_k}]"
        return f"N={weight.N},K={weight.K},device_name={device},dtype={quant.dtype_tag},block_shape={block}.json"

    def refusal(self, quant: QuantScheme, spec: DeviceSpec) -> str | None:
        """As ``Engine.refusal``."""
        reason = fp8_refusal(quant, spec)
        return f"{reason}: choose --input-type int8, or another GPU" if reason else None

    def takes_swap_split(self, spec: DeviceSpec) -> bool:
        """As ``Engine.takes_swap_split``: the Hopper kernel is picked on SM90 alone."""
        return spec.compute_capability == 90 and self.since(FIRST_WITH_HOPPER)

    def clauses(self, problem: Problem, spec: DeviceSpec) -> tuple[Clause, ...]:
        """As ``Engine.clauses``."""
        return self._scales_clause(problem, spec), self._swap_split_clause(problem, spec), compile_options(spec)

    def _scales_clause(self, problem: Problem, spec: DeviceSpec) -> Clause:
        group = problem.quant.block_k
        if self._raises_block_k(problem.quant, spec):
            because = f"the loader of {self} raises a smaller one, so another config would run"
        elif self._steps_whole_groups(problem.quant):
            because = f"{self} reads wrong scales for any other"
        else:
            return Clause("scales", block_k_divides)

        def only_block_k(problem: Problem, config: TileConfig) -> str | None:
            if config.block_k == group:
                return None
            return f"BLOCK_SIZE_K = {config.block_k} is not block_k = {group}: {because}"

        return Clause("scales", only_block_k)

    def _swap_split_clause(self, problem: Problem, spec: DeviceSpec) -> Clause:
        taken = problem.quant.format is QuantFormat.FP8 and self.takes_swap_split(spec)

        def check(problem: Problem, config: TileConfig) -> str | None:
            if not config.has_swap_split:
                return None
            if not taken:
                return (
                    f"SWAP_AB and SPLIT_K are taken for FP8 on SM90 from {self.name} {FIRST_WITH_HOPPER} on, not by "
                    f"{self} for {problem.quant.format} on {spec.arch}"
                )
            if config.split_k & (config.split_k - 1):
                return f"SPLIT_K = {config.split_k} is no power of two, which the launch asserts"
            # Partial sums are addressed with 32-bit offsets: split · M · N.
            if config.split_k * problem.shape.M * problem.shape.N > LARGEST_OFFSET:
                return f"SPLIT_K·M·N = {config.split_k * problem.shape.M * problem.shape.N} exceeds 32-bit offsets"
            return None

        return Clause("swap and split", check)

    def kernel_for(self, problem: Problem, config: TileConfig, spec: DeviceSpec) -> Kernel:
        """As ``Engine.kernel_for``."""
        if problem.quant.format is QuantFormat.INT8:
            return Kernel.INT8
        if self.takes_swap_split(spec) and config.has_swap_split:
            return Kernel.FP8_HOPPER
        if self._dispatches_unrolled(spec):
            blocks = launch_grid(problem, self.effective_config(problem, config, spec)).blocks
            if blocks <= spec.compute_units:
                return Kernel.FP8_UNROLLED_X4
        return Kernel.FP8

    def effective_config(self, problem: Problem, config: TileConfig, spec: DeviceSpec) -> TileConfig:
        """As ``Engine.effective_config``."""
        if problem.quant.format is QuantFormat.INT8:
            return config
        on_cuda = spec.vendor is Vendor.CUDA
        loaded = self.loaded_block_k(problem.quant, config.block_k, on_cuda=on_cuda)
        if loaded != config.block_k:
            config = config.with_(block_k=loaded)
        if spec.arch == "gfx1250" and self.since(FIRST_WITH_GFX1250):
            config = config.with_(num_stages=1)
        return config

    def loaded_block_k(self, quant: QuantScheme, block_k: int, *, on_cuda: bool) -> int:
        """As ``Engine.loaded_block_k``: the FP8 loader raises small ones."""
        raises = quant.format is QuantFormat.FP8 and self.since(FIRST_RAISING_BLOCK_K) and block_k < quant.block_k
        spared = on_cuda and self.since(FIRST_SPARING_DIVISORS) and quant.block_k % block_k == 0
        return quant.block_k if raises and not spared else block_k

    def takes_several_groups(self, quant: QuantScheme, block_k: int, *, on_cuda: bool) -> bool:
        """As ``Engine.takes_several_groups``."""
        fits = quant.block_k in _GROUPS_OF_SEVERAL and block_k in _TILES_OF_SEVERAL and block_k > quant.block_k
        return quant.format is QuantFormat.FP8 and on_cuda and fits and self.since(FIRST_TAKING_SEVERAL_GROUPS)

    def divides_for_scales(self, quant: QuantScheme) -> bool:
        """As ``Engine.divides_for_scales``: the INT8 kernel does, the FP8 kernel did before it stepped."""
        return quant.format is QuantFormat.INT8 or not self.since(FIRST_STEPPING_WHOLE_GROUPS)

    def backend_note(self, spec: DeviceSpec, quant: QuantScheme) -> list[str]:
        """As ``Engine.backend_note``."""
        notes: list[str] = []
        if quant.format is QuantFormat.FP8:
            notes.append("These files are read by SGLang's Triton backend: --fp8-gemm-backend triton forces it.")
            if spec.vendor is Vendor.HIP:
                notes.append("AITER comes first where SGLANG_USE_AITER=1 is set.")
            elif spec.compute_capability == 90:
                notes.append(
                    "DeepGEMM outranks Triton on Hopper where it is installed (SGLANG_ENABLE_JIT_DEEPGEMM=0 turns it "
                    "off), and it is faster at M ≥ 128 today: measure your load before you force Triton."
                )
            elif spec.compute_capability >= 100:
                notes.append("DeepGEMM, FlashInfer and, on SM120, CUTLASS outrank Triton on Blackwell.")
        notes.append(RESTART_NOTE)
        tuner = "benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py"
        notes.append(ROUTED_EXPERTS_NOTE.format(engine="SGLang", tuner=tuner))
        return notes

    def _unknown_fields(self, config: TileConfig) -> str | None:
        if not config.has_swap_split or self.since(FIRST_WITH_HOPPER):
            return None
        return f"SWAP_AB and SPLIT_K are taken from {FIRST_WITH_HOPPER} on"

    def _raises_block_k(self, quant: QuantScheme, spec: DeviceSpec) -> bool:
        """Whether the loader leaves no BLOCK_SIZE_K below block_k; the INT8 loader changes nothing."""
        raises = quant.format is QuantFormat.FP8 and self.since(FIRST_RAISING_BLOCK_K)
        return raises and (spec.vendor is Vendor.HIP or not self.since(FIRST_SPARING_DIVISORS))

    def _steps_whole_groups(self, quant: QuantScheme) -> bool:
        """Whether the FP8 kernel steps whole groups a tile; the INT8 kernel always finds the scale by division."""
        if quant.format is QuantFormat.INT8:
            return False
        return self.since(FIRST_STEPPING_WHOLE_GROUPS) and not self.since(FIRST_STEPPING_WITHIN_GROUPS)

    def _dispatches_unrolled(self, spec: DeviceSpec) -> bool:
        return spec.vendor is Vendor.HIP and self.since(FIRST_DISPATCHING_UNROLLED)
