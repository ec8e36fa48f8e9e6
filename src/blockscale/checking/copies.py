"""Files of one content for different weights or devices: all but one were never tuned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from blockscale.checking.findings import Code, Finding, finding, listed
from blockscale.checking.ladder import batch_size
from blockscale.checking.one_file import CheckedFile
from blockscale.engines.files import was_tuned


def with_copies(files: Sequence[CheckedFile]) -> list[CheckedFile]:
    """The files, each with a finding more where another one has its content for another weight, block or device.

    A file whose sidecar has a record of every batch size was measured as it is named and is none's copy.
    """
    by_content: dict[str, list[CheckedFile]] = {}
    for file in files:
        if file.content is not None and file.content.members and file.subject.named is not None:
            by_content.setdefault(json.dumps(file.content.members, sort_keys=True), []).append(file)
    found = {}
    for group in by_content.values():
        for file in group:
            others = [other for other in group if _meant_for(other) != _meant_for(file)]
            if others and not _tuned(file):
                found[file.path] = _copied(file, others)
    return [
        replace(file, findings=(*file.findings, found[file.path])) if file.path in found else file for file in files
    ]


def _meant_for(file: CheckedFile) -> object:
    named = file.subject.named
    return named and (named.weight, named.quant, named.device.strip().replace(" ", "_"))


def _tuned(file: CheckedFile) -> bool:
    sizes = [batch_size(key) for key in file.content.members] if file.content else []
    return was_tuned(file.path, [m for m in sizes if m is not None])


def _copied(file: CheckedFile, others: Sequence[CheckedFile]) -> Finding:
    near_first = sorted(others, key=lambda other: other.path.parent != file.path.parent)
    names = [other.path.name if other.path.parent == file.path.parent else str(other.path) for other in near_first]
    return finding(
        Code.COPIED,
        f"it says what {listed(names, most=2)} says, so one of them was tuned for something else: tune this one",
    )
