"""The space of one problem on one device: legal configs, in canonical form, with neighbours and samples."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import Problem, TileConfig
from blockscale.space.axes import Axis, combinations, hopper_axes, stock_axes
from blockscale.space.clauses import Clause, hardware_clauses
from blockscale.space.launch import canonical

# A block keeps its work while the tile's two sides trade places in size, and its shared memory while stages are traded
# for a smaller tile; blocks in flight stay while tiles are traded for splits. One axis alone crosses a worse config.
_TRADES = (
    ("block_m", "block_n"),
    ("block_n", "num_stages"),
    ("block_k", "num_stages"),
    ("block_n", "num_warps"),
    ("block_n", "split_k"),
)
_SAMPLE_ATTEMPTS = 20  # rounds of stratified draws before the rest is drawn from the full list
_SPARSE = 4  # a sample is sparse while the axes have this many combinations for each config drawn


class Space:
    """Legal, canonical, distinct configs of one problem on one device, in a deterministic order."""

    def __init__(self, problem: Problem, spec: DeviceSpec, axes: Sequence[Axis], clauses: Sequence[Clause]) -> None:
        self.problem = problem
        self.spec = spec
        self.axes = tuple(axes)
        self.clauses = tuple(clauses)
        self._all: tuple[TileConfig, ...] | None = None

    def __iter__(self) -> Iterator[TileConfig]:
        return iter(self._configs())

    def __len__(self) -> int:
        return len(self._configs())

    def reason(self, config: TileConfig) -> str | None:
        """Why a config may not run here, None where it may; its values need not lie on the axes."""
        for clause in self.clauses:
            reason = clause.check(self.problem, config)
            if reason is not None:
                return reason
        return None

    def canonical(self, config: TileConfig) -> TileConfig:
        """The spelling under which this space lists a config."""
        return canonical(self.problem, config)

    def neighbours(self, config: TileConfig) -> list[TileConfig]:
        """Legal canonical configs one step away on one axis, then those one trade between two axes away."""
        found: dict[TileConfig, None] = {}
        start = self.canonical(config)
        for move in self._moves(start):
            candidate = self.canonical(move)
            if candidate != start and candidate not in found and self.reason(candidate) is None:
                found[candidate] = None
        return list(found)

    def spellings(self) -> list[TileConfig]:
        """Every combination of the axes, legal or not, in canonical form; those of the space are in its order."""
        return list(dict.fromkeys(self.canonical(config) for config in combinations(self.axes)))

    def pinned(self, **values: int) -> Space:
        """The part of the space where the named axes hold one value each."""
        axes = [Axis(a.name, (values[a.name],)) if a.name in values else a for a in self.axes]
        return Space(self.problem, self.spec, axes, self.clauses)

    def sample(self, rng: random.Random, n: int) -> list[TileConfig]:
        """Up to ``n`` distinct configs that spread each axis evenly (a Latin hypercube, repaired for legality)."""
        found: dict[TileConfig, None] = {}
        # A large share of the space would keep drawing what it has: that is drawn from the full list at once.
        sparse = _SPARSE * n < math.prod(len(axis.values) for axis in self.axes)
        for _ in range(_SAMPLE_ATTEMPTS if sparse else 0):
            missing = n - len(found)
            if missing <= 0:
                break
            for candidate in map(self.canonical, self._stratified(rng, missing)):
                if candidate not in found and self.reason(candidate) is None:
                    found[candidate] = None
        if len(found) < n:
            rest = [config for config in self if config not in found]
            found.update(dict.fromkeys(rng.sample(rest, min(n - len(found), len(rest)))))
        return list(found)

    def _configs(self) -> tuple[TileConfig, ...]:
        if self._all is None:
            legal = (self.canonical(config) for config in combinations(self.axes) if self.reason(config) is None)
            self._all = tuple(dict.fromkeys(legal))
        return self._all

    def _moves(self, start: TileConfig) -> Iterator[TileConfig]:
        by_name = {axis.name: axis for axis in self.axes}
        for axis in self.axes:
            for value in axis.steps(_value(start, axis)):
                yield start.with_(**{axis.name: value})
        for first, second in _TRADES:
            if first not in by_name or second not in by_name:
                continue
            a, b = by_name[first], by_name[second]
            va, vb = _value(start, a), _value(start, b)
            for changed in ((a.before(va), b.after(vb)), (a.after(va), b.before(vb))):
                if None not in changed:
                    yield start.with_(**dict(zip((first, second), changed, strict=True)))

    def _stratified(self, rng: random.Random, n: int) -> Iterator[TileConfig]:
        columns: list[list[int]] = []
        for axis in self.axes:
            repeats = -(-n // len(axis.values))
            # Shuffled before it is cut, so that a sample smaller than the axis does not always miss the same values.
            values = [v for _ in range(repeats) for v in rng.sample(axis.values, len(axis.values))][:n]
            rng.shuffle(values)
            columns.append(values)
        names = [axis.name for axis in self.axes]
        for row in zip(*columns, strict=True):
            fields: dict[str, Any] = dict(zip(names, row, strict=True))
            yield TileConfig(**fields)


def _value(config: TileConfig, axis: Axis) -> int:
    """A config's value on an axis; an optional field that is unset counts as the axis's first value."""
    value: int | None = getattr(config, axis.name)
    return axis.values[0] if value is None else value


def build_space(problem: Problem, spec: DeviceSpec, *, hopper: bool, clauses: Sequence[Clause] = ()) -> Space:
    """The stock space of the device, with the Hopper keys where asked for, under hardware and given clauses.

    Raises:
        InputError: no config is legal; the message names the clause that removed the last.
    """
    axes = stock_axes(problem, spec) + (hopper_axes() if hopper else ())
    space = Space(problem, spec, axes, (*hardware_clauses(spec), *clauses))
    if not any(space.reason(config) is None for config in combinations(axes)):
        raise InputError(_empty_message(space))
    return space


def _empty_message(space: Space) -> str:
    remaining = list(combinations(space.axes))
    given = f"{space.problem} ({space.problem.quant.format}, block {_block(space)}) on {space.spec.name}"
    for clause in space.clauses:
        kept = [config for config in remaining if clause.check(space.problem, config) is None]
        if not kept:
            reason = clause.check(space.problem, remaining[-1])
            return (
                f"{given}: no config is legal. The rule '{clause.name}' removes the last {len(remaining)}, "
                f"e.g. {remaining[-1]}: {reason}. Choose another block size, input type or device."
            )
        remaining = kept
    raise AssertionError("the space is not empty")


def _block(space: Space) -> str:
    return f"[{space.problem.quant.block_n}, {space.problem.quant.block_k}]"
