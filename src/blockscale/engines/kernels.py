"""Which kernels each engine version launches, where they stand in its package, and whose a run times.

The contracts were read in the published wheels of SGLang 0.5.5 to 0.5.23 and vLLM 0.9.0 to 0.33.0 (autumn 2026). What
is installed is held against them: module, function and argument names, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from blockscale.engines.base import Engine
from blockscale.engines.sglang import (
    FIRST_DISPATCHING_UNROLLED,
    FIRST_STEPPING_WHOLE_GROUPS,
    FIRST_WITH_GFX1250,
    FIRST_WITH_HOPPER,
)
from blockscale.kernels.installed import (
    FunctionContract,
    KernelContract,
    KernelSource,
    PackageKernels,
    UnavailableError,
    find_in_package,
    refusal,
)
from blockscale.problem import Kernel, QuantFormat

# What every GEMM takes first, by position (both engines, all versions read).
_OPERANDS = (
    "A", "B", "C", "As", "Bs", "M", "N", "K", "group_n", "group_k",
    "stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn",
    "stride_As_m", "stride_As_k", "stride_Bs_k", "stride_Bs_n",
)  # fmt: skip
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
_PLAIN = (*_OPERANDS, *_TILE)
_MASKED_ON_DEMAND = (*_PLAIN, "needs_masking")

# SGLang's folder of the modules fp8_kernel and int8_kernel, newest first.
_SGLANG_FOLDERS = (
    ("0.5.21", "kernels/ops/gemm"),
    ("0.5.16", "kernels/ops/quantization"),
    ("0", "srt/layers/quantization"),
)
_VLLM_MODULE = "model_executor/layers/quantization/utils/fp8_utils.py"
_VLLM_FIRST_RENAMED = "0.11.1"  # _w8a8_block_fp8_matmul before


class KernelChoice(StrEnum):
    """Whose kernels a person wants to have timed."""

    AUTO = "auto"  # the engine's where it is installed as expected, else ours
    OWN = "own"
    ENGINE = "engine"


def kernels_of(of: Engine, quant_format: QuantFormat) -> PackageKernels:
    """All that this engine version launches for block-scaled GEMMs of the format; nothing for one that it has not."""
    return PackageKernels(of.name, of.version, tuple(_CONTRACTS[of.name](of, quant_format)))


def _sglang(of: Engine, quant_format: QuantFormat) -> Iterator[KernelContract]:
    folder = next(folder for since, folder in _SGLANG_FOLDERS if of.since(since))
    if quant_format is QuantFormat.INT8:
        module = f"{folder}/int8_kernel.py"
        yield KernelContract(Kernel.INT8, FunctionContract(module, "_w8a8_block_int8_matmul", _PLAIN))
        return
    module = f"{folder}/fp8_kernel.py"
    # The same pull request brought needs_masking and the whole steps (sgl-project/sglang#14141).
    plain = _MASKED_ON_DEMAND if of.since(FIRST_STEPPING_WHOLE_GROUPS) else _PLAIN
    yield KernelContract(Kernel.FP8, FunctionContract(module, "_w8a8_block_fp8_matmul", plain))
    if of.since(FIRST_WITH_GFX1250):
        gfx1250 = FunctionContract(module, "_w8a8_block_fp8_matmul_gfx1250", plain)
        yield KernelContract(Kernel.FP8, gfx1250, arch="gfx1250")
    if of.since(FIRST_DISPATCHING_UNROLLED):
        unrolled = FunctionContract(module, "_w8a8_block_fp8_matmul_unrolledx4", plain)
        yield KernelContract(Kernel.FP8_UNROLLED_X4, unrolled)
    if of.since(FIRST_WITH_HOPPER):
        hopper = FunctionContract(module, "_w8a8_block_fp8_matmul_hopper", (*plain, "SWAP_AB", "SPLIT_K"))
        added = ("Parts", "Out", "ELEMENTS", "SPLITS", "BLOCK")
        reduction = FunctionContract(module, "_reduce_block_fp8_split_k", added)
        yield KernelContract(Kernel.FP8_HOPPER, hopper, reduction)


def _vllm(of: Engine, quant_format: QuantFormat) -> Iterator[KernelContract]:
    if quant_format is QuantFormat.FP8:
        name = "_w8a8_triton_block_scaled_mm" if of.since(_VLLM_FIRST_RENAMED) else "_w8a8_block_fp8_matmul"
        yield KernelContract(Kernel.FP8_MASKED, FunctionContract(_VLLM_MODULE, name, _PLAIN))


_CONTRACTS = {"sglang": _sglang, "vllm": _vllm}


def choose_kernels(
    choice: KernelChoice, engines: Sequence[Engine], quant_format: QuantFormat
) -> tuple[KernelSource, list[str]]:
    """The source of kernels for tuning files of these engines, and a note for each whose own kernels are not used.

    Raises:
        InputError: the engines' kernels were demanded and one engine's cannot be had.
    """
    chosen: list[PackageKernels] = []
    notes: list[str] = []
    for of in () if choice is KernelChoice.OWN else engines:
        wanted = kernels_of(of, quant_format)
        if not wanted.kernels:
            continue
        try:
            find_in_package(wanted)
        except UnavailableError as error:
            if choice is KernelChoice.ENGINE:
                raise refusal(wanted, error) from error
            notes.append(f"blockscale's own kernel is timed, which stands for that of {of}: {error}.")
        else:
            chosen.append(wanted)
    return KernelSource(tuple(sorted(chosen, key=str))), notes
