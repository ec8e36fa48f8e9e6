"""The kernels package as `Session` uses it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from blockscale.kernels.inputs import GemmInputs
from blockscale.kernels.launch import OWN_FUNCTIONS, KernelFunctions, bind_sets, forget_compiled, workspace_bytes
from blockscale.measure.timing import Launch
from blockscale.problem import Candidate, Problem

_FORGET_AFTER = 500


class TritonKernels:
    """Binds launches to tensors, and keeps Triton from holding every kernel that was ever loaded."""

    def __init__(self, functions: KernelFunctions = OWN_FUNCTIONS) -> None:
        self._functions = functions
        self._candidates = 0
        self._workspace: weakref.ref[torch.Tensor] | None = None

    def launches(
        self, problem: Problem, candidate: Candidate, sets: Sequence[GemmInputs], outputs: Sequence[torch.Tensor]
    ) -> list[Launch]:
        """One launch a set, of tensors that ``refuse_wrong_tensors`` has passed.

        They share one workspace, as an engine's allocator hands out the same block each time. It begins as NaN, so that
        partial sums that are never written show.
        """
        self._candidates += 1
        if self._candidates % _FORGET_AFTER == 0:
            forget_compiled(self._functions)
        workspace = self._shared_workspace(workspace_bytes(problem, candidate) // 4, outputs[0].device)
        return bind_sets(problem, candidate, sets, outputs, workspace, self._functions)

    def _shared_workspace(self, elements: int, device: torch.device) -> torch.Tensor:
        """The workspace of launches that are still held, where it is large enough, else a new one.

        Finalists are held together, and one of their workspaces may take gigabytes.
        """
        workspace = self._workspace() if self._workspace is not None else None
        if workspace is None or workspace.numel() < elements or workspace.device != device:
            workspace = torch.empty(elements, dtype=torch.float32, device=device)
            self._workspace = weakref.ref(workspace)
        workspace[:elements].fill_(float("nan"))
        return workspace
