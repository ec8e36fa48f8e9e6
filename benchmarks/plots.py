"""Draw what other benchmarks have saved, as SVG. Needs matplotlib: ``pip install -e ".[bench]"``.

python benchmarks/plots.py regret out/search_regret.json --output regret.svg
python benchmarks/plots.py time out/stock-0/run.json out/deepseek-v3-0/run.json --output time.svg
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whole_model import TARGET_S, time_split

# The exhaustive sweep tries all before it is known what is best: it has no curve.
_NO_CURVE = ("exhaustive",)


@dataclass(frozen=True)
class Curve:
    """Regret of one search after each trial, over all its problems and seeds; a share of the best time."""

    search: str
    runs: int
    mean: tuple[float, ...]  # geometric
    worst: tuple[float, ...]


def regret_curves(outcomes: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """A curve for each search in the order of the file; a run that has ended keeps its last regret."""
    by_search: dict[str, list[Sequence[float]]] = {}
    for outcome in outcomes:
        if outcome["search"] not in _NO_CURVE:
            by_search.setdefault(outcome["search"], []).append(outcome["gaps"])
    curves = []
    for search, runs in by_search.items():
        longest = max(map(len, runs))
        columns = [[gaps[min(trial, len(gaps) - 1)] for gaps in runs] for trial in range(longest)]
        mean = tuple(math.expm1(statistics.fmean(map(math.log1p, column))) for column in columns)
        curves.append(Curve(search, len(runs), mean, tuple(map(max, columns))))
    return curves


def draw_regret(curves: Sequence[Curve], output: Path) -> None:
    """Mean on the left, worst on the right; both in percent on a logarithmic scale that is linear below 0.1%."""
    plt = _pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for panel, title in zip(panels, ("geometric mean", "worst"), strict=True):
        for curve in curves:
            shares = curve.mean if title != "worst" else curve.worst
            panel.plot(range(1, len(shares) + 1), [100 * share for share in shares], label=curve.search)
        panel.set(
            title=title, xlabel="trials of a problem", ylabel="slower than the best of the table, %", ylim=(0, None)
        )
        panel.set_yscale("symlog", linthresh=0.1)
        panel.yaxis.set_major_formatter("{x:g}")
        panel.grid(alpha=0.3)
    panels[0].legend()
    _save(figure, output)


def draw_time(runs: Sequence[Mapping[str, Any]], output: Path) -> None:
    """A stacked bar for each run, with a mark at the time it should stay within."""
    plt = _pyplot()
    splits = [time_split(run) for run in runs]
    names = [f"{run['job']}\n{run['engine']}, seed {run['seed']}\n{run['wall_s']:.1f} s" for run in runs]
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.8 * len(runs)), layout="constrained")
    places = range(len(runs))
    begin_s = [0.0] * len(runs)
    for part in splits[0]:
        seconds = [split[part] for split in splits]
        axes.barh(places, seconds, left=begin_s, label=part, height=0.6)
        begin_s = [begin + more for begin, more in zip(begin_s, seconds, strict=True)]
    for place, run in zip(places, runs, strict=True):
        if (target_s := TARGET_S.get(run["job"])) is not None:
            axes.vlines(target_s, place - 0.4, place + 0.4, colors="black", linestyles="dashed")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set(xlabel="wall time, s", title="runs from cold; dashed: the time to stay within")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    _save(figure, output)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "blockscale"  # equal data give equal files
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["regret", "time"], help="regret after each trial, or how wall time splits")
    parser.add_argument("files", type=Path, nargs="+", help="JSON of search_regret.py, or run.json of whole_model.py")
    parser.add_argument("--output", type=Path, required=True, metavar="SVG")
    args = parser.parse_args()
    found = [json.loads(path.read_text()) for path in args.files]
    if args.what == "regret":
        draw_regret(regret_curves([outcome for outcomes in found for outcome in outcomes]), args.output)
    else:
        draw_time(found, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
