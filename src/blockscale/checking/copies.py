"""Files of one content for different weights or devices: all but one were never tuned."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from blockscale.checking.findings import Code, Finding, finding
from blockscale.checking.ladder import batch_size
from blockscale.checking.one_file import CheckedFile
from blockscale.engines.files import was_tuned

_MOST_NAMED = 2


def with_copies(files: Sequence[CheckedFile]) -> list[CheckedFile]:
    """The files, each with a finding more where another one has its content for another weight, block or device.

    A file whose sidecar has a record of every batch size was measured as it is named and is none's copy.
    """
    by_content: dict[str, list[CheckedFile]] = {}
    for file in files:
        if file.content is not None and file.content.members and file.subject.named is not None:
            by_content.setdefault(json.dumps(file.content.members, sort_keys=True), []).append(file)
    found: dict[Path, Finding] = {}
    for group in by_content.values():
        found |= _of_group(group)
    return [
        replace(file, findings=(*file.findings, found[file.path])) if file.path in found else file for file in files
    ]


def _of_group(group: Sequence[CheckedFile]) -> dict[Path, Finding]:
    """The findings of files of one content; thousands of them take no longer a file than two."""
    meant = {file.path: _meant_for(file) for file in group}
    counts = Counter(meant.values())
    if len(counts) == 1:
        return {}
    folders: dict[Path, list[CheckedFile]] = {}
    for file in group:
        folders.setdefault(file.path.parent, []).append(file)
    found = {}
    for file in group:
        if not _tuned(file):
            own = meant[file.path]
            near_first = chain(folders[file.path.parent], group)
            others = dict.fromkeys(
                islice((other.path for other in near_first if meant[other.path] != own), 2 * _MOST_NAMED)
            )
            found[file.path] = _copied(file.path, list(others), len(group) - counts[own])
    return found


def _meant_for(file: CheckedFile) -> Hashable:
    named = file.subject.named
    return named and (named.weight, named.quant, named.device.strip().replace(" ", "_"))


def _tuned(file: CheckedFile) -> bool:
    sizes = [batch_size(key) for key in file.content.members] if file.content else []
    return was_tuned(file.path, [m for m in sizes if m is not None])


def _copied(path: Path, others: Sequence[Path], how_many: int) -> Finding:
    """The finding of a file whose content ``how_many`` others have, ``others`` first."""
    names = [other.name if other.parent == path.parent else str(other) for other in others[:_MOST_NAMED]]
    more = how_many - len(names)
    said = f"what {', '.join(names)} says" if not more else f"what {', '.join(names)} and {more} more say"
    return finding(Code.COPIED, f"it says {said}, so one of them was tuned for something else: tune this one")
