"""The kernels package as `Session` uses it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blockscale.kernels.inputs import GemmInputs
from blockscale.kernels.launch import bind, forget_compiled, workspace_bytes
from blockscale.measure.timing import Launch
from blockscale.problem import Candidate, Problem

_FORGET_AFTER = 500


class TritonKernels:
    """Binds launches to tensors, and keeps Triton from holding every kernel that was ever loaded."""

    def __init__(self) -> None:
        self._candidates = 0

    def launches(
        self, problem: Problem, candidate: Candidate, sets: Sequence[GemmInputs], outputs: Sequence[torch.Tensor]
    ) -> list[Launch]:
        """One launch a set. They share one workspace, as an engine's allocator hands out the same block each time."""
        self._candidates += 1
        if self._candidates % _FORGET_AFTER == 0:
            forget_compiled()
        device = outputs[0].device
        workspace = torch.empty(workspace_bytes(problem, candidate) // 4, dtype=torch.float32, device=device)
        return [bind(problem, candidate, inputs, out, workspace) for inputs, out in zip(sets, outputs, strict=True)]
