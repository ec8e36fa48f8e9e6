"""The thread that keeps a measuring process busy with whatever is compiled."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Condition, Event, Lock, Thread
from typing import TypeAlias

from blockscale.executor.base import SAME_CODE, Done, Screening, Work
from blockscale.measure.compile_pool import CompileOutcome
from blockscale.measure.process import MeasuringProcess
from blockscale.measure.protocol import Finals, Measured, Screen
from blockscale.problem import Candidate, Kernel, Phase, Problem, Trial, TrialStatus
from blockscale.space import LaunchGrid, launch_grid

# Requests that the process holds at a time: with one more than it works on, it never waits for this process's Python.
_AHEAD = 2
_JOIN_S = 15.0

# What a launch does to the GPU: equal for two candidates that are the same work.
_Launched: TypeAlias = tuple[Problem, str, LaunchGrid]


@dataclass
class Task:
    """Work on its way: each of its candidates is compiled, then it is measured."""

    work: Work
    rank: int
    outcomes: list[CompileOutcome | None]
    _lock: Lock = field(default_factory=Lock)

    def compiled(self, place: int, outcome: CompileOutcome) -> bool:
        """Note how one candidate's compilation ended, from any thread; whether it was the last."""
        with self._lock:
            self.outcomes[place] = outcome
            return all(outcome is not None for outcome in self.outcomes)

    def launched(self, place: int) -> _Launched | int | None:
        """What a candidate launches, or its place where its code is not known; None where it did not compile."""
        outcome, candidate = self.outcomes[place], self.work.candidates[place]
        if outcome is None or outcome.status is not TrialStatus.OK:
            return None
        problem = self.work.problem
        return (problem, outcome.code, launch_grid(problem, candidate.config)) if outcome.code else place

    def leaders(self) -> dict[_Launched | int, int]:
        """The places of the candidates to measure: of those that launch the same, the first."""
        places: dict[_Launched | int, int] = {}
        for place in range(len(self.outcomes)):
            if (launched := self.launched(place)) is not None:
                places.setdefault(launched, place)
        return places


@dataclass(frozen=True)
class GpuClock:
    """Seconds in which the process measured, by phase, and when (``time.monotonic``) it last answered."""

    screening_s: float
    finals_s: float
    last_s: float


class MeasuringThread:
    """Measures tasks, the lowest rank first, and delivers what became of each, or the exception that ended it all.

    A candidate that launches the very code of one screened before on the same problem gets that one's result.
    """

    def __init__(self, process: MeasuringProcess, deliver: Callable[[Done | BaseException], None]) -> None:
        self._process = process
        self._deliver = deliver
        self._changed = Condition()
        self._waiting: list[tuple[int, int, Task]] = []  # a heap by rank, then order
        self._order = count()
        self._screened: dict[_Launched, Measured | list[Task]] = {}  # tasks: what waits for the one being measured
        self._best_us: dict[tuple[Problem, Kernel], float] = {}
        self._busy_s = dict.fromkeys(Phase, 0.0)
        self._last_s = 0.0
        self._closing = Event()
        self.labels: set[str] = set()
        self._thread = Thread(target=self._run, name="blockscale-measuring", daemon=True)
        self._thread.start()

    def prepare(self, problems: Sequence[Problem]) -> None:
        """As ``MeasuringProcess.prepare``; before any task."""
        self._process.prepare(problems)

    def warnings(self) -> list[str]:
        """As ``MeasuringProcess.warnings``; while there is no task."""
        return self._process.warnings()

    def clock(self) -> GpuClock:
        """What the process did so far."""
        return GpuClock(self._busy_s[Phase.SCREEN], self._busy_s[Phase.FINAL], self._last_s)

    def add(self, task: Task) -> None:
        """Take on a task that is compiled, from any thread."""
        with self._changed:
            launched = task.launched(0)
            if isinstance(task.work, Screening) and isinstance(launched, tuple):
                same = self._screened.setdefault(launched, [])
                if isinstance(same, Measured):
                    self._finish(task, [_copied(same)], 0.0)
                    return
                same.append(task)
                if len(same) > 1:
                    return
            if not task.leaders():
                self._finish(task, [], 0.0)
                return
            heapq.heappush(self._waiting, (task.rank, next(self._order), task))
            self._changed.notify()

    def close(self) -> None:
        """End the thread and its process, whatever they do. Safe to call twice."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._process.stop()
        self._thread.join(_JOIN_S)
        self._process.discard()

    def _run(self) -> None:
        ahead: deque[tuple[Task, float]] = deque()
        try:
            while True:
                while len(ahead) < _AHEAD and (task := self._next(wait=not ahead)) is not None:
                    self._process.send(self._request(task))
                    ahead.append((task, time.monotonic()))
                if self._closing.is_set():
                    return
                task, sent_s = ahead[0]
                measured = self._process.receive()
                if self._closing.is_set():
                    return
                ahead.popleft()
                now_s = time.monotonic()
                self._measured(task, measured, now_s - max(sent_s, self._last_s))
                self._last_s = now_s
        except BaseException as error:  # whoever waits for the work must hear of it
            if not self._closing.is_set():
                self._deliver(error)

    def _next(self, *, wait: bool) -> Task | None:
        with self._changed:
            while wait and not self._waiting and not self._closing.is_set():
                self._changed.wait()
            if not self._waiting or self._closing.is_set():
                return None
            return heapq.heappop(self._waiting)[2]

    def _request(self, task: Task) -> Screen | Finals:
        work = task.work
        if isinstance(work, Screening):
            seen_us = self._best_us.get((work.problem, work.candidate.kernel))
            known_us = [time_us for time_us in (work.best_us, seen_us) if time_us is not None]
            return Screen(work.problem, work.candidate, min(known_us, default=None))
        return Finals(work.problem, tuple(work.candidates[place] for place in task.leaders().values()))

    def _measured(self, task: Task, measured: Sequence[Measured], spent_s: float) -> None:
        self._busy_s[task.work.phase] += spent_s
        for result in measured:
            self.labels.update(result.labels)
        with self._changed:
            launched = task.launched(0)
            twins: Measured | list[Task] = []
            if isinstance(task.work, Screening) and isinstance(launched, tuple):
                twins = self._screened.get(launched, [])
                self._screened[launched] = measured[0]
            self._finish(task, measured, spent_s)
            for twin in twins[1:] if isinstance(twins, list) else []:
                self._finish(twin, [_copied(measured[0])], 0.0)

    def _finish(self, task: Task, measured: Sequence[Measured], spent_s: float) -> None:
        """Deliver a task, given the results of its leaders and the seconds that they took together."""
        leaders = task.leaders()
        results = dict(zip(leaders, measured, strict=True))
        trials = []
        for place, candidate in enumerate(task.work.candidates):
            outcome, launched = task.outcomes[place], task.launched(place)
            assert outcome is not None
            if launched is None:
                trial = _trial(task.work, candidate, Measured(outcome.status, message=outcome.message))
            elif leaders[launched] == place:
                trial = _trial(task.work, candidate, results[launched], spent_s / len(leaders))
                self._remember(trial)
            else:
                trial = _trial(task.work, candidate, _copied(results[launched]))
            trials.append(replace(trial, compile_s=outcome.compile_s))
        self._deliver(Done(task.work, tuple(trials)))

    def _remember(self, trial: Trial) -> None:
        if trial.phase is Phase.SCREEN and trial.status is TrialStatus.OK and trial.time_us is not None:
            key = (trial.problem, trial.candidate.kernel)
            self._best_us[key] = min(trial.time_us, self._best_us.get(key, trial.time_us))


def _copied(measured: Measured) -> Measured:
    return replace(measured, labels=(*measured.labels, SAME_CODE))


def _trial(work: Work, candidate: Candidate, measured: Measured, elapsed_s: float = 0.0) -> Trial:
    return Trial(
        problem=work.problem,
        candidate=candidate,
        status=measured.status,
        phase=work.phase,
        samples_us=measured.samples_us,
        message=measured.message,
        elapsed_s=elapsed_s,
        labels=measured.labels,
    )
