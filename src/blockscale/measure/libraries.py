"""GEMMs of libraries that outrank the engines' Triton kernels, to be measured beside candidates. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Kernel, OutDtype, Problem, QuantFormat, TileConfig


class Library(StrEnum):
    """A library with a block-scaled FP8 GEMM."""

    DEEPGEMM = "deepgemm"
    CUBLAS = "cublas"


@dataclass(frozen=True, slots=True, order=True)
class LibraryGemm(Candidate):
    """A library's GEMM in a candidate's place. ``kernel`` and ``config`` are void, since the library picks its own."""

    library: Library

    def __str__(self) -> str:
        return str(self.library)


def library_gemm(library: Library) -> LibraryGemm:
    """The candidate that stands for a library."""
    return LibraryGemm(Kernel.FP8, TileConfig(128, 128, 128), library)


def refusal(library: Library, problem: Problem, spec: DeviceSpec) -> str | None:
    """Why a library has no GEMM for the problem on the device, or None where it should.

    DeepGEMM 2: FP8 in blocks of 128×128; on SM100 it takes scales that are powers of two only. cuBLAS, as torch 2.10 to
    2.13 calls it (``ScaledBlas.cpp``): such blocks on SM90 alone, and M in multiples of 4.
    """
    quant = problem.quant
    if quant.format is not QuantFormat.FP8 or (quant.block_n, quant.block_k) != (128, 128):
        return "it has no GEMM for this quantisation, only for FP8 in blocks of 128×128"
    if spec.compute_capability != 90:
        return f"it takes scales that are no powers of two on SM90 alone, and this is {spec.arch}"
    if problem.out_dtype is not OutDtype.BFLOAT16:
        return f"it is called for bfloat16 outputs, not {problem.out_dtype}"
    if library is Library.CUBLAS and problem.shape.M % 4:
        return "it takes M in multiples of 4"
    return None
