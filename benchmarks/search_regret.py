"""How far from the best of a full table each search ends, on the recorded H200. No GPU needed.

Regret is the time of the best config that a search found over the best of the problem's table, minus one. Configs that
the table lacks are failures to the search and count as trials; the last column says how many. ``random`` gets as many
trials as ``auto`` took on that problem.

    python benchmarks/search_regret.py --seeds 5 --json docs/results/search_regret.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, QuantScheme, TileConfig
from blockscale.search import StrategyName, make_strategy
from blockscale.space import Clause, Space, build_space

# SGLang's default and its rule on BLOCK_SIZE_K, as its engine module would hand them in.
DEFAULT_CONFIG = TileConfig(block_m=64, block_n=128, block_k=128, group_m=32, num_warps=4, num_stages=3)
K_DIVIDES = Clause(
    "BLOCK_SIZE_K divides block_k",
    lambda problem, config: None if problem.quant.block_k % config.block_k == 0 else "BLOCK_SIZE_K does not divide",
)
ASK_AT_ONCE = 16

Table = dict[TileConfig, float]


@dataclass(frozen=True)
class Outcome:
    """One search of one problem; ``trials_to_1pct`` is None where it never came within 1% of the best."""

    M: int
    N: int
    K: int
    search: str
    seed: int
    regret: float
    trials: int
    unrecorded: int
    trials_to_1pct: int | None
    config: str


def recorded_tables() -> dict[Problem, Table]:
    """Times in µs of every config timed, by problem; of spellings of one config the canonical one's."""
    tables: dict[Problem, Table] = defaultdict(dict)
    with gzip.open(str(files("blockscale") / "data" / "h200.jsonl.gz"), "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if row["record"] == "trial" and "time_us" in row:
                problem = Problem(GemmShape(row["M"], row["N"], row["K"]), QuantScheme())
                tables[problem][TileConfig.from_entry(row["config"])] = row["time_us"]
    return dict(sorted(tables.items(), key=lambda item: (item[0].shape.weight, item[0].shape.M)))


def search(problem: Problem, table: Table, space: Space, name: StrategyName, trials: int | None, seed: int) -> Outcome:
    """Run one search against a table."""
    strategy = make_strategy(name, space, [DEFAULT_CONFIG], trials, seed)
    best_us, times, unrecorded, close, asked = min(table.values()), dict[TileConfig, float](), 0, None, 0
    while batch := strategy.ask(ASK_AT_ONCE):
        for config in batch:
            asked += 1
            time_us = table.get(config)
            strategy.tell(config, time_us)
            if time_us is None:
                unrecorded += 1
                continue
            times[config] = time_us
            if close is None and time_us <= 1.01 * best_us:
                close = asked
    winner = min(times, key=lambda config: times[config])
    shape = problem.shape
    regret = times[winner] / best_us - 1
    return Outcome(shape.M, shape.N, shape.K, name, seed, regret, asked, unrecorded, close, str(winner))


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line: geometric mean and worst regret, trials, trials on unrecorded configs."""
    mean = math.exp(sum(math.log1p(o.regret) for o in outcomes) / len(outcomes)) - 1
    trials = sum(o.trials for o in outcomes) / len(outcomes)
    lost = sum(o.unrecorded for o in outcomes) / len(outcomes)
    worst = max(outcomes, key=lambda o: o.regret)
    where = f"M={worst.M} {worst.N}×{worst.K} seed {worst.seed}"
    return f"mean {mean:6.2%}   worst {worst.regret:6.2%} ({where})   trials {trials:7.1f}, unrecorded {lost:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=None, help="bound of `auto` (default: its own)")
    parser.add_argument("--json", type=Path, default=None, help="where to save every outcome")
    args = parser.parse_args()
    outcomes: list[Outcome] = []
    print(
        f"{'M':>5} {'N×K':>11} {'auto mean':>10} {'worst':>7} {'trials':>7} "
        f"{'to 1%':>6} {'no row':>6} {'random':>8}  config"
    )
    for problem, table in recorded_tables().items():
        space = build_space(problem, H200, hopper=True, clauses=[K_DIVIDES])
        auto = [search(problem, table, space, "auto", args.trials, seed) for seed in range(args.seeds)]
        rand = [search(problem, table, space, "random", o.trials, o.seed) for o in auto]
        outcomes += [*auto, *rand, search(problem, table, space, "exhaustive", None, 0)]
        n = len(auto)
        reached = [o.trials_to_1pct for o in auto if o.trials_to_1pct is not None]
        to_1pct = f"{sum(reached) / len(reached):.0f}" if len(reached) == n else "-"
        print(
            f"{problem.shape.M:>5} {problem.shape.weight!s:>11} {sum(o.regret for o in auto) / n:>10.2%} "
            f"{max(o.regret for o in auto):>7.2%} {sum(o.trials for o in auto) / n:>7.1f} {to_1pct:>6} "
            f"{sum(o.unrecorded for o in auto) / n:>6.1f} {max(o.regret for o in rand):>8.2%}  {auto[0].config}",
            flush=True,
        )
    for name in ("auto", "random", "exhaustive"):
        print(f"{name:>10}  {summary([o for o in outcomes if o.search == name])}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")


if __name__ == "__main__":
    main()
