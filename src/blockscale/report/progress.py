"""What a watcher wants to know while a run goes on, gathered from its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockscale.executor.base import APPROXIMATE
from blockscale.executor.cost import measuring_s
from blockscale.problem import Problem
from blockscale.report.results import count, format_us, short_config, speed_up
from blockscale.selection import Outcome
from blockscale.tuning.events import Event, ProblemResult, ProblemStarted, RunStarted, TrialFinished


@dataclass(frozen=True, slots=True)
class ProgressView:
    """One glance at a run. Times in µs and seconds; ``left_s`` is None before the first problem is done.

    ``problem`` is the one that was heard of last, with what is known of it; ``under_way`` counts all that have begun.
    """

    device: str
    engine: str
    problem: Problem | None
    tried: int
    best_us: float | None
    baseline_us: float | None
    under_way: int
    done: int
    total: int
    elapsed_s: float
    left_s: float | None
    approximate: bool


@dataclass(slots=True)
class _Standing:
    """How a problem under way stands."""

    device: str
    engine: str
    problem: Problem | None
    tried: int = 0
    best_us: float | None = None
    baseline_us: float | None = None


class Progress:
    """Folds a run's events into ``ProgressView``s. ``clock`` gives seconds, ``expected`` all problems to come."""

    def __init__(self, expected: Sequence[Problem], engines: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start_s = clock()
        self._total_cost_s = engines * sum(map(measuring_s, expected))
        self._done_cost_s = 0.0
        self._devices: list[str] = []
        self._total = engines * len(expected)
        self._last: _Standing | None = None
        self._under_way: dict[tuple[str, str, Problem], _Standing] = {}  # by device, engine and problem
        self.results: list[ProblemResult] = []
        self.approximate: set[tuple[str, Problem]] = set()  # engines and problems timed on another kernel

    def update(self, event: Event) -> None:
        """Take one event in; those that say nothing about progress are passed over."""
        match event:
            case RunStarted():
                self._devices.append(event.device.name)
            case ProblemStarted():
                self._last = _Standing(event.device_name, event.engine, event.problem)
                self._under_way[event.device_name, event.engine, event.problem] = self._last
            case TrialFinished():
                self._last = standing = self._under_way[event.device_name, event.engine, event.trial.problem]
                standing.tried += 1
                standing.best_us, standing.baseline_us = event.best_us, event.baseline_us
                if APPROXIMATE in event.trial.labels:
                    self.approximate.add((event.engine, event.trial.problem))
            case ProblemResult():
                self.results.append(event)
                self._done_cost_s += measuring_s(event.problem)
                self._under_way.pop((event.device_name, event.engine, event.problem), None)
            case _:
                pass

    def view(self) -> ProgressView:
        """The run as it stands."""
        elapsed_s = self._clock() - self._start_s
        left_s = None
        if self._done_cost_s > 0:
            left_s = elapsed_s * max(self._total_cost_s - self._done_cost_s, 0.0) / self._done_cost_s
        last = self._last or _Standing("", "", None)
        return ProgressView(
            device=last.device or " and ".join(self._devices),
            engine=last.engine,
            problem=last.problem,
            tried=last.tried,
            best_us=last.best_us,
            baseline_us=last.baseline_us,
            under_way=len(self._under_way),
            done=len(self.results),
            total=self._total,
            elapsed_s=elapsed_s,
            left_s=left_s,
            approximate=(last.engine, last.problem) in self.approximate,
        )

    def result_line(self, result: ProblemResult, width: int | None = None) -> str:
        """One finished problem as one plain line; call after ``update``.

        Config and number of candidates are left out where they do not fit into ``width`` characters.
        """
        mark = "≈" if (result.engine, result.problem) in self.approximate else ""
        place = f"[{len(self.results):>{len(str(self._total))}}/{self._total}]"
        on = f" on {result.device_name}" if result.device_name else ""
        head = f"{place} {result.engine} {result.problem}{on}: "
        if result.outcome is Outcome.NO_VALID_CANDIDATE:
            return f"{head}no valid candidate among {result.screened} tried ({result.reason})"
        gain = speed_up(result)
        if result.outcome is Outcome.KEPT:
            change = f"{format_us(result.time_us, mark)} µs, kept (nothing beat it)"
        else:
            ratio = "" if gain is None else f" ({mark}{gain:.2f}×)"
            change = f"{format_us(result.baseline_us, mark)} → {format_us(result.time_us, mark)} µs{ratio}"
        line = f"{head}{change}"
        for part in (short_config(result.entry), f"{result.screened} tried"):
            longer = f"{line} · {part}"
            if width is not None and len(longer) > width:
                break
            line = longer
        return line


def progress_lines(view: ProgressView) -> list[str]:
    """The live view's text: what is tuned, how it stands, how far the run is."""
    if view.problem is None:
        return [f"{view.device or 'device'}: preparing"]
    mark = "≈" if view.approximate else ""
    best = f"best so far {format_us(view.best_us, mark)} µs, baseline {format_us(view.baseline_us, mark)} µs"
    if view.best_us and view.baseline_us:
        best += f" ({mark}{view.baseline_us / view.best_us:.2f}×)"
    left = "time left unknown yet" if view.left_s is None else f"about {format_seconds(view.left_s)} left"
    done = f"{view.done} of {view.total} problems done, {view.under_way} under way"
    return [
        f"{view.engine} · {view.problem} on {view.device}",
        f"{best} · {count(view.tried, 'candidate')} tried",
        f"{done} · {format_seconds(view.elapsed_s)} · {left}",
    ]


def format_seconds(seconds: float) -> str:
    """Seconds as ``45 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
