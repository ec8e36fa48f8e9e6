"""Virtual time: the order in which equal GPUs would finish work whose seconds are known beforehand."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

from blockscale.executor.base import Done
from blockscale.problem import Problem


@dataclass(frozen=True, slots=True)
class _Job:
    """Work with its answer, and the seconds that it takes a compiler and then a GPU."""

    done: Done
    rank: int
    order: int
    compile_s: float
    measure_s: float

    @property
    def problem(self) -> Problem:
        return self.done.work.problem

    @property
    def place(self) -> tuple[int, int]:
        """Of what waits, the lowest goes first; no two are equal."""
        return self.rank, self.order


class VirtualGpus:
    """A pool of compile processes in front of some GPUs, as a machine has them, in a time of their own.

    Time passes in ``next_done`` only: whoever starts work takes no time to think. A free compile process takes the
    lowest rank that waits. A GPU that is free takes, of what is compiled, the lowest rank among the problems that are
    bound to it and those that are not bound; taking one binds its problem for good. Of several free GPUs the one that
    is free the longest chooses first. Without compile processes everything is compiled when it is started.
    """

    def __init__(self, gpus: int, compilers: int) -> None:
        self._free = dict.fromkeys(range(gpus), 0.0)  # since when
        self._compilers_free = compilers
        self._compiles = compilers > 0
        self._order = count()
        self._bound: dict[Problem, int] = {}
        # Heaps. What is ready but of a problem that has been bound since is moved when it comes to the top.
        self._to_compile: list[tuple[tuple[int, int], _Job]] = []
        self._compiling: list[tuple[float, int, _Job]] = []
        self._ready: list[tuple[tuple[int, int], _Job]] = []
        self._ready_on: list[list[tuple[tuple[int, int], _Job]]] = [[] for _ in range(gpus)]
        self._measuring: list[tuple[float, int, int, _Job]] = []
        self._waited_s = 0.0
        self.now_s = 0.0

    @property
    def idle_s(self) -> float:
        """Seconds in which GPUs had nothing to measure so far, summed over them."""
        return self._waited_s + sum(self.now_s - since_s for since_s in self._free.values())

    def start(self, done: Done, rank: int, compile_s: float, measure_s: float) -> None:
        """Take on work whose answer is ``done``."""
        job = _Job(done, rank, next(self._order), compile_s, measure_s)
        if self._compiles and compile_s > 0:
            heapq.heappush(self._to_compile, (job.place, job))
        else:
            self._compiled(job)

    def next_done(self) -> Done:
        """Let time pass until a GPU finishes something.

        Raises:
            RuntimeError: nothing is at work.
        """
        while True:
            self._compile_what_waits()
            self._measure_what_is_ready()
            if not self._measuring and not self._compiling:
                raise RuntimeError("nothing was started")
            if self._compiling and (not self._measuring or self._compiling[0][0] <= self._measuring[0][0]):
                self.now_s, _, job = heapq.heappop(self._compiling)
                self._compilers_free += 1
                self._compiled(job)
            else:
                self.now_s, _, gpu, job = heapq.heappop(self._measuring)
                self._free[gpu] = self.now_s
                return job.done

    def _compile_what_waits(self) -> None:
        while self._compilers_free and self._to_compile:
            _, job = heapq.heappop(self._to_compile)
            self._compilers_free -= 1
            heapq.heappush(self._compiling, (self.now_s + job.compile_s, next(self._order), job))

    def _compiled(self, job: _Job) -> None:
        gpu = self._bound.get(job.problem)
        heapq.heappush(self._ready if gpu is None else self._ready_on[gpu], (job.place, job))

    def _measure_what_is_ready(self) -> None:
        for gpu in sorted(self._free, key=lambda gpu: (self._free[gpu], gpu)):
            if (job := self._take(gpu)) is not None:
                self._bound[job.problem] = gpu
                self._waited_s += self.now_s - self._free.pop(gpu)
                heapq.heappush(self._measuring, (self.now_s + job.measure_s, next(self._order), gpu, job))

    def _take(self, gpu: int) -> _Job | None:
        """The lowest rank of what this GPU may take."""
        while self._ready and (owner := self._bound.get(self._ready[0][1].problem)) is not None:
            heapq.heappush(self._ready_on[owner], heapq.heappop(self._ready))
        heaps = [heap for heap in (self._ready, self._ready_on[gpu]) if heap]
        return heapq.heappop(min(heaps, key=lambda heap: heap[0][0]))[1] if heaps else None
