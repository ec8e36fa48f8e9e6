"""The end of a run in words: table, mean, where the files are, and what the engines do with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from blockscale.report.results import outcome_lines, result_table
from blockscale.report.table import render_table
from blockscale.tuning.events import RunSummary


def closing_text(summary: RunSummary, approximate: Collection[str], notes: Mapping[str, Sequence[str]]) -> str:
    """Everything that is said after the last problem.

    ``approximate`` names engines whose times were measured on another kernel, ``notes`` holds each engine's sentences
    on how its files come into use.
    """
    blocks = [render_table(result_table(summary.results, approximate)), "\n".join(_figures(summary, approximate))]
    if summary.files:
        blocks.append("\n".join(["Files", *(f"  {path}" for path in summary.files)]))
    for engine, sentences in notes.items():
        if sentences:
            blocks.append("\n".join([f"In {engine}", *(f"  · {sentence}" for sentence in sentences)]))
    return "\n\n".join(blocks)


def _figures(summary: RunSummary, approximate: Collection[str]) -> list[str]:
    lines = outcome_lines(summary.results)
    if approximate:
        names = ", ".join(sorted(approximate))
        lines.append(
            f"≈ approximate: {names} launches a kernel that was not recorded; these times are a kindred one's."
        )
    lines.append(f"Trials: {summary.trials_measured} measured, {summary.trials_reused} taken from the store")
    return lines
