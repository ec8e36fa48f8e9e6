"""Entries of a measuring and a compile process that take libraries' GEMMs among the candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockscale.kernels.installed import KernelSource
from blockscale.measure import compile_worker
from blockscale.measure.compile_pool import CompileOptions, CompileOutcome, CompileRequest
from blockscale.measure.libraries import LibraryGemm
from blockscale.measure.protocol import Request
from blockscale.measure.worker import GpuMeasuring, dispatch
from blockscale.problem import TrialStatus

WORKER = f"{__name__}:open_worker"
COMPILER = f"{__name__}:open_compiler"


def open_worker(source: KernelSource) -> Callable[[Request], Any]:
    """Child entry: as ``worker.open_worker``, libraries among the candidates."""
    from blockscale.measure.library_launch import WithLibraries

    measuring = GpuMeasuring(source, wrap=WithLibraries)
    return lambda request: dispatch(measuring, request)


def open_compiler(options: CompileOptions) -> Callable[[CompileRequest], CompileOutcome]:
    """Child entry: as ``compile_worker.open_compiler``; a library's GEMM comes compiled, or is when it is called."""
    compile_one = compile_worker.open_compiler(options)

    def answer(request: CompileRequest) -> CompileOutcome:
        if isinstance(request.candidate, LibraryGemm):
            return CompileOutcome(TrialStatus.OK)
        return compile_one(request)

    return answer
