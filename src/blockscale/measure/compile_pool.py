"""Compile candidates ahead of measuring, in CPU processes that can be killed one by one.

A kernel compiled here reaches the measuring process through Triton's cache folder: both use the same absolute path and
compile with the same argument types, so their cache keys are equal.
"""

from __future__ import annotations

import heapq
import logging
import os
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from threading import Lock, Thread

from blockscale.errors import BlockscaleError, IncompleteRunError, InputError
from blockscale.hardware import DeviceSpec
from blockscale.kernels.installed import OWN, KernelSource
from blockscale.measure.child import Child, ChildDiedError, ChildRaisedError, ChildTarget, ChildTimeoutError
from blockscale.problem import Candidate, Problem, TrialStatus, ceil_div

log = logging.getLogger(__name__)

GPU_EXTRA_HINT = 'pip install "blockscale[gpu]"'
_MAX_FAILED_STARTS = 3
_NICENESS = 5
_OS_ERRORS = ("OSError", "PermissionError", "FileNotFoundError", "BlockingIOError", "NotADirectoryError")


@dataclass(frozen=True)
class CompileOutcome:
    """How one compilation ended: ``status`` is OK or the trial's failure. ``compile_s`` is 0 where nothing was done.

    ``code`` is a digest of all that the GPU gets to run; empty where nothing was compiled.
    """

    status: TrialStatus
    message: str = ""
    compile_s: float = 0.0
    code: str = ""


@dataclass(frozen=True)
class CompileOptions:
    """What a compile process needs to know to start; ``cache_dir`` is absolute. ``kernels`` are those compiled."""

    cache_dir: Path
    kernels: KernelSource = OWN


@dataclass(frozen=True)
class CompileRequest:
    """One candidate to compile for a device. All requests of a pool are for one device."""

    spec: DeviceSpec
    problem: Problem
    candidate: Candidate


@dataclass(frozen=True)
class PoolClock:
    """What a pool has done: compilations, and the seconds they took summed over its ``workers``."""

    workers: int
    compilations: int
    busy_s: float


@dataclass(frozen=True)
class PoolSettings:
    """Sizes and limits of the pool. A process holds 120-240 MB and is replaced after ``recycle_after`` compilations,
    since Triton keeps every kernel it compiled. More than 32 outrun any GPU that measures what they made."""

    workers: int = field(default_factory=lambda: min(32, max(1, len(os.sched_getaffinity(0)) - 1)))
    time_limit_s: float = 60.0
    start_limit_s: float = 180.0
    recycle_after: int = 200
    function: str = "blockscale.measure.compile_worker:open_compiler"


def _specialisation(value: int) -> tuple[bool, bool, bool]:
    """What Triton's compiled code depends on in an integer argument: 1, a multiple of 16, wider than 32 bits."""
    return value == 1, value % 16 == 0, value >= 2**31


def compile_key(problem: Problem, candidate: Candidate, kernels: KernelSource = OWN) -> tuple[object, ...]:
    """Equal for two (problem, candidate) pairs that compile to the same code; hashable.

    Sizes count only by their class (1, multiple of 16, other, beyond 32 bits), and so do the strides that follow from
    them: a row of A, of C, of the scales, and a plane of split-K partials. An engine's reduction of partials is
    compiled for the number of C's elements (SGLang's `_reduce_block_fp8_split_k`, read in 0.5.21 to 0.5.23).
    """
    shape, quant, config = problem.shape, problem.quant, candidate.config
    groups = ceil_div(shape.K, quant.block_k)
    sizes = (shape.M, shape.N, shape.K, groups, shape.M * shape.N, shape.M * shape.K, shape.N * shape.K)
    return (
        candidate,
        quant,
        problem.out_dtype,
        shape.K % config.block_k == 0,
        tuple(_specialisation(size) for size in sizes),
        shape.M * shape.N if kernels != OWN and config.split_k > 1 else None,
    )


@dataclass
class _Job:
    key: tuple[object, ...]
    request: CompileRequest
    future: Future[CompileOutcome]
    rank: int


@dataclass
class _Worker:
    child: Child
    deadline: float
    ready: bool = False
    job: _Job | None = None
    done: int = 0


class CompilePool:
    """Compiles what is submitted, the lowest rank first, on several processes.

    Thread-safe; one thread manages the processes. They start with the first job, or all at once with ``warm``. Results
    are remembered by `compile_key`, so that a config which several problems share is compiled once.
    """

    def __init__(self, options: CompileOptions, settings: PoolSettings | None = None) -> None:
        self._options = options
        self._settings = settings or PoolSettings()
        self._queue: list[tuple[int, int, _Job]] = []  # a heap by rank, then order; a job may stand in it twice
        self._order = count()
        # Of a job that is finished the outcome only: its future would keep all that was ever told of it.
        self._known: dict[tuple[object, ...], _Job | CompileOutcome] = {}
        self._lock = Lock()
        self._wake_read, self._wake_write = Pipe(duplex=False)
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._closing = False
        self._failure: IncompleteRunError | None = None  # of the manager: nobody compiles any more
        self._thread: Thread | None = None
        self._to_warm = 0
        self._compilations = 0
        self._busy_s = 0.0

    def warm(self) -> None:
        """Start all processes now, so that they have imported the compiler when the first job comes."""
        with self._lock:
            self._to_warm = self._settings.workers
            self._start_manager()
        self._wake()

    def submit(self, request: CompileRequest, rank: int = 0) -> Future[CompileOutcome]:
        """Queue one compilation. A future cancelled before its turn costs nothing.

        What is queued already for another problem comes as early as the lower of both ranks says. The future raises
        ``InputError`` when the compiler's packages are missing and ``IncompleteRunError`` when compile processes cannot
        be started.

        Raises:
            IncompleteRunError: the thread that manages the processes has failed.
            RuntimeError: the pool is closed.
        """
        key = compile_key(request.problem, request.candidate, self._options.kernels)
        with self._lock:
            if self._closing:
                raise RuntimeError("the compile pool is closed")
            if self._failure is not None:
                raise self._failure
            known = self._known.get(key)
            if isinstance(known, CompileOutcome):
                return _finished(known)
            if known is not None and not known.future.cancelled():
                if rank < known.rank and not known.future.running() and not known.future.done():
                    self._enqueue(known, rank)
                return _shared(known.future)
            job = _Job(key, request, Future(), rank)
            self._known[key] = job
            self._enqueue(job, rank)
            self._start_manager()
        self._wake()
        return job.future

    def clock(self) -> PoolClock:
        """What was done so far."""
        return PoolClock(self._settings.workers, self._compilations, self._busy_s)

    def close(self) -> None:
        """Stop at once: running compilations are killed, queued ones cancelled. Safe to call twice."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._wake()
        if thread is not None:
            thread.join()

    def _enqueue(self, job: _Job, rank: int) -> None:
        job.rank = rank
        heapq.heappush(self._queue, (rank, next(self._order), job))

    def _start_manager(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._manage, name="blockscale-compile-pool", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_write.send_bytes(b"")

    def _manage(self) -> None:
        try:
            while not self._closing:
                self._assign()
                self._wait()
        except BaseException as error:  # whoever waits for a future must hear of it
            log.exception("the compile pool's manager failed")
            failure = IncompleteRunError(f"the compile pool failed: {type(error).__name__}: {error}")
            with self._lock:
                self._failure = failure
            self._fail_all(failure)
        finally:
            for worker in self._workers:
                worker.child.kill()
            self._fail_all(None)

    def _next_job(self) -> _Job | None:
        with self._lock:
            while self._queue:
                _, _, job = heapq.heappop(self._queue)
                taken_before = job.future.running() or job.future.done()
                if not taken_before and job.future.set_running_or_notify_cancel():
                    return job
        return None

    def _assign(self) -> None:
        for worker in [worker for worker in self._workers if worker.ready and worker.job is None]:
            if not worker.child.alive:  # killed for its memory while idle, say: not the next candidate's doing
                self._drop(worker)
        for worker in self._workers:
            if worker.ready and worker.job is None and (job := self._next_job()) is not None:
                worker.job = job
                worker.deadline = time.monotonic() + self._settings.time_limit_s
                worker.child.send(job.request)
        starting = sum(not worker.ready for worker in self._workers)
        with self._lock:
            wanted = max(self._to_warm, len(self._queue) - starting)
            self._to_warm = 0
        if self._failed_starts >= _MAX_FAILED_STARTS and self._workers:
            return  # memory is short, say: those that run carry on alone
        for _ in range(min(self._settings.workers - len(self._workers), wanted)):
            self._workers.append(self._start())

    def _start(self) -> _Worker:
        # No GPU is visible: a compile process that touched it would disturb what is being timed.
        blind = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
        environment = {**blind, "TRITON_CACHE_DIR": str(self._options.cache_dir), "OMP_NUM_THREADS": "1"}
        child = Child(ChildTarget(self._settings.function, self._options, environment))
        with suppress(OSError):  # the measuring process must never wait for a CPU
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICENESS)
        return _Worker(child, time.monotonic() + self._settings.start_limit_s)

    def _wait(self) -> None:
        busy = {worker.child.connection: worker for worker in self._workers if worker.job or not worker.ready}
        timeout = min((worker.deadline for worker in busy.values()), default=None)
        if timeout is not None:
            timeout = max(0.0, timeout - time.monotonic())
        readable = wait([self._wake_read, *busy], timeout)
        if self._wake_read in readable:
            while self._wake_read.poll():
                self._wake_read.recv_bytes()
        now = time.monotonic()
        for connection, worker in busy.items():
            if connection in readable or now >= worker.deadline:
                self._collect(worker)

    def _collect(self, worker: _Worker) -> None:
        """Take a worker's answer, or its end, and keep, recycle or drop it."""
        job, worker.job = worker.job, None
        if job is None:
            self._collect_start(worker)
            return
        limit_s = self._settings.time_limit_s
        spent_s = time.monotonic() - (worker.deadline - limit_s)
        self._compilations += 1
        self._busy_s += spent_s
        try:
            outcome = worker.child.receive(0.0)
        except ChildTimeoutError:
            outcome = CompileOutcome(TrialStatus.COMPILE_TIMEOUT, f"not compiled within {limit_s:g} s", spent_s)
        except ChildDiedError as error:
            outcome = CompileOutcome(TrialStatus.COMPILE_ERROR, f"the compiler process {error}", spent_s)
        except ChildRaisedError as error:
            job.future.set_exception(self._broken(error))
            return
        worker.done += 1
        if not worker.child.alive or worker.done >= self._settings.recycle_after:
            self._drop(worker)
        with self._lock:
            self._known[job.key] = outcome
        job.future.set_result(outcome)

    def _broken(self, error: ChildRaisedError) -> Exception:
        """What an exception outside of any candidate means: the disk failed, or this package has a mistake."""
        if error.type_name in _OS_ERRORS:
            return IncompleteRunError(
                f"the compiler cannot use its cache in {self._options.cache_dir} ({error.message}): make room there or "
                "set XDG_CACHE_HOME to another place; the same command goes on from here."
            )
        log.error("compile process: %s", error.traceback)
        return RuntimeError(f"the compile process raised {error}")

    def _collect_start(self, worker: _Worker) -> None:
        try:
            worker.child.receive(0.0)
        except (ChildTimeoutError, ChildDiedError, ChildRaisedError) as error:
            self._drop(worker)
            self._failed_starts += 1
            if isinstance(error, ChildRaisedError) and error.type_name == "InputError":
                self._fail_all(InputError(error.message))
            elif isinstance(error, ChildRaisedError) and error.type_name == "ModuleNotFoundError":
                self._fail_all(InputError(f"compiling needs torch and Triton: {error.message}. {GPU_EXTRA_HINT}"))
            elif self._failed_starts >= _MAX_FAILED_STARTS and not self._workers:
                self._fail_all(IncompleteRunError(f"compile processes do not start: {error}"))
        else:
            self._failed_starts = 0
            worker.ready = True

    def _drop(self, worker: _Worker) -> None:
        worker.child.kill()
        self._workers.remove(worker)

    def _fail_all(self, error: BlockscaleError | None) -> None:
        """Give every unfinished future this error, or cancel it."""
        with self._lock:
            jobs = [*(job for _, _, job in self._queue), *(worker.job for worker in self._workers if worker.job)]
            self._queue.clear()
            unfinished = {id(job): job.future for job in jobs if not job.future.done()}
            self._known = {key: job for key, job in self._known.items() if id(job) not in unfinished}
        for future in unfinished.values():
            if error is not None:
                with suppress(Exception):  # cancelled meanwhile
                    future.set_exception(error)
            elif not future.cancel():
                future.set_exception(IncompleteRunError("the compile pool was closed"))


def _finished(outcome: CompileOutcome) -> Future[CompileOutcome]:
    """A future of what is known already, at no cost."""
    future: Future[CompileOutcome] = Future()
    future.set_result(replace(outcome, compile_s=0.0))
    return future


def _shared(known: Future[CompileOutcome]) -> Future[CompileOutcome]:
    """A future that ends as ``known`` does, at no cost."""
    shared: Future[CompileOutcome] = Future()

    def hand_on(done: Future[CompileOutcome]) -> None:
        if done.cancelled():
            shared.cancel()
        elif shared.set_running_or_notify_cancel():
            error = done.exception()
            if error is not None:
                shared.set_exception(error)
            else:
                shared.set_result(replace(done.result(), compile_s=0.0))

    known.add_done_callback(hand_on)
    return shared
