"""The end of a run in words: table, mean, where the files are, and what the engines do with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from blockscale.problem import Problem
from blockscale.report.results import outcome_lines, result_table
from blockscale.report.table import render_table, wrap
from blockscale.report.weights import Use
from blockscale.tuning.events import RunSummary


def closing_text(
    summary: RunSummary,
    approximate: Collection[tuple[str, Problem]],
    notes: Mapping[str, Sequence[str]],
    width: int | None = None,
    serves: Mapping[Path, Sequence[Use]] | None = None,
) -> str:
    """Everything that is said after the last problem, fitted to a terminal of ``width`` columns if that is given.

    ``approximate`` holds engines and problems whose times were measured on another kernel, ``notes`` each engine's
    sentences on how its files come into use, ``serves`` the layers that will read each file, where they are known.
    """
    figures = [wrap(line, width, "  ") for line in _figures(summary, approximate)]
    blocks = [render_table(result_table(summary.results, approximate), width), "\n".join(figures)]
    if summary.files:
        lines = ["Files"]
        for path in summary.files:
            lines.append(f"  {path}")
            lines += [wrap(f"    serves {use}", width, "      ") for use in (serves or {}).get(path, ())]
        blocks.append("\n".join(lines))
    for engine, sentences in notes.items():
        if sentences:
            lines = [wrap(f"  · {sentence}", width, "    ") for sentence in sentences]
            blocks.append("\n".join([f"In {engine}", *lines]))
    return "\n\n".join(blocks)


def _figures(summary: RunSummary, approximate: Collection[tuple[str, Problem]]) -> list[str]:
    lines = outcome_lines(summary.results)
    if approximate:
        names = ", ".join(sorted({engine for engine, _ in approximate}))
        lines.append(
            f"≈ approximate: {names} launches a kernel that was not recorded there; these times are a kindred one's."
        )
    lines.append(f"Trials: {summary.trials_measured} measured, {summary.trials_reused} taken from the store")
    return lines
