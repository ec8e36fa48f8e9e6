"""A GPU of this machine as a `Device`: the parent side, which imports no torch and survives whatever a kernel does."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from blockscale.errors import InputError
from blockscale.executor.base import DeviceClock, Done, Work
from blockscale.executor.gpus import only_gpu
from blockscale.executor.measuring import MeasuringThread, Task
from blockscale.hardware import DeviceSpec
from blockscale.measure.child import ChildTarget
from blockscale.measure.compile_cache import default_cache_dir, prune
from blockscale.measure.compile_pool import CompileOptions, CompileOutcome, CompilePool, CompileRequest, PoolSettings
from blockscale.measure.conditions import HW_SLOWDOWN, POWER_CAPPED, THERMAL
from blockscale.measure.process import Limits, MeasuringProcess
from blockscale.problem import Candidate, Environment, Problem, QuantFormat

_LABEL_WARNINGS = {
    POWER_CAPPED: "the GPU ran into its power limit while timing: times hold for this limit.",
    THERMAL: "the GPU slowed down for heat while timing: some times are too long; cool it and tune again.",
    HW_SLOWDOWN: "the hardware slowed the GPU down while timing (power supply or heat): some times are too long.",
}

# Python hands its interpreter lock over after 5 ms, as long as a measurement takes: while this process searches, the
# threads that feed the GPU and the compilers would wait that long for every message.
_SWITCH_INTERVAL_S = 0.0002


@dataclass(frozen=True)
class LocalSettings:
    """Which GPU (index among the visible ones) and how its processes run; ``worker`` is the measuring child's entry."""

    gpu_index: int = 0
    cache_dir: Path = field(default_factory=default_cache_dir)
    limits: Limits = field(default_factory=Limits)
    pool: PoolSettings = field(default_factory=PoolSettings)
    worker: str = "blockscale.measure.worker:open_worker"


class LocalDevice:
    """One GPU: compiles in a pool of processes, measures in one process that is replaced when a candidate breaks it.

    Work goes to the pool; what is compiled goes to a thread that keeps the measuring process busy; what is measured
    waits in a queue for ``next_done``.
    """

    def __init__(self, settings: LocalSettings | None = None) -> None:
        """Start all processes and ask the measuring one what the GPU is.

        Raises:
            InputError: no such GPU, no GPU at all, torch and Triton are missing, or no place for compiled kernels.
            IncompleteRunError: the process does not start.
        """
        began_s = time.monotonic()
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
        self._usual_switch_s = sys.getswitchinterval()
        process = MeasuringProcess(ChildTarget(settings.worker, environment=environment), settings.limits)
        process.start()
        self._pool = CompilePool(CompileOptions(self._cache_dir), settings.pool)
        self._pool.warm()
        try:
            self._description = process.describe()
        except BaseException:
            self._pool.close()
            process.discard()
            raise
        sys.setswitchinterval(min(self._usual_switch_s, _SWITCH_INTERVAL_S))
        self._done: SimpleQueue[Done | BaseException] = SimpleQueue()
        self._measuring = MeasuringThread(process, self._done.put)
        self._at_work = 0  # started and not handed back
        self._first_s: float | None = None  # when work was first started
        self._closed = False
        self._start_s = time.monotonic() - began_s

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
            RuntimeError: work is under way, whose answers would be taken for this one's.
        """
        if self._at_work:
            raise RuntimeError("problems are announced before any work is started")
        for problem in problems:
            _refuse_unsupported(problem, self.spec)
        self._measuring.prepare(problems)

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        """Anything can be tried; what does not run is a result."""
        return True

    def start(self, work: Work, rank: int) -> None:
        """Compile what the work needs, then measure it.

        Raises:
            IncompleteRunError: nothing can be compiled any more.
        """
        task = Task(work, rank, [None] * len(work.candidates))
        self._at_work += 1
        if self._first_s is None:
            self._first_s = time.monotonic()
        for place, candidate in enumerate(work.candidates):
            future = self._pool.submit(CompileRequest(self.spec, work.problem, candidate), rank)
            future.add_done_callback(partial(self._compiled, task, place))

    def _compiled(self, task: Task, place: int, future: Future[CompileOutcome]) -> None:
        """Called in the pool's thread, or at once for what is known."""
        if future.cancelled():  # the pool was closed
            return
        error = future.exception()
        if error is not None:
            self._done.put(error)
        elif task.compiled(place, future.result()):
            self._measuring.add(task)

    def next_done(self) -> Done:
        """Wait for the next finished work.

        Raises:
            InputError: the compiler's packages are missing.
            IncompleteRunError: the GPU is gone, or compile processes cannot be started.
            RuntimeError: nothing is at work, or this package has a mistake.
        """
        if not self._at_work:
            raise RuntimeError("nothing was started")
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        self._at_work -= 1
        return done

    def clock(self) -> DeviceClock:
        """Where the time went so far."""
        pool, gpu = self._pool.clock(), self._measuring.clock()
        since_first_s = gpu.last_s - (self._first_s or gpu.last_s)
        return DeviceClock(
            start_s=self._start_s,
            screening_s=gpu.screening_s,
            finals_s=gpu.finals_s,
            idle_s=max(0.0, since_first_s - gpu.screening_s - gpu.finals_s),
            compiling_s=pool.busy_s,
            compilations=pool.compilations,
            compile_workers=pool.workers,
        )

    def warnings(self) -> list[str]:
        """What a person should know of this GPU as it is, unless it is at work, and what slowed it down so far."""
        slowed = [sentence for label, sentence in _LABEL_WARNINGS.items() if label in self._measuring.labels]
        return ([] if self._at_work else self._measuring.warnings()) + slowed

    def close(self) -> None:
        """End all processes and trim the compiler's cache. Safe to call twice."""
        self._pool.close()
        self._measuring.close()
        if not self._closed:
            sys.setswitchinterval(self._usual_switch_s)
            self._closed = True
        prune(self._cache_dir)


def _refuse_unsupported(problem: Problem, spec: DeviceSpec) -> None:
    if problem.quant.format is QuantFormat.FP8 and not spec.supports_fp8:
        raise InputError(
            f"{spec.name} ({spec.arch}) has no FP8 type that Triton compiles for it: tune with --input-type int8, or "
            "on a GPU of compute capability 8.9 and later, gfx94x, gfx95x or gfx12xx."
        )
    if reason := problem.beyond_offsets():
        raise InputError(f"{problem}: {reason}; give the shape that one GPU holds.")
