"""The body of the measuring process: it owns the one GPU that it was started to see.

Replaceable: whatever a candidate does to it, the parent starts another one, and inputs are made again from their seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from blockscale.kernels.installed import OWN, KernelSource, find_kernels
from blockscale.measure.protocol import Describe, Description, Finals, Prepare, Request, Screen, Warnings
from blockscale.problem import Problem

if TYPE_CHECKING:
    from blockscale.measure.session import Kernels

# Of the memory that is free when the process starts, what inputs may keep; the rest is for the problem at hand.
_BUDGET_SHARE = 0.5


def dispatch(measuring: Any, request: Request) -> Any:
    """Answer one request with the object that does the work."""
    match request:
        case Describe():
            return measuring.describe()
        case Prepare(problems):
            return measuring.prepare(problems)
        case Screen(problem, candidate, best_us):
            return measuring.session.screen(problem, candidate, best_us)
        case Finals(problem, candidates):
            return measuring.session.finals(problem, candidates)
        case Warnings():
            return measuring.conditions.warnings()


class GpuMeasuring:
    """Everything that the process holds: session, inputs, conditions.

    ``source`` says whose kernels are launched; ``wrap`` puts something between them and the session.
    """

    def __init__(self, source: KernelSource = OWN, wrap: Callable[[Kernels], Kernels] | None = None) -> None:
        import torch

        from blockscale.measure import describe
        from blockscale.measure.conditions import nvml_conditions
        from blockscale.measure.functions import launch_functions
        from blockscale.measure.graph import GraphGpu
        from blockscale.measure.launcher import TritonKernels
        from blockscale.measure.rotation import InputOptions, RotationPool
        from blockscale.measure.session import Session

        if not torch.cuda.is_available():
            raise RuntimeError("no GPU is visible to torch")
        properties = torch.cuda.get_device_properties(0)
        self._torch = torch
        self._spec = describe.device_spec(properties, bool(torch.version.hip))
        found = find_kernels(source)
        self._environment = describe.environment(self._spec, found, str(source))
        self.conditions = nvml_conditions(describe.gpu_uuid(properties))
        free, _ = torch.cuda.mem_get_info()
        budget_bytes = int(free * _BUDGET_SHARE)
        self.pool = RotationPool(InputOptions("cuda", self._spec.fp8_format, self._spec.l2_bytes, budget_bytes))
        self.gpu = GraphGpu()
        self.kernels: Kernels = TritonKernels(launch_functions(found, self._spec.arch))
        if wrap is not None:
            self.kernels = wrap(self.kernels)
        self.session = Session(self.gpu, self.kernels, self.pool, self.conditions)

    def describe(self) -> Description:
        """Limits, environment and free memory in bytes."""
        free, _ = self._torch.cuda.mem_get_info()
        return Description(self._spec, self._environment, free)

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Check memory and learn the largest M of each weight."""
        from blockscale.measure.rotation import refuse_too_large

        self.pool.forget()
        self._torch.cuda.empty_cache()
        free, _ = self._torch.cuda.mem_get_info()
        refuse_too_large(problems, self._spec.l2_bytes, free)
        self.pool.announce(problems)


def open_worker(source: KernelSource) -> Callable[[Request], Any]:
    """Child entry: take the GPU, answer requests; ``source`` says whose kernels are launched."""
    measuring = GpuMeasuring(source)
    return lambda request: dispatch(measuring, request)
