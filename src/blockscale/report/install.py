"""What an install changes or undoing did, as lines for people and as a value for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockscale.install.folder import Outcome, Undone
from blockscale.install.plan import Kind, Plan

_UNDONE = {
    Outcome.RESTORED: "the engine's own file is back",
    Outcome.REMOVED: "removed: the engine had none",
    Outcome.LEFT: "left as it is: it has been changed since, by an update of the engine perhaps",
}


def plan_lines(plans: Sequence[Plan], *, done: bool) -> list[str]:
    """A heading for each engine and a line for each file; ``done`` tells whether it has happened."""
    lines = []
    for plan in plans:
        lines.append(f"{plan.engine}: {plan.folder.path}")
        for each in plan.changes:
            keys = f" (M = {' '.join(map(str, each.keys))})" if each.kind is Kind.REPLACED else ""
            lines.append(f"  {each.kind:<8} {each.target.name}{keys}")
        counts = ", ".join(f"{plan.count(kind)} {kind}" for kind in Kind)
        lines.append(f"  {counts}{'' if done else '; nothing was changed'}.")
    return lines


def plan_json(plans: Sequence[Plan], *, done: bool) -> list[dict[str, Any]]:
    """One object a file: ``engine``, ``version``, ``source``, ``target``, ``change``, ``keys``, ``done``."""
    return [
        {
            "engine": plan.engine.name,
            "version": plan.engine.version,
            "source": str(each.source),
            "target": str(each.target),
            "change": str(each.kind),
            "keys": list(each.keys),
            "done": done,
        }
        for plan in plans
        for each in plan.changes
    ]


def undone_lines(done: Mapping[Path, Undone]) -> list[str]:
    """A line for each file that was installed."""
    return [f"{path}: {_UNDONE[each.outcome]}{_kept(each)}" for path, each in done.items()]


def undone_json(done: Mapping[Path, Undone]) -> list[dict[str, str | None]]:
    """One object a file: ``target``, ``outcome`` and, of a file that was left, ``original``."""
    return [
        {
            "target": str(path),
            "outcome": str(each.outcome),
            "original": None if each.original is None else str(each.original),
        }
        for path, each in done.items()
    ]


def _kept(undone: Undone) -> str:
    return "" if undone.original is None else f"; what it was before the install is {undone.original}"
