"""What a run tells whoever watches it: plain values, for a live view or a log.

``device_name`` is set where devices of several models are tuned at the same time, and empty where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockscale.executor.base import DeviceClock
from blockscale.hardware import DeviceSpec
from blockscale.problem import Problem, Trial
from blockscale.selection import Outcome


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run is checked and about to measure."""

    device: DeviceSpec
    engines: tuple[str, ...]
    problems: int
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class ProblemStarted:
    """A problem is being tuned, beside others; ``index`` is its place in the run's order, from 1 over all engines."""

    engine: str
    problem: Problem
    index: int
    device_name: str = ""


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """A trial is in the store. ``best_us`` is the fastest so far, ``baseline_us`` what would run otherwise, in µs."""

    engine: str
    trial: Trial
    reused: bool
    best_us: float | None
    baseline_us: float | None
    device_name: str = ""


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """The entry of one problem. ``entry`` is the config as the engine's file holds it, None without a valid one."""

    engine: str
    problem: Problem
    outcome: Outcome
    entry: dict[str, Any] | None
    time_us: float | None
    baseline_us: float | None
    roofline_us: float | None
    reason: str
    screened: int  # candidates tried for this problem, measured now or earlier
    device_name: str = ""


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A config file is in place and was found again under the engine's own rules."""

    engine: str
    path: Path
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something mended or worth knowing; ``warning`` tells the two apart."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where the time of a run went: ``wall_s`` with the device's start, ``computing_s`` in this process, in seconds."""

    wall_s: float
    computing_s: float
    device: DeviceClock
    device_name: str = ""

    @property
    def compilers_busy(self) -> float:
        """Share of the workers' time in which they compiled."""
        available_s = self.device.compile_workers * self.wall_s
        return self.device.compiling_s / available_s if available_s else 0.0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended. ``files`` were written or found right; trials count candidates, screened or re-timed."""

    trials_measured: int
    trials_reused: int
    files: tuple[Path, ...]
    results: tuple[ProblemResult, ...]
    complete: bool


Event = RunStarted | ProblemStarted | TrialFinished | ProblemResult | FileWritten | Note | TimeSpent | RunSummary
Observer = Callable[[Event], None]
