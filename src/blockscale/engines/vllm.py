"""vLLM: what its block-scaled GEMM reads and runs, by version."""

from __future__ import annotations

import re
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
from blockscale.problem import Kernel, Problem, QuantFormat, QuantScheme, TileConfig, WeightShape
from blockscale.space import Clause

# Slashes and runs of white space in device names become one underscore. Seen in 0.27, perhaps older; the names of
# NVIDIA GPUs come out the same under both rules.
FIRST_COLLAPSING_NAMES = "0.27.0"


@register
class VLLM(Engine):
    """One version of vLLM."""

    name: ClassVar[str] = "vllm"
    newest: ClassVar[str] = "0.33.0"
    default_num_stages: ClassVar[int] = 2
    loaders: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "model_executor/layers/quantization/utils/fp8_utils.py",
            "model_executor/layers/quantization/utils/configs",
        ),
    )

    def file_name(self, weight: WeightShape, quant: QuantScheme, device_name: str) -> str:
        """As ``Engine.file_name``; no space in the block shape."""
        if self.since(FIRST_COLLAPSING_NAMES):
            device = re.sub(r"[\s/]+", "_", device_name)
        else:
            device = device_name.replace(" ", "_")
        block = f"[{quant.block_n},{quant.block_k}]"
        return f"N={weight.N},K={weight.K},device_name={device},dtype={quant.dtype_tag},block_shape={block}.json"

    def refusal(self, quant: QuantScheme, spec: DeviceSpec) -> str | None:
        """As ``Engine.refusal``."""
        if quant.format is QuantFormat.INT8:
            return "vLLM runs no block-scaled INT8 GEMM, so nothing would read the file: choose --engine sglang"
        reason = fp8_refusal(quant, spec)
        return f"{reason}: choose another GPU, or --engine sglang --input-type int8" if reason else None

    def takes_swap_split(self, spec: DeviceSpec) -> bool:
        """As ``Engine.takes_swap_split``: its kernel has neither."""
        return False

    def clauses(self, problem: Problem, spec: DeviceSpec) -> tuple[Clause, ...]:
        """As ``Engine.clauses``."""
        fields = Clause("swap and split", lambda _, config: self._unknown_fields(config))
        return Clause("scales", block_k_divides), fields, compile_options(spec)

    def kernel_for(self, problem: Problem, config: TileConfig, spec: DeviceSpec) -> Kernel:
        """As ``Engine.kernel_for``: one kernel, which masks every K tile.

        Raises:
            ValueError: the problem is INT8, which ``refusal`` refuses.
        """
        if problem.quant.format is QuantFormat.INT8:
            raise ValueError("vLLM has no block-scaled INT8 kernel")
        return Kernel.FP8_MASKED

    def backend_note(self, spec: DeviceSpec, quant: QuantScheme) -> list[str]:
        """As ``Engine.backend_note``."""
        notes = ["These files are read by vLLM's Triton kernel: --linear-backend triton forces it."]
        if spec.vendor is Vendor.HIP:
            notes.append("AITER, and on RDNA4 a HIP kernel, outrank Triton on ROCm.")
        elif spec.compute_capability == 90:
            notes.append(
                "DeepGEMM, then CUTLASS, outrank Triton on Hopper where they are installed, and DeepGEMM is faster at "
                "M ≥ 128 today: measure your load before you force Triton."
            )
        else:
            notes.append("FlashInfer, DeepGEMM, CUTLASS and Marlin outrank Triton where they support the GPU.")
        notes.append("VLLM_BATCH_INVARIANT turns tuned files off.")
        notes.append(RESTART_NOTE)
        notes.append(ROUTED_EXPERTS_NOTE.format(engine="vLLM", tuner="benchmarks/kernels/benchmark_moe.py"))
        return notes

    def _unknown_fields(self, config: TileConfig) -> str | None:
        fields = [name for name, used in (("SWAP_AB", config.swap_ab), ("SPLIT_K", config.split_k > 1)) if used]
        return f"{' and '.join(fields)}: vLLM's kernel has no such argument and its launch fails" if fields else None
