"""What a run is going to do, shown before it starts on a real GPU."""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.executor.cost import measuring_s
from blockscale.hardware import DeviceSpec
from blockscale.problem import Problem, ceil_div
from blockscale.report.progress import format_seconds
from blockscale.tuning.request import TuneRequest

# CPU-seconds to compile one config in a pool of 15 processes, the median of a run of 234 problems on an H200 machine
# (benchmarks/whole_model.py). There each of the six classes of problems that share compiled code compiled ten times as
# many configs as one problem tried.
_COMPILE_CPU_S = 0.45
_CONFIGS_OF_A_CLASS = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """The request in numbers; ``expected_s`` is a rough upper estimate."""

    request: TuneRequest
    device: DeviceSpec
    candidates: int  # at most for each problem
    cpus: int  # that may compile at once
    gpus: int = 1

    @property
    def problems(self) -> int:
        """Problems over all engines."""
        return len(self._problems())

    def _problems(self) -> list[Problem]:
        return [problem for engine, _ in self.request.folders for problem in self.request.problems(engine)]

    @property
    def expected_s(self) -> float:
        """Compiling and measuring overlap, so the longer of the two decides; a time budget caps it."""
        measure_s = self.candidates * sum(map(measuring_s, self._problems()))
        measure_s /= self.gpus
        shared = 0
        for engine, _ in self.request.folders:
            problems = self.request.problems(engine)
            shared += min(len(problems), _CONFIGS_OF_A_CLASS * len(set(map(_code_class, problems))))
        compile_s = self.candidates * shared * _COMPILE_CPU_S / max(self.cpus, 1)
        budget_s = self.request.time_budget_s
        longest_s = max(measure_s, compile_s)
        return longest_s if budget_s is None else min(longest_s, budget_s / self.gpus)


def _code_class(problem: Problem) -> tuple[bool, ...]:
    """Equal for problems that share compiled code: by which sizes are multiples of 16, or M is 1."""
    shape = problem.shape
    groups = ceil_div(shape.K, problem.quant.block_k)
    return shape.M == 1, *(size % 16 == 0 for size in (shape.M, shape.N, shape.K, groups))


def plan_lines(plan: Plan) -> list[str]:
    """The plan as text, a fact a line."""
    r = plan.request
    weights = ", ".join(map(str, r.weights))
    gpus = f"{plan.gpus} × " if plan.gpus > 1 else ""
    return [
        f"Device       {gpus}{plan.device.name} ({plan.device.arch})",
        f"Shapes       {weights}",
        f"Batch sizes  {' '.join(map(str, r.batch_sizes))}",
        f"Kind         {r.quant.format} {r.quant.block_n}×{r.quant.block_k}, output {r.out_dtype}",
        *(f"Writes       {engine}: {folder}" for engine, folder in r.folders),
        f"Work         {plan.problems} problems, up to {plan.candidates} candidates each, "
        f"at most about {format_seconds(plan.expected_s)}",
    ]
