"""What a run compares with: the files as it first saw them, and anew where somebody else has changed them since.

A continued run must compare with what it first saw and not with what it wrote itself. But an entry that another run or
a person has put there since is what would run otherwise now: a run that is repeated must beat that one too. So every
entry is noted in the store before it is written; what a file holds beyond those and the first seen is not this run's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from blockscale.store import Store
from blockscale.tuning.baselines import looked_up, read_entries
from blockscale.tuning.target import FileTarget


class FirstSeen:
    """The files of one run as its store remembers them. ``renewed`` lists those that were seen anew."""

    def __init__(self, store: Store, run_key: str) -> None:
        self._store = store
        self._run_key = run_key
        self.renewed: list[Path] = []

    def entries(self, target: FileTarget, batch_sizes: Sequence[int], *, overwrite: bool) -> Mapping[str, Any] | None:
        """What ``read_entries`` found when the run first saw the file, or when it last found it changed.

        With ``overwrite`` nothing is compared, so a change does not matter.
        """
        times = 0
        while self._store.has_snapshot(self._run_key, self._name(target, times + 1)):
            times += 1
        seen: Mapping[str, Any] | None = self._snapshot(target, times)
        if overwrite or not self._is_foreign(target, batch_sizes, seen):
            return seen
        self.renewed.append(target.path)
        renewed: Mapping[str, Any] | None = self._snapshot(target, times + 1)
        return renewed

    def will_write(self, target: FileTarget, entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Note entries by key as this run's own; to be called before they are written.

        Raises:
            IncompleteRunError: the store could not be written.
        """
        for key, entry in entries.items():
            self._store.snapshot(self._run_key, self._own(target, key, entry), lambda: True)

    def _snapshot(self, target: FileTarget, times: int) -> Any:
        return self._store.snapshot(self._run_key, self._name(target, times), partial(read_entries, target))

    def _is_foreign(self, target: FileTarget, batch_sizes: Sequence[int], seen: Mapping[str, Any] | None) -> bool:
        """Whether the engine would find an entry that neither was there at first nor is this run's."""
        now = read_entries(target)
        if now is None:
            return False
        for m in batch_sizes:
            key, entry = looked_up(target.engine, now, m)
            if entry is None or (seen is not None and entry == looked_up(target.engine, seen, m)[1]):
                continue
            if not self._store.has_snapshot(self._run_key, self._own(target, key, entry)):
                return True
        return False

    @staticmethod
    def _name(target: FileTarget, times: int) -> str:
        name = f"baseline {target.engine.name} {target.weight.N} {target.weight.K}"
        return f"{name} #{times}" if times else name

    @staticmethod
    def _own(target: FileTarget, key: int, entry: Mapping[str, Any]) -> str:
        digest = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]
        return f"wrote {target.engine.name} {target.weight.N} {target.weight.K} {key} {digest}"
