"""The weights that a server launched and how often: what every reader fills and everybody else asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blockscale.problem import QuantScheme, WeightShape


@dataclass(frozen=True, slots=True)
class ServedShapes:
    """Weights in the order in which they were first named, and what is known of their launches.

    ``launches`` counts the launches of each weight by M (tokens), empty where no M is named. ``passes`` counts forward
    passes of the whole model by M, where a log tells those and not the launches of each weight. ``quant`` is None and
    ``engines`` empty where nothing names them.
    """

    launches: Mapping[WeightShape, Mapping[int, int]]
    quant: QuantScheme | None
    engines: tuple[str, ...]
    notes: tuple[str, ...] = ()
    passes: Mapping[int, int] = field(default_factory=dict)


class Launches:
    """Counts of launches, growing with the distinct shapes alone."""

    def __init__(self) -> None:
        self.by_weight: dict[WeightShape, dict[int, int]] = {}

    def add(self, weight: WeightShape, m: int | None = None, count: int = 1) -> None:
        """Count launches of ``weight`` at ``m`` tokens; without an M the weight is named alone."""
        by_m = self.by_weight.setdefault(weight, {})
        if m is not None:
            by_m[m] = by_m.get(m, 0) + count
