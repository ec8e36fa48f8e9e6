"""The rules of a file's keys: batch sizes, their order, and what the lookup makes of those that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from blockscale.checking.content import shortened
from blockscale.checking.findings import Code, Finding, finding, listed
from blockscale.engines import Engine
from blockscale.tuning.request import STOCK_BATCH_SIZES

_LARGEST_FIRST_KEY = 64  # decoding stays below
_TOO_TALL = 4
_LEAST_TILE = 16


def batch_size(key: str) -> int | None:
    """The batch size that an engine reads in a key, None where its loader fails."""
    try:
        return int(key)
    except ValueError:  # also for thousands of digits
        return None


def check_keys(engine: Engine, keys: Sequence[str]) -> list[Finding]:
    """Keys that are no batch sizes, and their order."""
    findings = []
    no_integers = [key for key in keys if batch_size(key) is None]
    if no_integers:
        findings.append(
            finding(
                Code.KEY_NOT_INTEGER,
                f"{_quoted(no_integers)}: {engine} takes every key for a batch size and fails on the whole file; --fix "
                "moves this to the sidecar",
                fixable=True,
            )
        )
    not_positive = [key for key in keys if (m := batch_size(key)) is not None and m <= 0]
    if not_positive:
        findings.append(
            finding(
                Code.KEY_NOT_POSITIVE,
                f"{_quoted(not_positive)}: {engine} reads a batch size that no launch has; --fix moves this to the "
                "sidecar",
                fixable=True,
            )
        )
    return findings


def _quoted(keys: Sequence[str]) -> str:
    return f"key{'s' if len(keys) > 1 else ''} {listed([repr(shortened(key)) for key in keys])}"


def check_ladder(engine: Engine, entries: Mapping[int, Any]) -> list[Finding]:
    """What the lookup makes of the batch sizes; ``entries`` by batch size in file order, whatever they hold."""
    findings = []
    if not any(m <= _LARGEST_FIRST_KEY for m in entries):
        findings.append(_truncated(engine, entries))
    elif too_tall := _too_tall(engine, entries):
        m, key = too_tall[0]
        findings.append(
            finding(
                Code.LADDER_SPARSE,
                f"no key for M = {listed([str(m) for m, _ in too_tall])}: at M = {m} {engine} takes key "
                f"{shortened(str(key))}, whose tile of {_tile(entries[key])} rows is over {_TOO_TALL} times that; tune "
                "these sizes too",
            )
        )
    if list(entries) != sorted(entries):
        findings.append(_unsorted(engine, entries))
    return findings


def _truncated(engine: Engine, entries: Mapping[int, Any]) -> Finding:
    if not entries:
        return finding(
            Code.LADDER_TRUNCATED,
            f"no batch size is in it: {engine} runs its default, as without the file; tune it or delete it",
        )
    least = shortened(str(min(entries)))
    tile = _tile(entries[engine.lookup_key(list(entries), 1)])
    rows = f", with a tile of {tile} rows" if tile else ""
    return finding(
        Code.LADDER_TRUNCATED,
        f"no key up to {_LARGEST_FIRST_KEY}, as in files that several writers cut: every M below {least} takes key "
        f"{least}{rows}; tune the small sizes too",
    )


def _too_tall(engine: Engine, entries: Mapping[int, Any]) -> list[tuple[int, int]]:
    """Stock sizes that the entry of a larger key serves with a tile far too tall, with that key."""
    found = []
    for m in STOCK_BATCH_SIZES:
        if m in entries:
            continue
        key = engine.lookup_key(list(entries), m)
        tile = _tile(entries[key])
        if key > m and tile > max(_TOO_TALL * m, _LEAST_TILE):
            found.append((m, key))
    return found


def _tile(entry: object) -> int:
    """BLOCK_SIZE_M of an entry, 0 where it has none."""
    value = entry.get("BLOCK_SIZE_M") if isinstance(entry, dict) else None
    return value if type(value) is int else 0


def _unsorted(engine: Engine, entries: Mapping[int, Any]) -> Finding:
    place = {m: i for i, m in enumerate(entries)}
    changed = []
    for lower, upper in pairwise(sorted(entries)):
        m, odd = divmod(lower + upper, 2)
        if odd:  # no tie in the middle
            continue
        now, then = engine.lookup_key(sorted((lower, upper), key=place.__getitem__), m), lower
        if entries[now] != entries[then]:
            changed.append(f"M = {shortened(str(m))} (key {shortened(str(now))}, sorted {shortened(str(then))})")
    what = f"it decides {listed(changed)}" if changed else "no M takes another config for it"
    return finding(
        Code.KEYS_UNSORTED,
        f"keys are not in numeric order, and on a tie {engine} takes the first in the file: {what}; --fix sorts them",
        fixable=True,
    )
