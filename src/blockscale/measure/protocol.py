"""What the measuring process is asked and what it answers; plain values that the parent reads without torch."""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, Problem, TrialStatus


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as a person picks it: its index among the visible ones, its name, its memory in bytes."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Measured:
    """What became of one candidate on the GPU. ``poisoned``: the process can measure nothing any more."""

    status: TrialStatus
    samples_us: tuple[float, ...] = ()
    message: str = ""
    labels: tuple[str, ...] = ()
    poisoned: bool = False


@dataclass(frozen=True)
class Description:
    """Answer to `Describe`."""

    spec: DeviceSpec
    environment: Environment
    free_bytes: int


@dataclass(frozen=True)
class Describe:
    """Asks what the GPU is."""


@dataclass(frozen=True)
class Prepare:
    """Announces the problems to come; refuses with ``InputError`` those that do not fit into free memory."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Screen:
    """Asks for one candidate's `Measured`; ``best_us`` is the best time so far."""

    problem: Problem
    candidate: Candidate
    best_us: float | None


@dataclass(frozen=True)
class Finals:
    """Asks for a list of `Measured`, None for what was not reached."""

    problem: Problem
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Warnings:
    """Asks for sentences about the GPU's present state."""


Request = Describe | Prepare | Screen | Finals | Warnings
