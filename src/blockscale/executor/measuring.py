"""The thread that keeps a GPU's measuring process busy with whatever is compiled."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread

from blockscale.executor.base import Screening
from blockscale.executor.queue import TaskQueue
from blockscale.executor.tasks import Task
from blockscale.measure.process import MeasuringProcess
from blockscale.measure.protocol import Finals, Screen
from blockscale.problem import Phase, Problem

# Requests that the process holds at a time: with one more than it works on, it never waits for this process's Python.
_AHEAD = 2
_JOIN_S = 15.0


@dataclass(frozen=True)
class GpuClock:
    """Seconds in which the process measured, by phase, and when (``time.monotonic``) it last answered."""

    screening_s: float
    finals_s: float
    last_s: float


class MeasuringThread:
    """Has one GPU, the ``lane``-th of a queue, measure what it takes from there.

    An exception that ended it all is told to ``failed``.
    """

    def __init__(
        self, process: MeasuringProcess, queue: TaskQueue, lane: int, failed: Callable[[BaseException], None]
    ) -> None:
        self._process = process
        self._queue = queue
        self._lane = lane
        self._failed = failed
        self._busy_s = dict.fromkeys(Phase, 0.0)
        self._last_s = 0.0
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

    def stop(self) -> None:
        """Kill the process whatever it does; the queue is closed."""
        self._process.stop()

    def join(self) -> None:
        """Wait for the thread of a stopped process to end. Safe to call twice."""
        self._thread.join(_JOIN_S)
        self._process.discard()

    def _run(self) -> None:
        ahead: deque[tuple[Task, float]] = deque()
        try:
            while True:
                while len(ahead) < _AHEAD and (task := self._queue.take(self._lane, wait=not ahead)) is not None:
                    self._process.send(self._request(task))
                    ahead.append((task, time.monotonic()))
                if self._queue.is_closed():
                    return
                task, sent_s = ahead[0]
                measured = self._process.receive()
                if self._queue.is_closed():
                    return
                ahead.popleft()
                now_s = time.monotonic()
                spent_s = now_s - max(sent_s, self._last_s)
                self._busy_s[task.work.phase] += spent_s
                for result in measured:
                    self.labels.update(result.labels)
                self._queue.finish(task, measured, spent_s)
                self._last_s = now_s
        except BaseException as error:  # whoever waits for the work must hear of it
            if not self._queue.is_closed():
                self._failed(error)

    def _request(self, task: Task) -> Screen | Finals:
        work = task.work
        if isinstance(work, Screening):
            seen_us = self._queue.best_us(work.problem, work.candidate)
            known_us = [time_us for time_us in (work.best_us, seen_us) if time_us is not None]
            return Screen(work.problem, work.candidate, min(known_us, default=None))
        return Finals(work.problem, tuple(work.candidates[place] for place in task.leaders().values()))
