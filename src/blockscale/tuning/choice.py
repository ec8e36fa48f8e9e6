"""From a selection to what a file gets: the entry under its key, and the record of where it comes from."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import Any

import blockscale
from blockscale.engines import Engine
from blockscale.problem import Environment, Trial
from blockscale.selection import Outcome, Selection
from blockscale.tuning.baselines import Baseline


@dataclass(frozen=True, slots=True)
class Choice:
    """One key's entry and its record for the sidecar."""

    entry: dict[str, Any]
    provenance: dict[str, Any]


def chosen_entry(engine: Engine, baseline: Baseline, selection: Selection) -> dict[str, Any] | None:
    """The selected config as the engine's file holds it; None where no candidate is valid.

    A baseline that is kept stays as its file spells it, with whatever fields it has there.
    """
    if selection.winner is None:
        return None
    return baseline.entry if selection.outcome is Outcome.KEPT else engine.entry(selection.winner.config)


def origin(engine: Engine, baseline: Baseline, environment: Environment) -> dict[str, Any]:
    """The part of a record that does not depend on how the choice came out."""
    return {
        "engine": {"name": engine.name, "version": engine.version},
        "baseline": baseline.source,
        "environment": asdict(environment),
        "written": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "blockscale": blockscale.__version__,
    }


def verdict(selection: Selection, final: Trial | None) -> dict[str, Any]:
    """The part of a record that says what was chosen and why; ``final`` is the winner's trial."""
    record: dict[str, Any] = {
        "status": str(selection.outcome),
        "reason": selection.reason,
        "time_us": selection.time_us,
        "baseline_us": selection.baseline_us,
    }
    if final is not None:
        record |= {
            "kernel": str(final.candidate.kernel),
            "samples_us": list(final.samples_us),
            "labels": list(final.labels),
        }
    return record
