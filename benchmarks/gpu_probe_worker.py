# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Measuring processes of `gpu_probe.py`: one that adds up where its time goes, one with kernels that misbehave."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from blockscale.kernels.inputs import GemmInputs
from blockscale.measure.graph import GraphGpu, GraphReplay
from blockscale.measure.launcher import TritonKernels
from blockscale.measure.protocol import Request
from blockscale.measure.rotation import Rotation, RotationPool
from blockscale.measure.session import Kernels, Session
from blockscale.measure.timing import Launch
from blockscale.measure.worker import GpuMeasuring, dispatch
from blockscale.problem import Candidate, Problem

# GROUP_SIZE_M of the candidates that misbehave; it means nothing else where M fits one tile.
ILLEGAL_ACCESS = 61
HANGS = 62
UNWRITTEN = 63
REPORT_VARIABLE = "GPU_PROBE_WORKER_REPORT"

_seconds: dict[str, float] = {}
_calls: dict[str, int] = {}


@triton.jit
def _store_far_away(out):
    tl.store(out + (1 << 40) + tl.arange(0, 32), 1.0)


@triton.jit
def _wait_for_ever(flag):
    value = tl.atomic_add(flag, 0)
    while value == 0:
        value = tl.atomic_add(flag, 0)


class MisbehavingKernels:
    """The real kernels, but for three configs."""

    def __init__(self, real: Kernels) -> None:
        self._real = real
        self._flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._far = torch.zeros(32, dtype=torch.float32, device="cuda")

    def launches(
        self, problem: Problem, candidate: Candidate, sets: Sequence[GemmInputs], outputs: Sequence[torch.Tensor]
    ) -> list[Launch]:
        """The real launches, or the bad ones."""
        bad: dict[int, Launch] = {ILLEGAL_ACCESS: self._crash, HANGS: self._hang, UNWRITTEN: lambda: None}
        if (launch := bad.get(candidate.config.group_m)) is not None:
            return [launch for _ in sets]
        return self._real.launches(problem, candidate, sets, outputs)

    def _crash(self) -> None:
        _store_far_away[(1,)](self._far)

    def _hang(self) -> None:
        _wait_for_ever[(1,)](self._flag)


def _timed(owner: type, method: str, name: str) -> None:
    original = getattr(owner, method)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            torch.cuda.synchronize()
            _seconds[name] = _seconds.get(name, 0.0) + time.perf_counter() - started
            _calls[name] = _calls.get(name, 0) + 1

    setattr(owner, method, wrapper)


def open_profiled(options: object) -> Callable[[Request], Any]:
    """The product's process, with its seconds by kind of work and its peak memory written down after each request."""
    _timed(Session, "screen", "screen in all")
    _timed(Session, "finals", "finals in all")
    _timed(RotationPool, "rotation", "inputs and sets")
    _timed(Rotation, "check", "verify (with references)")
    _timed(Rotation, "fill_nan", "fill NaN")
    _timed(GraphReplay, "samples_us", "timed replays")
    _timed(GraphGpu, "capture", "graph capture")
    _timed(TritonKernels, "launches", "bind")
    measuring = GpuMeasuring()
    report = Path(os.environ[REPORT_VARIABLE])

    def handle(request: Request) -> Any:
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        try:
            return dispatch(measuring, request)
        finally:
            _seconds["requests in all"] = _seconds.get("requests in all", 0.0) + time.perf_counter() - started
            peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
            report.write_text(json.dumps({"seconds": _seconds, "calls": _calls, "peak_bytes": peaks}))

    return handle


def open_misbehaving(options: object) -> Callable[[Request], Any]:
    """A process whose kernels crash, hang or write nothing for three configs."""
    measuring = GpuMeasuring(wrap=MisbehavingKernels)
    return lambda request: dispatch(measuring, request)
