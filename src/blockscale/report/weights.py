"""What each weight of a run is for: the layers that launch it, who ships a file for it, its share of launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockscale.problem import WeightShape
from blockscale.report.table import Column, Table


@dataclass(frozen=True, slots=True)
class Use:
    """The layers of a model that launch one weight in one engine; ``count`` times in a forward pass."""

    engine: str
    model: str
    tp_size: int
    layers: tuple[str, ...]
    count: int

    def __str__(self) -> str:
        return f"{self.model} TP {self.tp_size}: {', '.join(self.layers)}"


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """A weight that is going to be tuned.

    ``shipped`` says by engine whether the installed one has a file for it; an engine that is not installed is missing.
    ``launches`` is how often a serving log launched it, None where no log was read.
    """

    weight: WeightShape
    engines: tuple[str, ...]
    uses: tuple[Use, ...] = ()
    shipped: Mapping[str, bool] = field(default_factory=dict)
    launches: int | None = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The weights and batch sizes (tokens) that are going to be tuned on the GPUs of one model."""

    device: str
    batch_sizes: tuple[int, ...]
    weights: tuple[PlannedWeight, ...]

    @property
    def says_more_than_sizes(self) -> bool:
        """Whether there is more to tell of the weights than their sizes."""
        return any(w.uses or w.shipped or w.launches is not None for w in self.weights)


def weights_table(plan: DevicePlan) -> Table:
    """One row a weight, model and TP size: who launches it where, for whom it is tuned, who ships it already.

    Columns that say nothing are left out. ``shipped`` is ``–`` where no installed engine has a file.
    """
    weights = plan.weights
    engines = dict.fromkeys(engine for w in weights for engine in w.engines)
    total = sum(w.launches or 0 for w in weights)
    shown = {
        "shape (N×K)": True,
        "launches": total > 0,
        "model": any(w.uses for w in weights),
        "TP": any(w.uses for w in weights),
        "layers": any(w.uses for w in weights),
        "per model": any(w.uses for w in weights),
        "only for": any(len(w.engines) < len(engines) for w in weights),
        "shipped by": any(w.shipped for w in weights),
    }
    rows = []
    for w in weights:
        head = {
            "shape (N×K)": str(w.weight),
            "launches": f"{(w.launches or 0) / total:.1%}" if total else "",
            "only for": ", ".join(w.engines) if len(w.engines) < len(engines) else "",
            "shipped by": ", ".join(name for name, there in w.shipped.items() if there) or "–",
        }
        for use in _merged(w.uses) or [{}]:
            cells = head | use
            rows.append(tuple(cells.get(title, "") for title, there in shown.items() if there))
            head = {}
    figures = {"launches", "TP", "per model"}
    return Table(tuple(Column(title, title in figures) for title, there in shown.items() if there), tuple(rows))


def plan_json(plan: DevicePlan) -> dict[str, Any]:
    """The plan as the event ``plan`` of JSON lines."""
    total = sum(w.launches or 0 for w in plan.weights)
    return {
        "event": "plan",
        "device": plan.device,
        "batch_sizes": list(plan.batch_sizes),
        "weights": [
            {
                "N": w.weight.N,
                "K": w.weight.K,
                "engines": list(w.engines),
                "shipped": {engine: w.shipped.get(engine) for engine in w.engines},
                "launches": w.launches,
                "launches_share": (w.launches or 0) / total if total else None,
                "serves": uses_json(w.uses),
            }
            for w in plan.weights
        ],
    }


def uses_json(uses: Iterable[Use]) -> list[dict[str, Any]]:
    """Layers by engine, model and TP size as JSON values."""
    return [
        {"engine": u.engine, "model": u.model, "tp_size": u.tp_size, "layers": list(u.layers), "count": u.count}
        for u in uses
    ]


def _merged(uses: Sequence[Use]) -> list[dict[str, str]]:
    """Cells of one row a model and TP size; engines that name the layers otherwise get a row of their own."""
    rows: dict[tuple[str, int, tuple[str, ...], int], list[str]] = {}
    for use in uses:
        rows.setdefault((use.model, use.tp_size, use.layers, use.count), []).append(use.engine)
    placed = [(model, tp_size) for model, tp_size, _, _ in rows]
    merged = []
    for (model, tp_size, layers, count), engines in rows.items():
        named = f" ({', '.join(engines)})" if placed.count((model, tp_size)) > 1 else ""
        merged.append(
            {"model": model, "TP": str(tp_size), "layers": ", ".join(layers) + named, "per model": str(count)}
        )
    return merged
