"""From a problem and a candidate to launches. Compiling ahead and launching share one description of the arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.compiler import CompiledKernel

from blockscale.kernels.fp8 import fp8_gemm, fp8_gemm_masked
from blockscale.kernels.fp8_hopper import fp8_gemm_hopper, sum_splits
from blockscale.kernels.fp8_unrolled import fp8_gemm_unrolled_x4
from blockscale.kernels.inputs import GemmInputs, element_dtype
from blockscale.kernels.int8 import int8_gemm
from blockscale.kernels.sources import kernel_sources_hash
from blockscale.problem import LARGEST_OFFSET, Candidate, Kernel, Problem, QuantFormat, TileConfig, ceil_div

__all__ = [
    "OWN_FUNCTIONS",
    "KernelFunctions",
    "bind",
    "bind_sets",
    "extra_launch_args",
    "forget_compiled",
    "kernel_sources_hash",
    "refuse_wrong_tensors",
    "warm_up",
    "workspace_bytes",
]


@dataclass(frozen=True)
class KernelFunctions:
    """Triton's functions that launches take: a GEMM for each kernel, and what adds the partial sums of a split K.

    Those of engines take the operands, sizes and strides in the same order as ours, and the reduction (partials, C,
    elements of C, SPLIT_K, elements a program); which of these are compile-time constants is the function's own matter.
    """

    gemms: Mapping[Kernel, Any]
    reduction: Any


OWN_FUNCTIONS = KernelFunctions(
    {
        Kernel.FP8: fp8_gemm,
        Kernel.FP8_MASKED: fp8_gemm_masked,
        Kernel.FP8_UNROLLED_X4: fp8_gemm_unrolled_x4,
        Kernel.FP8_HOPPER: fp8_gemm_hopper,
        Kernel.INT8: int8_gemm,
    },
    sum_splits,
)
_MASK_ON_DEMAND = (Kernel.FP8, Kernel.FP8_UNROLLED_X4, Kernel.FP8_HOPPER)
# Elements of C that one program of the reduction adds, as in SGLang: it is part of what SPLIT_K costs.
_REDUCTION_BLOCK = 256


@dataclass(frozen=True)
class _Operands:
    """Tensors, or in compiling ahead the element types that stand for them."""

    a: Any
    b: Any
    c: Any
    a_scale: Any
    b_scale: Any
    workspace: Any


@dataclass(frozen=True)
class _Launch:
    """One kernel launch but for its tensors: ``pointers`` name the operands that come first among the arguments."""

    function: Any
    grid: tuple[int, int, int]
    pointers: tuple[str, ...]
    numbers: tuple[int, ...]
    options: dict[str, object]

    def of(self, operands: _Operands) -> tuple[Any, ...]:
        """The operands that ``pointers`` names, in order."""
        return tuple(getattr(operands, name) for name in self.pointers)


class _Start:
    """Starts one launch on different tensors: through Triton the first time, straight to the compiled kernel later.

    Triton works out anew for each call which compiled kernel the arguments need, which takes 20 to 30 µs; a call of the
    compiled kernel takes 6 to 9. It is the same one for all sets: their sizes are equal, and all tensors are aligned.
    """

    def __init__(self, launch: _Launch) -> None:
        self.launch = launch
        self._straight: Callable[..., object] | None = None
        self._numbers: tuple[Any, ...] = launch.numbers

    def __call__(self, tensors: tuple[Any, ...]) -> None:
        if self._straight is not None:
            self._straight(*tensors, *self._numbers)
            return
        launch = self.launch
        kernel = launch.function[launch.grid](*tensors, *launch.numbers, **launch.options)
        if isinstance(kernel, CompiledKernel):  # Triton's interpreter gives none
            # A compiled kernel takes its compile-time constants by position, too.
            constants = launch.function.arg_names[len(tensors) + len(launch.numbers) :]
            self._numbers = (*launch.numbers, *(launch.options[name] for name in constants))
            self._straight = kernel[launch.grid]


def extra_launch_args(kernel: Kernel, problem: Problem, config: TileConfig) -> dict[str, object]:
    """Keyword arguments of a launch beyond the tile sizes: what only some kernels take, and compile options.

    ``needs_masking`` reaches the FP8 kernels that mask on demand and no other; options that the config leaves open are
    left out, so that the compiler's default holds.
    """
    extra: dict[str, object] = {}
    if kernel in _MASK_ON_DEMAND:
        extra["needs_masking"] = problem.shape.K % config.block_k != 0
    if kernel is Kernel.FP8_HOPPER:
        extra.update(SWAP_AB=config.swap_ab, SPLIT_K=config.split_k)
    extra.update(num_warps=config.num_warps, num_stages=config.num_stages)
    for option in ("waves_per_eu", "matrix_instr_nonkdim", "kpack"):
        if (value := getattr(config, option)) is not None:
            extra[option] = value
    extra.update((key, json.loads(text)) for key, text in config.extra)
    return extra


def workspace_bytes(problem: Problem, candidate: Candidate) -> int:
    """Bytes of float32 workspace for the partial sums of a launch; 0 where K is not split."""
    splits = candidate.config.split_k
    return 4 * splits * problem.shape.M * problem.shape.N if splits > 1 else 0


def bind(
    problem: Problem,
    candidate: Candidate,
    inputs: GemmInputs,
    out: torch.Tensor,
    workspace: torch.Tensor | None = None,
    functions: KernelFunctions = OWN_FUNCTIONS,
) -> Callable[[], None]:
    """Check and prepare everything once; the callable returned runs the whole GEMM on the current stream.

    It allocates nothing and waits for nothing, so a CUDA graph can capture it once it has run once (the first call
    loads the kernel, and compiles it where ``warm_up`` has not). ``out`` [M, N] is contiguous, of the problem's output
    type. ``workspace`` has at least ``workspace_bytes``, of whatever type, or is None to be allocated here.

    Raises:
        ValueError: the config would compute wrong numbers on this problem, or a tensor is not what the problem says.
    """
    refuse_wrong_tensors(problem, inputs, out)
    return bind_sets(problem, candidate, [inputs], [out], workspace, functions)[0]


def bind_sets(
    problem: Problem,
    candidate: Candidate,
    sets: Sequence[GemmInputs],
    outputs: Sequence[torch.Tensor],
    workspace: torch.Tensor | None = None,
    functions: KernelFunctions = OWN_FUNCTIONS,
) -> list[Callable[[], None]]:
    """As ``bind`` for many input sets and their outputs, which `refuse_wrong_tensors` has passed; all share the
    workspace.

    Raises:
        ValueError: the config would compute wrong numbers on this problem, or the workspace is too small.
    """
    _refuse_wrong_numbers(problem, candidate)
    needed = workspace_bytes(problem, candidate)
    if workspace is None:
        workspace = torch.empty(needed, dtype=torch.uint8, device=outputs[0].device)
    partials = _as_partials(workspace, needed, outputs[0])
    starts = [_Start(launch) for launch in _launches(problem, candidate, functions)]

    def bound(operands: _Operands) -> Callable[[], None]:
        steps = [(start, start.launch.of(operands)) for start in starts]

        def run() -> None:
            for start, tensors in steps:
                start(tensors)

        return run

    return [
        bound(_Operands(inputs.a, inputs.b, out, inputs.a_scale, inputs.b_scale, partials))
        for inputs, out in zip(sets, outputs, strict=True)
    ]


def warm_up(
    problem: Problem, candidate: Candidate, fp8_format: str, functions: KernelFunctions = OWN_FUNCTIONS
) -> list[Any]:
    """Compile what ``bind`` would launch, for Triton's active target, and leave it in Triton's cache.

    No GPU is touched and no tensor made. Returns Triton's compiled kernels, in launch order: ``metadata.shared`` is the
    shared memory in bytes that each needs, to be held against the device's limit, which compiling does not.

    Raises:
        ValueError: as ``bind``. Whatever else the compiler raises is passed on.
    """
    _refuse_wrong_numbers(problem, candidate)
    element = element_dtype(problem.quant, fp8_format)
    out = getattr(torch, problem.out_dtype)
    stand_ins = _Operands(element, element, out, torch.float32, torch.float32, torch.float32)
    return [
        launch.function.warmup(*launch.of(stand_ins), *launch.numbers, grid=launch.grid, **launch.options)
        for launch in _launches(problem, candidate, functions)
    ]


def forget_compiled(functions: KernelFunctions = OWN_FUNCTIONS) -> None:
    """Drop the compiled kernels that Triton keeps in memory for this process; its cache on disk stays.

    A process that tries thousands of configs would otherwise hold them all. Callables that have run stay valid: each
    keeps its own compiled kernel.
    """
    for function in (*functions.gemms.values(), functions.reduction):
        function.device_caches.clear()


def _launches(problem: Problem, candidate: Candidate, functions: KernelFunctions) -> list[_Launch]:
    """Every launch of a candidate.

    Triton compiles a kernel anew by whether an integer is 1 or a multiple of 16, so compiling ahead needs the very
    integers of the launch. All tensors are contiguous: strides follow from the sizes.
    """
    kernel, config = candidate.kernel, candidate.config
    m, n, k = problem.shape.M, problem.shape.N, problem.shape.K
    quant = problem.quant
    groups = ceil_div(k, quant.block_k)
    split = config.split_k > 1
    pointers = ("a", "b", "workspace" if split else "c", "a_scale", "b_scale")
    # A row and column, B column (K) and row (N), C, As, Bs column (K) and row (N).
    strides = (k, 1, 1, k, n, 1, groups, 1, 1, groups)
    numbers = (m, n, k, quant.block_n, quant.block_k, *strides)
    options = {
        "BLOCK_SIZE_M": config.block_m,
        "BLOCK_SIZE_N": config.block_n,
        "BLOCK_SIZE_K": config.block_k,
        "GROUP_SIZE_M": config.group_m,
        **extra_launch_args(kernel, problem, config),
    }
    function = functions.gemms[kernel]
    if "needs_masking" not in function.arg_names:  # SGLang's before it masked on demand
        options.pop("needs_masking", None)
    tiles = ceil_div(m, config.block_m) * ceil_div(n, config.block_n)
    if kernel is not Kernel.FP8_HOPPER:
        return [_Launch(function, (tiles, 1, 1), pointers, numbers, options)]
    gemm = _Launch(function, (tiles, config.split_k, 1), pointers, numbers, options)
    if not split:
        return [gemm]
    reduction = _Launch(
        functions.reduction,
        (ceil_div(m * n, _REDUCTION_BLOCK), 1, 1),
        ("workspace", "c"),
        (m * n, config.split_k, _REDUCTION_BLOCK),
        {},
    )
    return [gemm, reduction]


def _refuse_wrong_numbers(problem: Problem, candidate: Candidate) -> None:
    """Configs that some kernel would take without complaint and compute garbage."""
    kernel, config, quant = candidate.kernel, candidate.config, problem.quant
    if (kernel is Kernel.INT8) != (quant.format is QuantFormat.INT8):
        raise ValueError(f"{kernel} kernel on {quant.format} operands: each format has its own kernels.")
    if quant.block_k % config.block_k:
        raise ValueError(
            f"BLOCK_SIZE_K = {config.block_k} does not divide block_k = {quant.block_k}: a K tile would span groups "
            "of different scales. Take a BLOCK_SIZE_K that divides it."
        )
    if kernel is not Kernel.FP8_HOPPER and (config.swap_ab or config.split_k > 1):
        raise ValueError(f"SWAP_AB and SPLIT_K are read by the {Kernel.FP8_HOPPER} kernel only, not by {kernel}.")
    if reason := problem.beyond_offsets():
        raise ValueError(f"{problem}: {reason}.")
    if config.split_k * problem.shape.M * problem.shape.N > LARGEST_OFFSET:
        raise ValueError(f"SPLIT_K = {config.split_k} needs partial sums beyond the kernel's 32-bit offsets.")
    if config.split_k < 1 or config.split_k & (config.split_k - 1):
        raise ValueError(f"SPLIT_K = {config.split_k} is no power of two.")


def refuse_wrong_tensors(problem: Problem, inputs: GemmInputs, out: torch.Tensor) -> None:
    """Check that tensors have the sizes, types and alignment that launches of ``problem`` are compiled for.

    Raises:
        ValueError: one has not.
    """
    shape, quant = problem.shape, problem.quant
    groups = ceil_div(shape.K, quant.block_k)
    expected = {
        "a": (inputs.a, (shape.M, shape.K)),
        "b": (inputs.b, (shape.N, shape.K)),
        "a_scale": (inputs.a_scale, (shape.M, groups)),
        "b_scale": (inputs.b_scale, (ceil_div(shape.N, quant.block_n), groups)),
        "out": (out, (shape.M, shape.N)),
    }
    for name, (tensor, size) in expected.items():
        if tuple(tensor.shape) != size or not tensor.is_contiguous():
            raise ValueError(f"{name} of shape {tuple(tensor.shape)}: {problem} needs {size}, contiguous.")
        if tensor.data_ptr() % 16:
            raise ValueError(f"{name} does not start at a multiple of 16 bytes, which kernels are compiled for.")
    if str(out.dtype) != f"torch.{problem.out_dtype}":
        raise ValueError(f"out is {out.dtype}, the problem's output type is {problem.out_dtype}.")
    is_int8 = inputs.a.dtype == torch.int8
    if inputs.a.dtype != inputs.b.dtype or is_int8 != (quant.format is QuantFormat.INT8):
        raise ValueError(f"a is {inputs.a.dtype} and b {inputs.b.dtype}, the problem is {quant.format}.")


def _as_partials(workspace: torch.Tensor, needed: int, out: torch.Tensor) -> torch.Tensor:
    """The workspace as float32: itself if it is, else a view of its first ``needed`` bytes."""
    fits = workspace.is_contiguous() and workspace.nbytes >= needed and workspace.data_ptr() % 16 == 0
    if not fits or workspace.device != out.device:
        raise ValueError(
            f"workspace has {workspace.nbytes} bytes on {workspace.device}; needed are {needed} contiguous bytes on "
            f"{out.device}, at a multiple of 16."
        )
    if workspace.dtype is torch.float32:
        return workspace
    return workspace.view(-1).view(torch.uint8)[:needed].view(torch.float32)
