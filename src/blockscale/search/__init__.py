"""Ask/tell searches over a space of configs. Pure and deterministic for a seed; nothing here talks to a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from blockscale.errors import InputError
from blockscale.problem import TileConfig
from blockscale.search.base import Knowledge, Strategy, legal_starts
from blockscale.search.exhaustive import Exhaustive
from blockscale.search.random import Random
from blockscale.space import Space

if TYPE_CHECKING:
    from blockscale.costmodel import CostModel

__all__ = [
    "DEFAULT_TRIALS",
    "Knowledge",
    "Strategy",
    "StrategyName",
    "legal_starts",
    "make_strategy",
]

StrategyName = Literal["auto", "exhaustive", "random"]

# Configs tried on one problem where the person sets no bound; None tries all.
DEFAULT_TRIALS: Mapping[StrategyName, int | None] = MappingProxyType({"auto": 64, "exhaustive": None, "random": 120})


def make_strategy(
    name: StrategyName,
    space: Space,
    priors: Sequence[TileConfig],
    trials: int | None,
    seed: int,
    knowledge: Sequence[Knowledge] = (),
    cost_model: CostModel | None = None,
) -> Strategy:
    """A fresh search of one problem.

    ``priors`` (the engine's default, the file's entry) are asked first, where legal. ``trials`` bounds the configs
    asked, priors and failures included; None takes the strategy's own bound from ``DEFAULT_TRIALS``. ``knowledge`` is
    what this run measured on problems akin to this one, the most akin first; ``cost_model`` what is expected before
    anything is measured, by default the analytic clock alone. Only ``auto`` uses either.

    Raises:
        InputError: an unknown name, or fewer than one trial.
    """
    if name not in get_args(StrategyName):
        known = ", ".join(get_args(StrategyName))
        raise InputError(f"search {name!r} is unknown: choose one of {known}.")
    if trials is not None and trials < 1:
        raise InputError(f"trials = {trials} is not positive: a search needs at least one trial a problem.")
    bound = DEFAULT_TRIALS[name] if trials is None else trials
    if name == "exhaustive":
        return Exhaustive(space, priors, bound)
    if name == "random":
        return Random(space, priors, bound, seed)
    # Not above: the command line names a search long before it needs numpy.
    from blockscale.costmodel import CostModel
    from blockscale.search.model_based import ModelSearch

    return ModelSearch(space, priors, bound, seed, knowledge, cost_model or CostModel(space.spec))
