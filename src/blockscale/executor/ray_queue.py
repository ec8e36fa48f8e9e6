"""Which GPU of several gets which work: the driver's side of a cluster, without a word of Ray."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from blockscale.executor.base import Work
from blockscale.executor.cost import measuring_s
from blockscale.problem import Problem

G = TypeVar("G", bound=Hashable)


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """Work in its place: the lower rank goes first, of equal ranks the first added."""

    rank: int
    place: int
    work: Work = field(compare=False)

    @property
    def expected_s(self) -> float:
        """Device seconds that it may take."""
        return measuring_s(self.work.problem) * len(self.work.candidates)


@dataclass(slots=True)
class _Lane:
    """One GPU: what was handed to it and has not come back, and how many candidates that may be."""

    enough: int
    given: list[Entry] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        """Whether it may get a problem that it does not have yet."""
        return sum(len(entry.work.candidates) for entry in self.given) < self.enough

    @property
    def expected_s(self) -> float:
        """Device seconds of what was handed to it."""
        return sum(entry.expected_s for entry in self.given)


class WorkQueue(Generic[G]):
    """Hands work to GPUs, which are named by anything hashable.

    A problem's work goes to one GPU for good, so that its candidates compare on equal terms and its inputs are made
    once: to the one with the least expected work in hand when its first work is handed out. A GPU gets a new problem
    only while it has fewer candidates in hand than it takes to keep its compilers busy; what no GPU has room for waits
    here, and the lowest rank goes first. More work of a problem that a GPU has goes to it at once.
    """

    def __init__(self) -> None:
        self._lanes: dict[G, _Lane] = {}
        self._bound: dict[Problem, G] = {}
        self._unbound: dict[Problem, list[Entry]] = {}
        self._heads: list[tuple[Entry, Problem]] = []  # a heap with an item for each entry of an unbound problem
        self._outgoing: list[tuple[G, Entry]] = []
        self._place = count()

    @property
    def gpus(self) -> Sequence[G]:
        """The GPUs that work is handed to, in the order in which they joined."""
        return tuple(self._lanes)

    def join(self, gpu: G, enough: int) -> None:
        """Hand work to one GPU more; it gets new problems while it has fewer than ``enough`` candidates in hand."""
        self._lanes[gpu] = _Lane(enough)

    def leave(self, gpu: G) -> list[Entry]:
        """Hand nothing to this GPU any more: what it had in hand, the lowest rank first. Its problems are unbound."""
        for problem in [problem for problem, bound in self._bound.items() if bound == gpu]:
            del self._bound[problem]
        self._outgoing = [(to, entry) for to, entry in self._outgoing if to != gpu]
        return sorted(self._lanes.pop(gpu).given)

    def add(self, work: Work, rank: int) -> None:
        """Take on work."""
        self.put_back(Entry(rank, next(self._place), work))

    def put_back(self, entry: Entry) -> None:
        """Take on work that a GPU had in hand, in its old place."""
        problem = entry.work.problem
        if problem in self._bound:
            self._give(self._bound[problem], entry)
        else:
            self._unbound.setdefault(problem, []).append(entry)
            heapq.heappush(self._heads, (entry, problem))

    def hand_out(self) -> list[tuple[G, Entry]]:
        """What goes where now."""
        while self._heads and (free := [gpu for gpu, lane in self._lanes.items() if lane.has_room]):
            _, problem = heapq.heappop(self._heads)
            entries = self._unbound.pop(problem, [])  # none where an earlier one of them has bound the problem
            if entries:
                self._bound[problem] = min(free, key=lambda gpu: self._lanes[gpu].expected_s)
            for entry in sorted(entries):
                self._give(self._bound[problem], entry)
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _give(self, gpu: G, entry: Entry) -> None:
        self._lanes[gpu].given.append(entry)
        self._outgoing.append((gpu, entry))

    def returned(self, gpu: G, work: Work) -> None:
        """Note that a GPU has handed work back.

        Raises:
            ValueError: it was not handed to it.
        """
        given = self._lanes[gpu].given
        for index, entry in enumerate(given):
            if entry.work == work:
                del given[index]
                return
        raise ValueError(f"{gpu} hands back what it was not given: {work}")
