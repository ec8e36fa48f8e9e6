"""A trial as named values: what a line of layouts 1 and 2 holds, and a row of layout 3's columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from blockscale.problem import Candidate, Kernel, Phase, Problem, TileConfig, Trial, TrialStatus
from blockscale.recording.lines import BadLineError

_LAYOUT_1_STATUSES = {"wrong": TrialStatus.WRONG_RESULT, "err": TrialStatus.LAUNCH_ERROR}

# Values that every trial has, in the words of the file, and those that are left out where they say nothing.
STATED = ("phase", "status", "samples_us")
OPTIONAL = ("message", "compile_s", "elapsed_s", "labels")


def read_layout_1(fields: Mapping[str, Any], problem: Problem, kernel: Kernel) -> Trial:
    """A trial line of layout 1. A minimum and a maximum count as two samples.

    Raises:
        BadLineError: it breaks a rule; what else is wrong raises as Python does.
    """
    candidate = Candidate(kernel, TileConfig.from_entry(fields["config"]))
    text = fields["status"]
    status = _LAYOUT_1_STATUSES.get(text) or TrialStatus(text)
    samples = _samples(status, [fields[key] for key in ("time_us", "max_us") if key in fields])
    return Trial(problem, candidate, status, samples_us=samples, compile_s=_seconds(fields, "compile_s"))


def read_layout_2(fields: Mapping[str, Any], problem: Problem, kernel: Kernel) -> Trial:
    """A trial line of layout 2. Raises as ``read_layout_1``."""
    return read_row(fields, problem, Candidate(kernel, TileConfig.from_entry(fields["config"])))


def read_row(fields: Mapping[str, Any], problem: Problem, candidate: Candidate) -> Trial:
    """A candidate's trial from its named values. Raises as ``read_layout_1``."""
    status = TrialStatus(fields["status"])
    return Trial(
        problem,
        candidate,
        status,
        phase=Phase(fields["phase"]),
        samples_us=_samples(status, fields["samples_us"]),
        message=str(fields.get("message", "")),
        compile_s=_seconds(fields, "compile_s"),
        elapsed_s=_seconds(fields, "elapsed_s"),
        labels=tuple(map(str, fields.get("labels", ()))),
    )


def _seconds(fields: Mapping[str, Any], name: str) -> float:
    value = float(fields.get(name, 0.0))
    if not 0 <= value < math.inf:
        raise BadLineError(f"{name} = {value} is no number of seconds")
    return value


def _samples(status: TrialStatus, values: Iterable[Any]) -> tuple[float, ...]:
    samples = tuple(map(float, values))
    if not all(0 < sample < math.inf for sample in samples):
        raise BadLineError("a time is not a positive number of microseconds")
    if status.timed and not samples:
        raise BadLineError(f"status {status} has no time")
    return samples
