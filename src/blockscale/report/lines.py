"""Events as lines: one JSON object each for programs, and plain ones for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blockscale.report.weights import DevicePlan, Use, plan_json, uses_json
from blockscale.tuning.events import Event, FileWritten, Note, ProblemResult, RunStarted, RunSummary, TimeSpent


def json_line(event: Event | DevicePlan, serves: Mapping[Path, Sequence[Use]] | None = None) -> str | None:
    """One event as one line of JSON; None for events that lines leave out (single trials, starts of problems).

    ``serves`` names the layers that will read each file, where they are known.
    """
    record = _record(event, serves or {})
    return None if record is None else json.dumps(record, ensure_ascii=False)


def plain_line(event: FileWritten | Note | TimeSpent) -> str:
    """What was written, is worth knowing or took how long, as one line for a person."""
    match event:
        case FileWritten():
            return f"wrote {event.path} ({len(event.keys)} batch sizes)"
        case Note():
            return f"{'warning' if event.warning else 'note'}: {event.text}"
        case TimeSpent():
            return _time_line(event)


def _record(event: Event | DevicePlan, serves: Mapping[Path, Sequence[Use]]) -> dict[str, Any] | None:
    match event:
        case DevicePlan():
            return plan_json(event)
        case RunStarted():
            return {
                "event": "run",
                "device": event.device.name,
                "engines": list(event.engines),
                "problems": event.problems,
                "gpus": event.gpus,
            }
        case ProblemResult():
            return {"event": "problem", **_problem(event)}
        case FileWritten():
            return {
                "event": "file",
                "engine": event.engine,
                "path": str(event.path),
                "keys": list(event.keys),
                "serves": uses_json(serves.get(event.path, ())),
            }
        case Note():
            return {"event": "warning" if event.warning else "note", "text": event.text}
        case TimeSpent():
            return _time(event)
        case RunSummary():
            return _summary(event)
        case _:
            return None


def _time_line(event: TimeSpent) -> str:
    clock = event.device
    gpus, together = (f"{clock.gpus} GPUs together", " together") if clock.gpus > 1 else ("GPU", "")
    measuring = (
        f"{gpus} {clock.measuring_s:.0f} s measuring (screens {clock.screening_s:.0f}, finals {clock.finals_s:.0f})"
    )
    head = f"Time of {event.device_name}" if event.device_name else "Time"
    if clock.recorded:
        return f"{head}: {event.wall_s:.0f} s; as recorded, {measuring}, compiling {clock.compiling_s:.0f} CPU s"
    return (
        f"{head}: {event.wall_s:.0f} s: start {clock.start_s:.0f}, compiling {clock.compiling_s:.0f} CPU s on "
        f"{clock.compile_workers} workers ({100 * event.compilers_busy:.0f}% busy), {measuring}, "
        f"idle {clock.idle_s:.0f} s{together}, search and store {event.computing_s:.0f} s"
    )


def _time(event: TimeSpent) -> dict[str, Any]:
    clock = asdict(event.device)
    times = {"wall_s": event.wall_s, "computing_s": event.computing_s, **clock}
    return {"event": "time", **_device(event), **times}


def _device(event: ProblemResult | TimeSpent) -> dict[str, str]:
    """The device's name, where there are several."""
    return {"device": event.device_name} if event.device_name else {}


def _problem(result: ProblemResult) -> dict[str, Any]:
    shape = result.problem.shape
    return {
        **_device(result),
        "M": shape.M,
        "N": shape.N,
        "K": shape.K,
        "engine": result.engine,
        "config": result.entry,
        "time_us": result.time_us,
        "baseline_us": result.baseline_us,
        "roofline_us": result.roofline_us,
        "status": str(result.outcome),
        "reason": result.reason,
        "screened": result.screened,
    }


def _summary(summary: RunSummary) -> dict[str, Any]:
    return {
        "event": "summary",
        "trials_measured": summary.trials_measured,
        "trials_reused": summary.trials_reused,
        "files": [str(path) for path in summary.files],
        "problems": [_problem(result) for result in summary.results],
        "complete": summary.complete,
    }
