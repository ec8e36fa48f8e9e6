"""The closing table of a run, and the figures that sum it up."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from blockscale.errors import InputError
from blockscale.problem import Problem, TileConfig
from blockscale.report.table import Column, Table
from blockscale.selection import Outcome
from blockscale.tuning.events import ProblemResult

_NONE = "–"


def result_table(results: Sequence[ProblemResult], approximate: Collection[tuple[str, Problem]] = ()) -> Table:
    """Rows as tuned: shape, M, baseline µs, tuned µs, speed-up, share of the roofline, config.

    ``approximate`` holds engines and problems whose times were measured on another kernel: theirs carry a ``≈``. Device
    and engine have columns of their own where there are several. The config may be left out of a narrow table; the file
    holds it.
    """
    whose = [name for name in ("device_name", "engine") if len({getattr(r, name) for r in results}) > 1]
    columns = (
        *(Column(name.removesuffix("_name")) for name in whose),
        Column("shape (N×K)"),
        Column("M", figures=True),
        Column("baseline µs", figures=True),
        Column("tuned µs", figures=True),
        Column("speed-up", figures=True),
        Column("% of roofline", figures=True),
        Column("config", optional=True),
    )
    marks = ["≈" if (r.engine, r.problem) in approximate else "" for r in results]
    rows = tuple((*(getattr(r, name) for name in whose), *_row(r, m)) for r, m in zip(results, marks, strict=True))
    return Table(columns, rows)


def speed_up(result: ProblemResult) -> float | None:
    """Baseline over tuned time; None where one of the two is missing."""
    if result.time_us is None or result.baseline_us is None:
        return None
    return result.baseline_us / result.time_us


def roofline_share(result: ProblemResult) -> float | None:
    """Least possible time over tuned time, 1.0 at the roofline; None where the device's peaks are unknown."""
    if result.time_us is None or result.roofline_us is None:
        return None
    return result.roofline_us / result.time_us


def geometric_mean(values: Sequence[float]) -> float | None:
    """Geometric mean of positive values, None of none."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def outcome_lines(results: Sequence[ProblemResult]) -> list[str]:
    """The table in words: mean speed-up, how many entries were kept, how many problems have none."""
    speed_ups = [s for r in results if (s := speed_up(r)) is not None]
    mean = geometric_mean(speed_ups)
    lines = []
    if mean is not None:
        lines.append(f"Speed-up, geometric mean over {count(len(speed_ups), 'problem')}: {mean:.2f}×")
    kept = sum(r.outcome is Outcome.KEPT for r in results)
    if kept:
        lines.append(f"Kept: for {count(kept, 'problem')} nothing beat what would run otherwise, so that is written.")
    unmeasured = sum(r.outcome is Outcome.TUNED and r.baseline_us is None for r in results)
    if unmeasured:
        lines.append(
            f"No baseline for {count(unmeasured, 'problem')}: what would run otherwise does not run on this device."
        )
    without = [r for r in results if r.outcome is Outcome.NO_VALID_CANDIDATE]
    if without:
        names = ", ".join(" ".join(filter(None, (r.device_name, r.engine, str(r.problem)))) for r in without[:4])
        names += ", …" if len(without) > 4 else ""
        lines.append(f"No valid candidate for {count(len(without), 'problem')}, no entry written: {names}")
    return lines


def short_config(entry: Mapping[str, Any] | None) -> str:
    """An entry of an engine's file in one short phrase: tile, group, warps, stages and what else it sets."""
    if entry is None:
        return _NONE
    try:
        return str(TileConfig.from_entry(entry))
    except InputError:
        return ", ".join(f"{key}={value}" for key, value in entry.items())


def format_us(time_us: float | None, mark: str = "") -> str:
    """A time in µs with one decimal, ``–`` for none."""
    return _NONE if time_us is None else f"{mark}{time_us:.1f}"


def _row(result: ProblemResult, mark: str) -> tuple[str, ...]:
    gain, share = speed_up(result), roofline_share(result)
    gain_text = _NONE if gain is None else f"{mark}{gain:.2f}×"
    return (
        str(result.problem.shape.weight),
        str(result.problem.shape.M),
        format_us(result.baseline_us, mark),
        format_us(result.time_us, mark),
        "kept" if result.outcome is Outcome.KEPT else gain_text,
        _NONE if share is None else f"{mark}{share:.0%}",
        short_config(result.entry) if result.outcome is not Outcome.NO_VALID_CANDIDATE else "no valid candidate",
    )


def count(n: int, noun: str) -> str:
    """``1 problem``, ``2 problems``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
