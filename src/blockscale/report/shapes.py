"""A model's weight shapes as a table and as JSON values."""

from __future__ import annotations

from typing import Any

from blockscale.report.table import Column, Table
from blockscale.shapes import ModelShapes


def shapes_table(shapes: ModelShapes) -> Table:
    """One row a layer: its name, shape, split and how many layers of the model have it."""
    columns = (
        Column("layer"),
        Column("N", figures=True),
        Column("K", figures=True),
        Column("split"),
        Column("layers", figures=True),
    )
    return Table(columns, tuple((s.layer, str(s.N), str(s.K), s.split, str(s.count)) for s in shapes.shapes))


def shapes_json(shapes: ModelShapes) -> dict[str, Any]:
    """The object that ``shapes --json`` prints."""
    return {
        "shapes": [{"layer": s.layer, "N": s.N, "K": s.K, "split": s.split, "count": s.count} for s in shapes.shapes],
        "refused": [
            {"layer": r.layer, "reason": r.reason, "tp_sizes_that_work": list(r.tp_sizes_that_work)}
            for r in shapes.refused
        ],
    }
