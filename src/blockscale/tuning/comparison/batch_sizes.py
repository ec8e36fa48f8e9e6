"""Which batch sizes tell most of a file: its keys, and between two keys where the lookup or the tile count steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockscale.engines import Engine


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The batch sizes ``first`` to ``last`` that the lookup serves by ``key``; ``last`` of the largest is the key."""

    key: int
    first: int
    last: int


def key_ranges(engine: Engine, keys: Sequence[int]) -> list[KeyRange]:
    """What each key serves up to the largest, by ascending key; ``keys`` are positive and in file order."""
    ordered = sorted(keys)
    ranges, first = [], 1
    for key, following in zip(ordered, [*ordered[1:], None], strict=True):
        last = key if following is None else _last_of(engine, keys, key, following)
        ranges.append(KeyRange(key, first, last))
        first = last + 1
    return ranges


def _last_of(engine: Engine, keys: Sequence[int], lower: int, upper: int) -> int:
    """The last batch size from one key to the next that the lower one serves: nearest keys change once in between."""
    served, beyond = lower, upper
    while beyond - served > 1:
        middle = (served + beyond) // 2
        if engine.lookup_key(keys, middle) == lower:
            served = middle
        else:
            beyond = middle
    return served


def between_keys(engine: Engine, block_m: Mapping[int, int]) -> set[int]:
    """Batch sizes beside the keys that show what the lookup makes of a file; ``block_m`` by key, in file order.

    Between two neighbouring keys: the last batch size that the lower one serves and the first that the upper one does.
    Within what a key serves: where its config takes one tile more along M, a multiple of BLOCK_SIZE_M and the batch
    size after it, for the first and the last such step; in between the time per tile hardly changes.
    """
    found: set[int] = set()
    for served in key_ranges(engine, list(block_m)):
        found |= {served.first, served.last}
        tile = block_m[served.key]
        first, last = -(-served.first // tile), (served.last - 1) // tile
        if first <= last:
            found |= {m for step in (first, last) for m in (step * tile, step * tile + 1)}
    return found - set(block_m)
