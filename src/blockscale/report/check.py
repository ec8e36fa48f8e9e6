"""Checked files as lines for people and as a list for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from blockscale.checking.findings import Severity
from blockscale.checking.fixes import Fixed
from blockscale.checking.one_file import CheckedFile
from blockscale.checking.run import Checked


def findings_json(checked: Checked) -> list[dict[str, Any]]:
    """The list that ``check --json`` prints: one object a finding, files in order."""
    return [
        {
            "file": str(file.path),
            "code": str(each.code),
            "severity": str(each.severity),
            "message": each.message,
            "fixable": each.fixable,
        }
        for file in checked.files
        for each in file.findings
    ]


def file_lines(file: CheckedFile) -> list[str]:
    """A heading and a line a finding, errors first; nothing for a sound file."""
    if not file.findings:
        return []
    ordered = sorted(file.findings, key=lambda each: each.severity is Severity.WARNING)
    return [str(file.path), *(f"  {each.severity} {each.code}: {each.message}" for each in ordered)]


def fixed_lines(fixed: Sequence[Fixed]) -> list[str]:
    """What was done to each file."""
    return [f"fixed {each.path}: {'; '.join(each.done)}" for each in fixed if each.done]


def closing_lines(checked: Checked) -> list[str]:
    """How many files were checked and for which engines, what was found, what can be fixed and what was passed over."""
    engines = Counter(str(file.subject.engine) for file in checked.files)
    for_whom = ", ".join(f"{count} for {name}" for name, count in sorted(engines.items()))
    sound = sum(not file.findings for file in checked.files)
    head = f"{_count(len(checked.files), 'file')} checked"
    if checked.files:
        head += (
            f" ({for_whom}): {_count(checked.count(Severity.ERROR), 'error')}, "
            f"{_count(checked.count(Severity.WARNING), 'warning')}, {sound} without findings"
        )
    lines = [f"{head}."]
    fixable = sum(each.fixable for file in checked.files for each in file.findings)
    if fixable:
        lines.append(f"{_count(fixable, 'finding')} can be put right with --fix.")
    lines += [f"passed over: {_count(number, 'file')} {kind}." for kind, number in sorted(checked.passed_over.items())]
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
