"""Which kernels each engine version launches, where they stand in the installed package, and taking them from there.

The contracts were read in the published wheels of SGLang 0.5.5 to 0.5.23 and vLLM 0.9.0 to 0.33.0 (autumn 2026). What
is installed is held against them: module, function and argument names, in order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from blockscale.engines.base import Engine, engine
from blockscale.engines.sglang import (
    FIRST_DISPATCHING_UNROLLED,
    FIRST_STEPPING_WHOLE_GROUPS,
    FIRST_WITH_GFX1250,
    FIRST_WITH_HOPPER,
)
from blockscale.errors import InputError
from blockscale.kernels.extract import Extract, ExtractionError, extract
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


@dataclass(frozen=True, slots=True)
class FunctionContract:
    """One ``@triton.jit`` function: its module's path in the package, its name, and its parameters in order."""

    module: str
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelContract:
    """What an engine launches for one of our kernels; ``arch`` where it does so on that architecture alone.

    ``reduction`` adds the partial sums of a split K. It takes (partials, C, M·N, SPLIT_K, elements a program).
    """

    kernel: Kernel
    gemm: FunctionContract
    reduction: FunctionContract | None = None
    arch: str | None = None


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Whose kernels are compiled and measured: those of each engine (name, version) named, and ours for all others.

    A plain value: every process finds the functions by it in the package that is installed where it runs.
    """

    engines: tuple[tuple[str, str], ...] = ()
    format: QuantFormat = QuantFormat.FP8

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.engines) or "blockscale"


OWN = KernelSource()


@dataclass(frozen=True, slots=True)
class FoundFunction:
    """A function of a contract as it stands in the installed package; ``module`` is its dotted name."""

    taken: Extract
    module: str
    file: Path


@dataclass(frozen=True, slots=True)
class FoundKernel:
    """A contract's functions, found; ``engine`` is the engine's name."""

    engine: str
    kernel: Kernel
    arch: str | None
    gemm: FoundFunction
    reduction: FoundFunction | None


def contracts(of: Engine, quant_format: QuantFormat) -> tuple[KernelContract, ...]:
    """All that this engine version launches for block-scaled GEMMs of the format; nothing for one that it has not."""
    return tuple(_CONTRACTS[of.name](of, quant_format))


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


def find_kernels(source: KernelSource) -> tuple[FoundKernel, ...]:
    """Every kernel of the source, in the packages that this process sees; nothing of them is imported.

    Raises:
        InputError: an engine is not installed in that version, or has not what its contract says.
    """
    found: list[FoundKernel] = []
    for name, version in source.engines:
        of = engine(name, version)
        try:
            found += _find_all(of, source.format)
        except _UnavailableError as error:
            raise _refused(of, error) from error
    return tuple(found)


class _UnavailableError(Exception):
    """Why an engine's kernels cannot be had, as the middle of a sentence."""


def _find_all(of: Engine, quant_format: QuantFormat) -> Iterator[FoundKernel]:
    launched = contracts(of, quant_format)
    if not launched:
        return
    installed = of.installed()
    if installed is None:
        raise _UnavailableError(f"{of.name} is not installed here")
    if installed.version != of.version:
        raise _UnavailableError(f"{of.name} is installed here as {installed.version}")
    for contract in launched:
        gemm = _find(of, contract.gemm)
        reduction = _find(of, contract.reduction) if contract.reduction else None
        yield FoundKernel(of.name, contract.kernel, contract.arch, gemm, reduction)


def _find(of: Engine, contract: FunctionContract) -> FoundFunction:
    inner = PurePosixPath(of.name, contract.module)
    spec = importlib.util.find_spec(of.name)
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    file = next((root / contract.module for root in roots if (root / contract.module).is_file()), None)
    try:
        if file is None:
            raise ExtractionError("there is no such module")
        taken = extract(file, contract.name)
        if taken.arguments != contract.arguments:
            raise ExtractionError(_difference(taken.arguments, contract.arguments))
    except ExtractionError as error:
        raise _UnavailableError(
            f"{contract.name} is not in {inner} as {of.version} is known to have it ({error})"
        ) from error
    return FoundFunction(taken, ".".join(inner.with_suffix("").parts), file)


def _difference(found: Sequence[str], expected: Sequence[str]) -> str:
    """How a function's parameters differ from the contract's, in words."""
    parts = []
    if more := [name for name in found if name not in expected]:
        parts.append(f"takes {', '.join(more)} besides")
    if missing := [name for name in expected if name not in found]:
        parts.append(f"does not take {', '.join(missing)}")
    return f"it {' and '.join(parts)}" if parts else "it takes its arguments in another order"


def choose_kernels(
    choice: KernelChoice, engines: Sequence[Engine], quant_format: QuantFormat
) -> tuple[KernelSource, list[str]]:
    """The source of kernels for tuning files of these engines, and a note for each whose own kernels are not used.

    Raises:
        InputError: the engines' kernels were demanded and one engine's cannot be had.
    """
    if choice is KernelChoice.OWN:
        return OWN, []
    chosen: list[tuple[str, str]] = []
    notes: list[str] = []
    for of in engines:
        try:
            if list(_find_all(of, quant_format)):
                chosen.append((of.name, of.version))
        except _UnavailableError as error:
            if choice is KernelChoice.ENGINE:
                raise _refused(of, error) from error
            notes.append(f"blockscale's own kernel is timed, which stands for that of {of}: {error}.")
    return (KernelSource(tuple(sorted(chosen)), quant_format) if chosen else OWN), notes


def _refused(of: Engine, error: _UnavailableError) -> InputError:
    return InputError(
        f"the kernels of {of} cannot be timed: {error}. Tune for the version that is installed, or take blockscale's "
        "own kernels with --kernels own."
    )
