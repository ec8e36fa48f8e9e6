"""Every config of the space, the stock tuner's way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from blockscale.problem import TileConfig
from blockscale.search.base import FixedOrder, legal_starts
from blockscale.space import Space


class Exhaustive(FixedOrder):
    """The priors, then the whole space in its own order."""

    def __init__(self, space: Space, priors: Sequence[TileConfig], trials: int | None) -> None:
        super().__init__(itertools.chain(legal_starts(space, priors), space), trials)
