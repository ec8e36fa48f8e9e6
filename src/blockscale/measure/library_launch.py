"""Launches of libraries' block-scaled GEMMs on the inputs that Triton kernels are measured on.

Scales are laid out as the library wants them before any launch: an engine quantises activations into that layout.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from blockscale.kernels.inputs import GemmInputs
from blockscale.measure.libraries import Library, LibraryGemm
from blockscale.measure.session import Kernels
from blockscale.measure.timing import Launch
from blockscale.problem import Candidate, Problem, ceil_div


class UnavailableError(Exception):
    """A library is not here, or too old."""


class WithLibraries:
    """Kernels of another kind, and the GEMMs of libraries where a candidate is one."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def launches(
        self, problem: Problem, candidate: Candidate, sets: Sequence[GemmInputs], outputs: Sequence[torch.Tensor]
    ) -> list[Launch]:
        """As ``Kernels.launches``.

        Raises:
            UnavailableError: the library is not installed, or has no such function.
        """
        if not isinstance(candidate, LibraryGemm):
            return self._kernels.launches(problem, candidate, sets, outputs)
        bind = _BINDINGS[candidate.library]()
        return [bind(inputs, out) for inputs, out in zip(sets, outputs, strict=True)]


_Bind = Callable[[GemmInputs, torch.Tensor], Launch]


def _deepgemm() -> _Bind:
    """``deep_gemm.fp8_gemm_nt`` (DeepGEMM 2, read in autumn 2026), which compiles for the shape at its first call."""
    try:
        deep_gemm = importlib.import_module("deep_gemm")
    except ImportError as error:
        raise UnavailableError(f"the package deep_gemm cannot be imported ({error})") from None
    gemm = getattr(deep_gemm, "fp8_gemm_nt", None)
    if gemm is None:
        raise UnavailableError("deep_gemm has no fp8_gemm_nt: install DeepGEMM 2 or newer")

    def bind(inputs: GemmInputs, out: torch.Tensor) -> Launch:
        a_scale = column_major(inputs.a_scale, column_multiple=4)

        def run() -> None:
            gemm((inputs.a, a_scale), (inputs.b, inputs.b_scale), out)

        return run

    return bind


def _cublas() -> _Bind:
    """cuBLASLt through ``torch._scaled_mm_v2`` (torch 2.10 on), for blocks of 1×128 and 128×128.

    Scales of A are [M, K groups] by columns; those of B are [K groups, N groups] by columns of a multiple of 4 values.
    """
    operator: Any = getattr(torch.ops.aten, "_scaled_mm_v2", None)
    types = getattr(torch.nn.functional, "ScalingType", None)
    if operator is None or types is None or not hasattr(operator, "out"):
        raise UnavailableError(f"torch {torch.__version__} has no _scaled_mm_v2: install torch 2.10 or newer")
    recipe_a, recipe_b = types.BlockWise1x128.value, types.BlockWise128x128.value
    no_swizzle = torch.nn.functional.SwizzleType.NO_SWIZZLE.value

    def bind(inputs: GemmInputs, out: torch.Tensor) -> Launch:
        a_scale = column_major(inputs.a_scale)
        groups = inputs.b_scale.shape[1]
        padded = torch.nn.functional.pad(inputs.b_scale, (0, -groups % 4))
        b, b_scale = inputs.b.t(), padded.contiguous().t()

        def run() -> None:
            operator.out(
                inputs.a, b, [a_scale], [recipe_a], [no_swizzle], [b_scale], [recipe_b], [no_swizzle], None, out.dtype,
                out=out,
            )  # fmt: skip

        return run

    return bind


_BINDINGS: dict[Library, Callable[[], _Bind]] = {Library.DEEPGEMM: _deepgemm, Library.CUBLAS: _cublas}


def column_major(matrix: torch.Tensor, column_multiple: int = 1) -> torch.Tensor:
    """A copy of ``matrix`` [rows, columns] with strides (1, rows rounded up to ``column_multiple``)."""
    rows, columns = matrix.shape
    stride = ceil_div(rows, column_multiple) * column_multiple
    copy = matrix.new_zeros((columns, stride)).t()[:rows]
    return copy.copy_(matrix)
