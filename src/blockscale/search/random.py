"""Evenly spread random configs: the yardstick of any cleverer search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from blockscale.problem import TileConfig
from blockscale.search.base import FixedOrder, legal_starts
from blockscale.space import Space


class Random(FixedOrder):
    """The priors, then a space-filling sample; ``trials`` of None asks for the whole space in random order."""

    def __init__(self, space: Space, priors: Sequence[TileConfig], trials: int | None, seed: int) -> None:
        wanted = len(space) if trials is None else trials
        starts = legal_starts(space, priors)
        super().__init__(itertools.chain(starts, space.sample(random.Random(seed), wanted)), trials)
