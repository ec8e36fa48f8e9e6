"""Every config of the space, the stock tuner's way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from blockscale.problem import TileConfig
from blockscale.search.base import legal_starts
from blockscale.space import Space


class FixedOrder:
    """Asks for configs in an order that no outcome changes, without repeats, up to a number of trials."""

    def __init__(self, order: Iterable[TileConfig], trials: int | None) -> None:
        self._order: Iterator[TileConfig] = itertools.islice(dict.fromkeys(order), trials)

    def ask(self, n: int) -> list[TileConfig]:
        """The next ``n`` configs of the order."""
        return list(itertools.islice(self._order, n))

    def tell(self, config: TileConfig, time_us: float | None) -> None:
        """Outcomes change nothing here."""


class Exhaustive(FixedOrder):
    """The priors, then the whole space in its own order."""

    def __init__(self, space: Space, priors: Sequence[TileConfig], trials: int | None) -> None:
        super().__init__(itertools.chain(legal_starts(space, priors), space), trials)
