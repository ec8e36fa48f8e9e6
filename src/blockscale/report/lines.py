"""Events as lines: one JSON object each for programs, and plain ones for people."""

from __future__ import annotations

import json
from typing import Any

from blockscale.tuning.events import Event, FileWritten, Note, ProblemResult, RunStarted, RunSummary


def json_line(event: Event) -> str | None:
    """One event as one line of JSON; None for events that lines leave out (single trials, starts of problems)."""
    record = _record(event)
    return None if record is None else json.dumps(record, ensure_ascii=False)


def plain_line(event: FileWritten | Note) -> str:
    """What was written or is worth knowing, as one line for a person."""
    match event:
        case FileWritten():
            return f"wrote {event.path} ({len(event.keys)} batch sizes)"
        case Note():
            return f"{'warning' if event.warning else 'note'}: {event.text}"


def _record(event: Event) -> dict[str, Any] | None:
    match event:
        case RunStarted():
            return {
                "event": "run",
                "device": event.device.name,
                "engines": list(event.engines),
                "problems": event.problems,
            }
        case ProblemResult():
            return {"event": "problem", **_problem(event)}
        case FileWritten():
            return {"event": "file", "engine": event.engine, "path": str(event.path), "keys": list(event.keys)}
        case Note():
            return {"event": "warning" if event.warning else "note", "text": event.text}
        case RunSummary():
            return _summary(event)
        case _:
            return None


def _problem(result: ProblemResult) -> dict[str, Any]:
    shape = result.problem.shape
    return {
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
