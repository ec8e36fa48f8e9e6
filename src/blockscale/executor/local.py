"""Equal GPUs of this machine as a `Device`: the parent side, without torch, which survives whatever a kernel does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor.base import DeviceClock, Done, Work
from blockscale.executor.gpus import only_gpu
from blockscale.executor.measuring import MeasuringThread
from blockscale.executor.queue import TaskQueue
from blockscale.executor.tasks import Task
from blockscale.hardware import DeviceSpec
from blockscale.kernels.installed import OWN, KernelSource
from blockscale.measure.child import ChildTarget
from blockscale.measure.compile_cache import default_cache_dir, prune
from blockscale.measure.compile_pool import CompileOptions, CompileOutcome, CompilePool, CompileRequest, PoolSettings
from blockscale.measure.conditions import HW_SLOWDOWN, POWER_CAPPED, THERMAL
from blockscale.measure.process import GpuPlace, Limits, MeasuringProcess
from blockscale.measure.protocol import Description
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
    """Which GPUs (indices among the visible ones) and how their processes run; ``worker`` is a measuring child's entry.

    All compile for all GPUs in one pool, and launch the same ``kernels``.
    """

    gpu_indices: tuple[int, ...] = (0,)
    cache_dir: Path = field(default_factory=default_cache_dir)
    limits: Limits = field(default_factory=Limits)
    pool: PoolSettings = field(default_factory=PoolSettings)
    worker: str = "blockscale.measure.worker:open_worker"
    kernels: KernelSource = OWN


def compile_workers(gpus: int, gpus_at_work: int) -> int:
    """Compile processes for ``gpus`` GPUs, of so many that measure on this machine: their share of its CPUs.

    One CPU a GPU is left to its measuring process, and more than 32 outrun a GPU that measures what they made.
    """
    shared = len(os.sched_getaffinity(0)) - gpus_at_work
    return max(1, min(32 * gpus, shared * gpus // gpus_at_work))


class LocalDevice:
    """GPUs of one model: one pool compiles for all, each has a measuring process, replaced when a candidate breaks it.

    Work goes to the pool; what is compiled goes to a queue, from which a thread for each GPU keeps its process busy;
    what is measured waits in another queue for ``next_done``. All work of a problem is done by one GPU.
    """

    def __init__(self, settings: LocalSettings | None = None) -> None:
        """Start all processes at once and ask the measuring ones what their GPUs are.

        Raises:
            InputError: no such GPU, no GPU at all, GPUs that are not alike, torch and Triton are missing, or no place
                for compiled kernels.
            IncompleteRunError: a process does not start.
        """
        began_s = time.monotonic()
        settings = settings or LocalSettings()
        self._cache_dir = settings.cache_dir.absolute()
        processes = [_process(settings, index, self._cache_dir) for index in settings.gpu_indices]
        try:
            self._cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder for compiled kernels, {self._cache_dir}, cannot be made ({error.strerror}): set "
                "XDG_CACHE_HOME to a place that can be written."
            ) from error
        prune(self._cache_dir)
        self._usual_switch_s = sys.getswitchinterval()
        self._pool = CompilePool(CompileOptions(self._cache_dir, settings.kernels), settings.pool)
        try:
            for process in processes:
                process.start()
            self._pool.warm()
            descriptions = [process.describe() for process in processes]
            self._description = _alike(settings.gpu_indices, descriptions)
        except BaseException:
            self._pool.close()
            for process in processes:
                process.discard()
            raise
        sys.setswitchinterval(min(self._usual_switch_s, _SWITCH_INTERVAL_S))
        self._done: SimpleQueue[Done | BaseException] = SimpleQueue()
        self._queue = TaskQueue(len(processes), self._done.put)
        self._gpus = {
            process.gpu: MeasuringThread(process, self._queue, lane, self._done.put)
            for lane, process in enumerate(processes)
        }
        self._at_work = 0  # started and not handed back
        self._counting = Lock()  # one thread may start work while another waits for it
        self._first_s: float | None = None  # when work was first started
        self._closed = False
        self._start_s = time.monotonic() - began_s

    @property
    def spec(self) -> DeviceSpec:
        """Limits of each GPU."""
        return self._description.spec

    @property
    def environment(self) -> Environment:
        """What its measurements depend on."""
        return self._description.environment

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Check that the GPUs can answer for these problems; inputs are made when each is first measured.

        Raises:
            InputError: FP8 on a GPU without it, sizes beyond the kernels' offsets or beyond free memory.
            IncompleteRunError: a GPU is gone.
            RuntimeError: work is under way, whose answers would be taken for this one's.
        """
        if self._at_work:
            raise RuntimeError("problems are announced before any work is started")
        for problem in problems:
            _refuse_unsupported(problem, self.spec)
        for gpu in self._gpus.values():
            gpu.prepare(problems)

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        """Anything can be tried; what does not run is a result."""
        return True

    def start(self, work: Work, rank: int) -> None:
        """Compile what the work needs, then measure it.

        Raises:
            IncompleteRunError: nothing can be compiled any more.
        """
        task = Task(work, rank, [None] * len(work.candidates))
        with self._counting:
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
            self._queue.add(task)

    def next_done(self) -> Done:
        """Wait for the next finished work.

        Raises:
            InputError: the compiler's packages are missing.
            IncompleteRunError: a GPU is gone, compile processes cannot be started, or the device was closed.
            RuntimeError: nothing is at work, or this package has a mistake.
        """
        if not self._at_work:
            raise RuntimeError("nothing was started")
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        with self._counting:
            self._at_work -= 1
        return done

    def clock(self) -> DeviceClock:
        """Where the time went so far."""
        pool, gpus = self._pool.clock(), [gpu.clock() for gpu in self._gpus.values()]
        screening_s, finals_s = sum(g.screening_s for g in gpus), sum(g.finals_s for g in gpus)
        last_s = max(g.last_s for g in gpus)
        since_first_s = last_s - (self._first_s or last_s)
        return DeviceClock(
            start_s=self._start_s,
            screening_s=screening_s,
            finals_s=finals_s,
            idle_s=max(0.0, len(gpus) * since_first_s - screening_s - finals_s),
            compiling_s=pool.busy_s,
            compilations=pool.compilations,
            compile_workers=pool.workers,
            gpus=len(gpus),
        )

    def warnings(self) -> list[str]:
        """What a person should know of each GPU as it is, unless it is at work, and what slowed it down so far."""
        said = []
        for place, gpu in self._gpus.items():
            slowed = [sentence for label, sentence in _LABEL_WARNINGS.items() if label in gpu.labels]
            sentences = ([] if self._at_work else gpu.warnings()) + slowed
            said += [f"{place.name}: {sentence}" if place.others else sentence for sentence in sentences]
        return said

    def close(self) -> None:
        """End all processes and trim the compiler's cache. Safe to call twice, and while another thread waits here."""
        self._queue.close()
        for gpu in self._gpus.values():
            gpu.stop()
        self._pool.close()
        for gpu in self._gpus.values():
            gpu.join()
        if not self._closed:
            sys.setswitchinterval(self._usual_switch_s)
            self._closed = True
            self._done.put(IncompleteRunError("the device was closed"))
        prune(self._cache_dir)


def _process(settings: LocalSettings, index: int, cache_dir: Path) -> MeasuringProcess:
    environment = {**only_gpu(index), "TRITON_CACHE_DIR": str(cache_dir)}
    place = GpuPlace(index, tuple(other for other in settings.gpu_indices if other != index))
    return MeasuringProcess(ChildTarget(settings.worker, settings.kernels, environment), settings.limits, place)


def _alike(indices: Sequence[int], descriptions: Sequence[Description]) -> Description:
    """What all GPUs are; of memory that differs, the least.

    Raises:
        InputError: they are not of one model, so that their times cannot be compared.
    """
    least = min(d.spec.memory_bytes for d in descriptions)
    alike = [replace(d, spec=replace(d.spec, memory_bytes=least)) for d in descriptions]
    for index, description in zip(indices, alike, strict=True):
        if (description.spec, description.environment) != (alike[0].spec, alike[0].environment):
            raise InputError(
                f"GPU {indices[0]} ({alike[0].spec.name}) and GPU {index} ({description.spec.name}) are not alike, so "
                f"their times do not compare: give --gpus {indices[0]} and --gpus {index} in runs of their own."
            )
    return alike[0]


def _refuse_unsupported(problem: Problem, spec: DeviceSpec) -> None:
    if problem.quant.format is QuantFormat.FP8 and not spec.supports_fp8:
        raise InputError(
            f"{spec.name} ({spec.arch}) has no FP8 type that Triton compiles for it: tune with --input-type int8, or "
            "on a GPU of compute capability 8.9 and later, gfx94x, gfx95x or gfx12xx."
        )
    if reason := problem.beyond_offsets():
        raise InputError(f"{problem}: {reason}; give the shape that one GPU holds.")
