"""The contract of a search: ask for configs to try, tell what they took. Pure; it talks to no device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from blockscale.problem import Problem, TileConfig
from blockscale.space import Space


@dataclass(frozen=True)
class Knowledge:
    """What was measured on a problem akin to the one searched: times in µs by config."""

    problem: Problem
    times: Mapping[TileConfig, float]


class Strategy(Protocol):
    """A search over one problem's configs.

    The caller asks, tries every config it was given, and tells each outcome, in the order asked, before it asks again.
    Answers depend on the constructor's arguments and on what was told, on nothing else: the same tells lead to the same
    asks, which is how an interrupted run continues.
    """

    def ask(self, n: int) -> list[TileConfig]:
        """Up to ``n`` configs that were never asked before, legal and canonical; an empty list ends the search."""
        ...

    def tell(self, config: TileConfig, time_us: float | None) -> None:
        """What an asked config took in µs; None where it failed or could not be tried."""
        ...

    def doubted(self) -> Mapping[TileConfig, float]:
        """Configs that took longer than all other results make likely, with the time in µs that those expect."""
        ...


class FixedOrder:
    """Asks for configs in an order that no outcome changes, without repeats, up to a number of trials."""

    def __init__(self, order: Iterable[TileConfig], trials: int | None) -> None:
        self._order: Iterator[TileConfig] = itertools.islice(dict.fromkeys(order), trials)

    def ask(self, n: int) -> list[TileConfig]:
        """The next ``n`` configs of the order."""
        return list(itertools.islice(self._order, n))

    def tell(self, config: TileConfig, time_us: float | None) -> None:
        """Outcomes change nothing here."""

    def doubted(self) -> Mapping[TileConfig, float]:
        """None: nothing is expected here."""
        return {}


def legal_starts(space: Space, starts: Iterable[TileConfig]) -> list[TileConfig]:
    """Those starting configs that are legal, canonical and without repeats, in the order given."""
    configs = map(space.canonical, (config for config in starts if space.reason(config) is None))
    return list(dict.fromkeys(configs))
