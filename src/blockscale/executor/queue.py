"""What is compiled and waits for one of several equal GPUs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from threading import Condition, Event

from blockscale.executor.balance import Balance
from blockscale.executor.base import Done, Screening
from blockscale.executor.culprits import Culprits
from blockscale.executor.tasks import Launched, Task, copied
from blockscale.measure.protocol import Measured
from blockscale.problem import Candidate, Kernel, Phase, Problem, TrialStatus


class TaskQueue:
    """Hands compiled tasks to GPUs and delivers what became of each; usable from any thread.

    All tasks of a problem go to one GPU, the one that takes the first of them. A GPU takes the lowest rank of what
    belongs to it and of what is free. It leaves a free problem to another GPU that has less to do, unless it would have
    to wait itself.

    A candidate that launches the very code of one screened before on the same problem gets that one's result. One that
    has broken measuring processes twice gets no further.
    """

    def __init__(self, gpus: int, deliver: Callable[[Done], None]) -> None:
        self._deliver = deliver
        self._changed = Condition()
        self._gpus = range(gpus)
        self._balance = Balance(gpus)
        self._culprits = Culprits()
        self._waiting: dict[Problem, list[tuple[int, int, Task]]] = {}  # heaps by rank, then order
        self._order = count()
        self._idle: set[int] = set()  # GPUs that wait for a task
        self._screened: dict[Launched, Measured | list[Task]] = {}  # tasks: what waits for the one being measured
        self._best_us: dict[tuple[Problem, Kernel], float] = {}
        self._closing = Event()

    def add(self, task: Task) -> None:
        """Take on a task that is compiled."""
        with self._changed:
            launched = task.launched(0)
            if isinstance(task.work, Screening) and isinstance(launched, tuple):
                same = self._screened.setdefault(launched, [])
                if isinstance(same, Measured):
                    self._finish(task, [copied(same)], 0.0)
                    return
                same.append(task)
                if len(same) > 1:
                    return
            if not task.leaders():
                self._finish(task, [], 0.0)
                return
            heapq.heappush(self._waiting.setdefault(task.work.problem, []), (task.rank, next(self._order), task))
            self._changed.notify_all()

    def take(self, gpu: int, *, wait: bool) -> Task | None:
        """The next task for a GPU; None when the queue is closed, or without ``wait`` when there is none for it now.

        Who does not wait is still at work, and leaves free problems to those that have less to do.
        """
        with self._changed:
            while not self._closing.is_set():
                problem = self._choose(gpu, idle=wait)
                if problem is not None:
                    task = self._pop(problem, gpu)
                    if self._may_launch(task):
                        self._idle.discard(gpu)
                        return task
                elif not wait:
                    return None
                else:
                    self._idle.add(gpu)
                    self._changed.wait()
            return None

    def finish(self, task: Task, measured: Sequence[Measured], spent_s: float) -> None:
        """Deliver a task that was measured, given the results of its leaders and the seconds they took together."""
        with self._changed:
            launched = task.launched(0)
            twins: Measured | list[Task] = []
            if isinstance(task.work, Screening) and isinstance(launched, tuple):
                twins = self._screened.get(launched, [])
                self._screened[launched] = measured[0]
            self._finish(task, measured, spent_s)
            for twin in twins[1:] if isinstance(twins, list) else []:
                self._finish(twin, [copied(measured[0])], 0.0)

    def best_us(self, problem: Problem, candidate: Candidate) -> float | None:
        """The best time screened so far on this problem and the candidate's kernel, None without one."""
        return self._best_us.get((problem, candidate.kernel))

    def is_closed(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._closing.is_set()

    def close(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()

    def _choose(self, gpu: int, *, idle: bool) -> Problem | None:
        """The problem whose first task the GPU is to take."""
        own = min((p for p in self._waiting if self._balance.gpu_of(p) == gpu), key=self._place, default=None)
        free = min((p for p in self._waiting if self._balance.gpu_of(p) is None), key=self._place, default=None)
        if free is None or (own is not None and self._place(own) < self._place(free)):
            return own
        rivals = self._idle if idle and own is None else self._gpus
        return free if self._balance.least_left(gpu, rivals) else own

    def _place(self, problem: Problem) -> tuple[int, int]:
        rank, order, _ = self._waiting[problem][0]
        return rank, order

    def _pop(self, problem: Problem, gpu: int) -> Task:
        heap = self._waiting[problem]
        _, _, task = heapq.heappop(heap)
        if not heap:
            del self._waiting[problem]
        if self._balance.gpu_of(problem) is None:
            self._balance.bind(problem, gpu)
            self._changed.notify_all()  # what is free may be another's now
        return task

    def _may_launch(self, task: Task) -> bool:
        """Whether anything of the task is left to measure; else it is delivered."""
        launched = task.launched(0)
        for place, candidate in enumerate(task.work.candidates):
            if (reason := self._culprits.refusal(candidate)) is not None:
                task.refuse(place, reason)
        if task.leaders():
            return True
        self._finish(task, [], 0.0)
        twins = self._screened.pop(launched, []) if isinstance(launched, tuple) else []
        for twin in twins[1:] if isinstance(twins, list) else []:
            self.add(twin)
        return False

    def _finish(self, task: Task, measured: Sequence[Measured], spent_s: float) -> None:
        done = task.done(measured, spent_s)
        if self._balance.gpu_of(task.work.problem) is not None:
            self._balance.note(done)
        for trial in done.trials:
            self._culprits.note(trial)
            if trial.phase is Phase.SCREEN and trial.status is TrialStatus.OK and trial.time_us is not None:
                key = (trial.problem, trial.candidate.kernel)
                self._best_us[key] = min(trial.time_us, self._best_us.get(key, trial.time_us))
        self._deliver(done)
