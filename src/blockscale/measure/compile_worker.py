"""The body of one compile process: candidate in, entry in Triton's cache out. Never touches a GPU."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from blockscale.hardware import DeviceSpec
from blockscale.kernels.installed import find_kernels
from blockscale.measure.classify import classify, raised_by_us
from blockscale.measure.compile_cache import drop_unreadable
from blockscale.measure.compile_pool import CompileOptions, CompileOutcome, CompileRequest
from blockscale.problem import TrialStatus

log = logging.getLogger(__name__)


def over_limit(metadata: Any, spec: DeviceSpec) -> str:
    """Why the device cannot run a kernel with this Triton metadata; empty when it can.

    Triton compiles kernels beyond the shared-memory limit without complaint; only their launch would fail.
    """
    shared = int(getattr(metadata, "shared", 0))
    if shared > spec.shared_memory_bytes:
        return f"shared memory: {shared} bytes required, {spec.shared_memory_bytes} on {spec.name}"
    threads = int(getattr(metadata, "num_warps", 1)) * spec.warp_size
    if threads > spec.max_threads_per_block:
        return f"threads: {threads} required, {spec.max_threads_per_block} on {spec.name}"
    return ""


def code_digest(compiled: Sequence[Any]) -> str:
    """Short digest of the machine code of Triton's compiled kernels, in launch order, and of how each is launched."""
    digest = hashlib.sha256()
    for kernel in compiled:
        binary = next(kernel.asm[form] for form in ("cubin", "hsaco") if form in kernel.asm)
        launch = [getattr(kernel.metadata, name, None) for name in ("name", "shared", "num_warps", "num_ctas")]
        digest.update(f"{launch} {len(binary)} ".encode() + binary)
    return digest.hexdigest()[:32]


def open_compiler(options: CompileOptions) -> Callable[[CompileRequest], CompileOutcome]:
    """Import the compiler, without a driver; returns the function that compiles for the device of its first request."""
    from blockscale.kernels.compile_only import offline_target
    from blockscale.kernels.launch import warm_up
    from blockscale.measure.functions import launch_functions

    found = find_kernels(options.kernels)
    functions_for = cache(lambda arch: launch_functions(found, arch))

    def attempt(request: CompileRequest) -> CompileOutcome:
        spec = request.spec
        offline_target(spec.arch)
        try:
            compiled = warm_up(request.problem, request.candidate, spec.fp8_format, functions_for(spec.arch))
        except (json.JSONDecodeError, OSError):  # the cache or the disk, not the candidate
            raise
        except Exception as error:
            if isinstance(error, ValueError) and raised_by_us(error):  # a config that would compute wrong numbers
                return CompileOutcome(TrialStatus.ILLEGAL, str(error))
            failure = classify(error, TrialStatus.COMPILE_ERROR)
            return CompileOutcome(failure.status, failure.message)
        reasons = [reason for kernel in compiled if (reason := over_limit(kernel.metadata, spec))]
        if reasons:
            return CompileOutcome(TrialStatus.OUT_OF_RESOURCES, reasons[0])
        return CompileOutcome(TrialStatus.OK, code=code_digest(compiled))

    def compile_one(request: CompileRequest) -> CompileOutcome:
        started = time.perf_counter()
        try:
            outcome = attempt(request)
        except json.JSONDecodeError:  # a cache entry that a crash or a full disk left half written
            dropped = drop_unreadable(options.cache_dir)
            log.warning("dropped %d unreadable entries of the compiler's cache", dropped)
            try:
                outcome = attempt(request)
            except json.JSONDecodeError as error:
                outcome = CompileOutcome(TrialStatus.COMPILE_ERROR, f"JSONDecodeError: {error}")
        return replace(outcome, compile_s=time.perf_counter() - started)

    return compile_one
