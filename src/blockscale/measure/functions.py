"""The functions that this process launches or compiles, ours or those of an installed engine."""

from __future__ import annotations

from collections.abc import Sequence

from blockscale.kernels.foreign import load_function
from blockscale.kernels.installed import FoundFunction, FoundKernel
from blockscale.kernels.launch import OWN_FUNCTIONS, KernelFunctions


def launch_functions(found: Sequence[FoundKernel], arch: str) -> KernelFunctions:
    """Functions for a GPU of ``arch``: what was found in installed engines in place of ours."""
    gemms, reduction = dict(OWN_FUNCTIONS.gemms), OWN_FUNCTIONS.reduction
    here = [kernel for kernel in found if kernel.arch in (None, arch)]
    for kernel in sorted(here, key=lambda kernel: kernel.arch is not None):  # what is of this architecture alone, last
        gemms[kernel.kernel] = _loaded(kernel.gemm)
        if kernel.reduction is not None:
            reduction = _loaded(kernel.reduction)
    return KernelFunctions(gemms, reduction)


def _loaded(function: FoundFunction) -> object:
    return load_function(function.taken, function.module, function.file)
