"""A model's weight shapes, or those of a serving log, as tables and as JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockscale.problem import QuantScheme, WeightShape, ceil_div
from blockscale.report.table import Column, Table
from blockscale.shapes import LayerShape, ModelShapes

SHARE_BATCH_SIZES = (16, 4096)  # tokens: decoding and prefill
_SCALE_BYTES = 4
_OUTPUT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Shares:
    """A layer's part of what all listed layers of one GPU do in a forward pass, each from 0 to 1.

    ``flops`` is 2·M·N·K times the layers that have it, so it is the same for every M; ``bytes_moved``, by M in tokens,
    is of `launch_bytes` times these layers.
    """

    flops: float
    bytes_moved: Mapping[int, float]


def launch_bytes(weight: WeightShape, quant: QuantScheme, m: int) -> int:
    """Fewest bytes that one launch of ``m`` tokens moves: N·K + M·K of one byte, scales of 4, output of 2."""
    groups = ceil_div(weight.K, quant.block_k)
    scales = (ceil_div(weight.N, quant.block_n) + m) * groups
    return (weight.N + m) * weight.K + _SCALE_BYTES * scales + _OUTPUT_BYTES * m * weight.N


def shares(shapes: ModelShapes) -> tuple[Shares, ...]:
    """The share of each listed layer, in their order; refused layers count for nothing."""
    flops = _parts([s.N * s.K * s.count for s in shapes.shapes])
    moved = {
        m: _parts([launch_bytes(s.weight, shapes.quant, m) * s.count for s in shapes.shapes]) for m in SHARE_BATCH_SIZES
    }
    return tuple(Shares(part, {m: moved[m][i] for m in moved}) for i, part in enumerate(flops))


def shapes_table(shapes: ModelShapes) -> Table:
    """One row a layer: name, shape, split, how many of them the model has, share of the FLOPs and of the bytes."""
    columns = (
        Column("layer"),
        Column("N", figures=True),
        Column("K", figures=True),
        Column("split"),
        Column("per model", figures=True),
        Column("FLOPs", figures=True),
        *(Column(f"bytes at M={m}", figures=True) for m in SHARE_BATCH_SIZES),
    )
    rows = []
    for s, share in zip(shapes.shapes, shares(shapes), strict=True):
        parts = (share.flops, *share.bytes_moved.values())
        rows.append((s.layer, str(s.N), str(s.K), s.split, str(s.count), *(f"{part:.1%}" for part in parts)))
    return Table(columns, tuple(rows))


def heading(shapes: ModelShapes, engine: str | None, *, assumed: bool = False) -> str:
    """What the table is of: model, how it is spread over GPUs, quantisation and engine; marked where unverified.

    ``assumed`` quantisation is one that the model's config does not declare.
    """
    parallelism, quant = shapes.parallelism, shapes.quant
    spread = f"tensor-parallel size {parallelism.tp_size}"
    if parallelism.ep_size > 1:
        spread += f", expert-parallel size {parallelism.ep_size}"
    if parallelism.dp_attention:
        spread += ", attention on each GPU whole"
    parts = [f"{shapes.name} at {spread}", f"{quant.format} in blocks of {quant.block_n}×{quant.block_k}"]
    if assumed:
        parts[-1] += " (ASSUMED, the model is not quantised so)"
    if engine is not None:
        parts.append(engine)
    text = ", ".join(parts)
    return text if shapes.unverified is None else f"{text}\nUNVERIFIED: {shapes.unverified}"


def note_lines(shapes: ModelShapes) -> list[str]:
    """Notes on single layers, those alike in one line, then those on the model."""
    layers: dict[str, list[str]] = {}
    for shape in shapes.shapes:
        if shape.note:
            layers.setdefault(shape.note, []).append(shape.layer)
    return [*(f"{', '.join(named)}: {note}" for note, named in layers.items()), *shapes.notes]


def listings_json(
    listings: Iterable[tuple[ModelShapes, str | None]], engines: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """The object that ``shapes --json`` prints; ``engines`` are those listed for, with their versions.

    With each listing comes why its model's quantisation had to be assumed, None where it is declared.

    ``shapes`` and ``refused`` are flat, however many models and TP sizes there are: each row names its model and TP
    size. What holds for a whole model at one TP size is in ``listings``.
    """
    found: dict[str, list[dict[str, Any]]] = {"listings": [], "shapes": [], "refused": []}
    for shapes, refusal in listings:
        whose = {"model": shapes.name, "tp_size": shapes.parallelism.tp_size}
        found["listings"].append(
            whose
            | {
                "ep_size": shapes.parallelism.ep_size,
                "dp_attention": shapes.parallelism.dp_attention,
                "engines": dict(engines or {}),
                "quantization": asdict(shapes.quant),
                "quantization_refused": refusal,
                "unverified": shapes.unverified,
                "notes": list(shapes.notes),
            }
        )
        found["shapes"] += [
            whose | _layer(shape, share) for shape, share in zip(shapes.shapes, shares(shapes), strict=True)
        ]
        found["refused"] += [
            whose | {"layer": r.layer, "reason": r.reason, "tp_sizes_that_work": list(r.tp_sizes_that_work)}
            for r in shapes.refused
        ]
    return found


def launches_table(launches: Mapping[WeightShape, Mapping[int, int]]) -> Table:
    """One row a weight of a serving log: its launches by batch size where the log has them, and its share of all."""
    columns = (
        Column("N", figures=True),
        Column("K", figures=True),
        Column("launches", figures=True),
        Column("M (launches)"),
    )
    parts = _parts([sum(by_m.values()) for by_m in launches.values()])
    rows = tuple(
        (
            str(weight.N),
            str(weight.K),
            f"{part:.1%}" if by_m else "–",
            ", ".join(f"{m} ({n})" for m, n in sorted(by_m.items())) or "–",
        )
        for (weight, by_m), part in zip(launches.items(), parts, strict=True)
    )
    return Table(columns, rows)


def launches_json(
    launches: Mapping[WeightShape, Mapping[int, int]],
    quant: QuantScheme | None,
    engines: Sequence[str],
    notes: Sequence[str],
) -> dict[str, Any]:
    """The object that ``shapes --from-log FILE --json`` prints; rows as in `listings_json` where a log knows them."""
    parts = _parts([sum(by_m.values()) for by_m in launches.values()])
    return {
        "listings": [
            {
                "model": None,
                "tp_size": None,
                "engines": dict.fromkeys(engines),
                "quantization": asdict(quant) if quant else None,
                "notes": list(notes),
            }
        ],
        "shapes": [
            {
                "model": None,
                "tp_size": None,
                "layer": None,
                "N": weight.N,
                "K": weight.K,
                "split": None,
                "count": None,
                "launches": {str(m): n for m, n in sorted(by_m.items())},
                "launches_share": part if by_m else None,
            }
            for (weight, by_m), part in zip(launches.items(), parts, strict=True)
        ],
        "refused": [],
    }


def _layer(shape: LayerShape, share: Shares) -> dict[str, Any]:
    return asdict(shape) | {
        "flops_share": share.flops,
        "bytes_share": {str(m): part for m, part in share.bytes_moved.items()},
    }


def _parts(amounts: Sequence[int]) -> list[float]:
    """Each amount over their sum; 0 where nothing is there."""
    whole = sum(amounts)
    return [amount / whole if whole else 0.0 for amount in amounts]
