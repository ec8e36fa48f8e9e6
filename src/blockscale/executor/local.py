"""A GPU of this machine as a `Device`: the parent side, which imports no torch and survives whatever a kernel does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.measure.child import Child, ChildError, ChildTarget
from blockscale.measure.compile_cache import default_cache_dir, prune
from blockscale.measure.compile_pool import CompileOptions, CompilePool, PoolSettings
from blockscale.measure.conditions import HW_SLOWDOWN, POWER_CAPPED, THERMAL
from blockscale.measure.process import NO_GPU, Limits, MeasuringProcess, start_error
from blockscale.measure.protocol import GpuInfo, Measured
from blockscale.problem import Candidate, Environment, Phase, Problem, QuantFormat, Trial, TrialStatus

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_LABEL_WARNINGS = {
    POWER_CAPPED: "the GPU ran into its power limit while timing: times hold for this limit.",
    THERMAL: "the GPU slowed down for heat while timing: some times are too long; cool it and tune again.",
    HW_SLOWDOWN: "the hardware slowed the GPU down while timing (power supply or heat): some times are too long.",
}


@dataclass(frozen=True)
class LocalSettings:
    """Which GPU (index among the visible ones) and how its processes run; ``worker`` is the measuring child's entry."""

    gpu_index: int = 0
    cache_dir: Path = field(default_factory=default_cache_dir)
    limits: Limits = field(default_factory=Limits)
    pool: PoolSettings = field(default_factory=PoolSettings)
    worker: str = "blockscale.measure.worker:open_worker"


def only_gpu(index: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that leave a child one GPU, the ``index``-th of those that are visible here.

    Raises:
        InputError: fewer GPUs are visible.
    """
    # HIP's own variable wins over CUDA's on ROCm, and nothing reads it elsewhere.
    listed = next((environment[name] for name in reversed(_VISIBLE) if environment.get(name)), None)
    chosen = str(index)
    if listed is not None:
        visible = [part.strip() for part in listed.split(",") if part.strip()]
        if index >= len(visible):
            raise InputError(
                f"GPU {index} was asked for and {_VISIBLE[0]}={listed} shows {len(visible)}: "
                f"choose from 0 to {len(visible) - 1}, or show more."
            )
        chosen = visible[index]
    return dict.fromkeys(_VISIBLE, chosen)


def visible_gpus(start_s: float = 180.0) -> list[GpuInfo]:
    """The GPUs that torch sees, asked of a child so that this process stays free of it.

    Raises:
        InputError: torch or Triton is missing, or there is no GPU.
    """
    child = Child(ChildTarget("blockscale.measure.describe:open_census"))
    try:
        child.receive(start_s)
        found: list[GpuInfo] = child.ask(None, start_s)
    except ChildError as error:
        raise start_error(error) from error
    finally:
        child.kill()
    if not found:
        raise InputError(NO_GPU)
    return found


class LocalDevice:
    """One GPU: compiles in a pool of processes, measures in one process that is replaced when a candidate breaks it."""

    def __init__(self, settings: LocalSettings | None = None) -> None:
        """Start the measuring process and ask it what the GPU is.

        Raises:
            InputError: no such GPU, no GPU at all, torch and Triton are missing, or no place for compiled kernels.
            IncompleteRunError: the process does not start.
        """
        settings = settings or LocalSettings()
        self._cache_dir = settings.cache_dir.absolute()
        environment = {**only_gpu(settings.gpu_index), "TRITON_CACHE_DIR": str(self._cache_dir)}
        try:
            self._cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder for compiled kernels, {self._cache_dir}, cannot be made ({error.strerror}): set "
                "XDG_CACHE_HOME to a place that can be written."
            ) from error
        prune(self._cache_dir)
        self._process = MeasuringProcess(ChildTarget(settings.worker, environment=environment), settings.limits)
        self._description = self._process.describe()
        self._pool = CompilePool(CompileOptions(self.spec, self._cache_dir), settings.pool)
        self._best_us: dict[Problem, float] = {}
        self._labels: set[str] = set()

    @property
    def spec(self) -> DeviceSpec:
        """Limits of the GPU."""
        return self._description.spec

    @property
    def environment(self) -> Environment:
        """What its measurements depend on."""
        return self._description.environment

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Check that the GPU can answer for these problems; inputs are made when each is first measured.

        Raises:
            InputError: FP8 on a GPU without it, sizes beyond the kernels' offsets or beyond free memory.
            IncompleteRunError: the GPU is gone.
        """
        for problem in problems:
            _refuse_unsupported(problem, self.spec)
        self._process.prepare(problems)

    def screen(self, problem: Problem, candidates: Sequence[Candidate]) -> Iterator[Trial]:
        """Compile all ahead, measure each in turn; one trial a candidate, in order."""
        compiling = [self._pool.submit(problem, candidate) for candidate in candidates]
        try:
            for candidate, future in zip(candidates, compiling, strict=True):
                started = time.monotonic()
                outcome = future.result()
                if outcome.status is TrialStatus.OK:
                    measured = self._process.screen(problem, candidate, self._best_us.get(problem))
                else:
                    measured = Measured(outcome.status, message=outcome.message)
                trial = self._trial(problem, candidate, measured, Phase.SCREEN)
                self._remember(trial)
                yield replace(trial, compile_s=outcome.compile_s, elapsed_s=time.monotonic() - started)
        finally:
            for future in compiling:
                future.cancel()

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Trial]:
        """Re-time candidates interleaved on fresh inputs; one trial a candidate, in order."""
        started = time.monotonic()
        outcomes = [future.result() for future in [self._pool.submit(problem, c) for c in candidates]]
        runnable = [c for c, outcome in zip(candidates, outcomes, strict=True) if outcome.status is TrialStatus.OK]
        measured = iter(self._process.finals(problem, runnable) if runnable else [])
        elapsed_s = (time.monotonic() - started) / max(1, len(candidates))
        trials = []
        for candidate, outcome in zip(candidates, outcomes, strict=True):
            compiled = outcome.status is TrialStatus.OK
            result = next(measured) if compiled else Measured(outcome.status, message=outcome.message)
            trial = self._trial(problem, candidate, result, Phase.FINAL)
            trials.append(replace(trial, compile_s=outcome.compile_s, elapsed_s=elapsed_s))
        return trials

    def warnings(self) -> list[str]:
        """What a person should know of this GPU as it is, and what slowed it down so far."""
        slowed = [sentence for label, sentence in _LABEL_WARNINGS.items() if label in self._labels]
        return self._process.warnings() + slowed

    def close(self) -> None:
        """End all processes and trim the compiler's cache. Safe to call twice."""
        self._pool.close()
        self._process.discard()
        prune(self._cache_dir)

    def _remember(self, trial: Trial) -> None:
        if trial.status is TrialStatus.OK and trial.time_us is not None:
            self._best_us[trial.problem] = min(trial.time_us, self._best_us.get(trial.problem, trial.time_us))

    def _trial(self, problem: Problem, candidate: Candidate, measured: Measured, phase: Phase) -> Trial:
        self._labels.update(measured.labels)
        return Trial(
            problem=problem,
            candidate=candidate,
            status=measured.status,
            phase=phase,
            samples_us=measured.samples_us,
            message=measured.message,
            labels=measured.labels,
        )


def _refuse_unsupported(problem: Problem, spec: DeviceSpec) -> None:
    if problem.quant.format is QuantFormat.FP8 and not spec.supports_fp8:
        raise InputError(
            f"{spec.name} ({spec.arch}) has no FP8 type that Triton compiles for it: tune with --input-type int8, or "
            "on a GPU of compute capability 8.9 and later, gfx94x, gfx95x or gfx12xx."
        )
    if reason := problem.beyond_offsets():
        raise InputError(f"{problem}: {reason}; give the shape that one GPU holds.")
