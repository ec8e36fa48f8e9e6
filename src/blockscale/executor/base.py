"""The contract between a run and whatever can try configs: a GPU, a recorded device, a faulty one for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, Phase, Problem, Trial

APPROXIMATE = "approximate"
"""Label of a trial whose time was measured on a kernel akin to the one asked for."""

SAME_CODE = "same_code"
"""Label of a trial whose samples are another candidate's that compiled to the very same code."""


@dataclass(frozen=True, slots=True)
class Screening:
    """One candidate to try once. ``best_us`` is the best time so far among those it competes with, None without one.

    A device may stop at a first look where the candidate is far behind ``best_us``.
    """

    problem: Problem
    candidate: Candidate
    best_us: float | None = None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The one candidate."""
        return (self.candidate,)

    @property
    def phase(self) -> Phase:
        """Phase of the trial that this makes."""
        return Phase.SCREEN


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidates to re-time interleaved, on fresh inputs."""

    problem: Problem
    candidates: tuple[Candidate, ...]

    @property
    def phase(self) -> Phase:
        """Phase of the trials that this makes."""
        return Phase.FINAL


Work: TypeAlias = Screening | Comparison


@dataclass(frozen=True, slots=True)
class Done:
    """Finished work: one trial of its phase for each of its candidates, in their order."""

    work: Work
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """Where a device's time went, in seconds since it was opened.

    Seconds of measuring and of ``idle_s``, in which a GPU waited for something compiled, are summed over its ``gpus``,
    ``compiling_s`` over its ``compile_workers``. ``recorded``: the seconds were spent when the device was recorded.
    """

    start_s: float = 0.0
    screening_s: float = 0.0
    finals_s: float = 0.0
    idle_s: float = 0.0
    compiling_s: float = 0.0
    compilations: int = 0
    compile_workers: int = 0
    gpus: int = 1
    recorded: bool = False

    @property
    def measuring_s(self) -> float:
        """Seconds in which the GPU was at work."""
        return self.screening_s + self.finals_s


class Device(Protocol):
    """Something that tries candidates, many of different problems at a time.

    Whatever goes wrong with a candidate (no compile, wrong numbers, a dead process) is the ``TrialStatus`` of that
    candidate's trial. An exception means that the device itself is gone: ``IncompleteRunError``, with the reason.
    One thread uses a device, but a second one may wait in ``next_done`` meanwhile.
    """

    @property
    def spec(self) -> DeviceSpec:
        """Limits of the device."""
        ...

    @property
    def environment(self) -> Environment:
        """What its measurements depend on."""
        ...

    def prepare(self, problems: Sequence[Problem]) -> None:
        """Learn what is going to be tuned, before any work is started.

        Raises:
            InputError: a problem that this device can never answer (not recorded, too large for its memory).
            RuntimeError: work is under way.
        """
        ...

    def can_try(self, problem: Problem, candidate: Candidate) -> bool:
        """Whether a trial of this candidate could say anything: not where a recorded device holds none."""
        ...

    def start(self, work: Work, rank: int) -> None:
        """Take on work and return at once. Of what waits, the lower rank goes first, of equal ranks the first started.

        Raises:
            InputError: a problem that this device can never answer.
            IncompleteRunError: the device is gone.
        """
        ...

    def next_done(self) -> Done:
        """Wait for the next finished work, in whatever order it finishes.

        Raises:
            IncompleteRunError: the device is gone.
            RuntimeError: nothing was started that is not handed back.
        """
        ...

    def clock(self) -> DeviceClock:
        """Where the time went so far."""
        ...

    def warnings(self) -> list[str]:
        """Conditions a person should know of (a busy GPU, power or thermal limits), each said once."""
        ...

    def close(self) -> None:
        """Give back processes and memory, whatever is still at work. Safe to call twice.

        Also from another thread than the one that uses the device: a ``next_done`` that waits there is then ended by an
        ``IncompleteRunError``.
        """
        ...
