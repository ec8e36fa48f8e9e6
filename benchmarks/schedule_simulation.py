"""What several GPUs would take for whole jobs, by schedule, from what each problem cost one. No GPU.

A schedule gives each problem whole to one GPU; compiling, starting and writing are left out. Compared are:

* contiguous: batch sizes in their order, cut into as many pieces as GPUs, as vLLM's tuning script does; a GPU tunes all
  weights for its batch sizes;
* shuffled: the same of shuffled batch sizes, as SGLang's does; median and worst of 20 seeds;
* queued: a GPU that is free takes the problem that is expected to take longest (`executor/cost.measuring_s`, all that
  is known beforehand); it then takes what it really took;
* in a tree: queued, and a problem begins when all that it learns from has ended (`tuning/plan.sources`). The bound then
  counts the longest chain. Once the longest problem goes first, once the one that the longest chain waits for.

Efficiency is the lower bound over the makespan: the mean for a GPU, or the longest problem (or chain) where that is
longer. From how many GPUs on it is longer, a problem would have to be split for more GPUs to help.

    python benchmarks/schedule_simulation.py --json out/schedule-simulation.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from problem_costs import JobCosts, ProblemCost, load

from blockscale.executor.cost import measuring_s
from blockscale.problem import Problem
from blockscale.tuning.plan import in_order, sources
from blockscale.tuning.schedule import contiguous, lower_bound_s, queued, remaining_s, shuffled

COSTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "data" / "h200-2026-11-30-problem-costs.json"
GPUS = (1, 2, 4, 8, 16, 32, 64)
SEEDS = 20
COLUMNS = (
    "GPUs", "bound, s", "contiguous", "shuffled, median", "worst", "queued",
    "bound with tree, s", "longest first", "longest chain first",
)  # fmt: skip
REQUIRED = ("deepseek-v3", 8, 0.95)  # job, GPUs, and the least efficiency of the queue there


@dataclass(frozen=True)
class Makespans:
    """Seconds of one job on so many GPUs: of each schedule, and the bounds."""

    job: str
    gpus: int
    bound_s: float
    contiguous_s: float
    shuffled_s: float
    shuffled_worst_s: float
    queued_s: float
    tree_bound_s: float
    tree_s: float
    chains_s: float

    @property
    def queued_efficiency(self) -> float:
        """Lower bound over makespan of the queue."""
        return self.bound_s / self.queued_s


def in_run_order(costs: JobCosts) -> list[ProblemCost]:
    """Problems as a run lists its jobs: the costliest weight first, each weight level by level."""
    by_weight: dict[tuple[int, int], dict[Problem, ProblemCost]] = {}
    for cost in costs.problems:
        by_weight.setdefault((cost.N, cost.K), {})[Problem(cost.shape)] = cost
    costliest = sorted(by_weight, key=lambda weight: -sum(map(measuring_s, by_weight[weight])))
    return [by_weight[w][problem] for w in costliest for problem in in_order(list(by_weight[w]))]


def simulate(costs: JobCosts, gpus: int) -> Makespans:
    """All schedules of one job."""
    ordered = in_run_order(costs)
    real_s = [cost.seconds for cost in ordered]
    problems = [Problem(cost.shape) for cost in ordered]
    expected_s = [measuring_s(problem) for problem in problems]
    after = sources([("", problem) for problem in problems], across_weights=False)
    batch_sizes = sorted({cost.M for cost in ordered})

    def static_s(parts: Sequence[Sequence[int]]) -> float:
        return max(sum(cost.seconds for cost in ordered if cost.M in part) for part in parts)

    mixed_s = [static_s(shuffled(batch_sizes, gpus, seed)) for seed in range(SEEDS)]
    return Makespans(
        job=costs.job,
        gpus=gpus,
        bound_s=lower_bound_s(real_s, gpus),
        contiguous_s=static_s(contiguous(batch_sizes, gpus)),
        shuffled_s=statistics.median(mixed_s),
        shuffled_worst_s=max(mixed_s),
        queued_s=queued(expected_s, gpus, real_s).makespan_s,
        tree_bound_s=lower_bound_s(real_s, gpus, after),
        tree_s=queued(expected_s, gpus, real_s, after).makespan_s,
        chains_s=queued(remaining_s(expected_s, after), gpus, real_s, after).makespan_s,
    )


def split_from(real_s: Sequence[float]) -> int:
    """The fewest GPUs for which the longest item is longer than their mean: whole items cannot use that many fully."""
    return math.floor(sum(real_s) / max(real_s)) + 1


def report(costs: JobCosts, rows: Sequence[Makespans]) -> str:
    """A table in Markdown, and from where on problems would have to be split."""
    longest = max(costs.problems, key=lambda cost: cost.seconds)
    total_s = sum(cost.seconds for cost in costs.problems)
    lines = [
        f"{costs.job}: {len(costs.problems)} problems, {total_s:.1f} GPU seconds; the longest takes "
        f"{longest.seconds:.2f} s ({longest.shape}).",
        f"Costs: {costs.origin}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for row in rows:
        spans_s = (row.contiguous_s, row.shuffled_s, row.shuffled_worst_s, row.queued_s)
        shares = " | ".join(f"{s:.2f} s, {row.bound_s / s:.0%}" for s in spans_s)
        tree = " | ".join(f"{s:.2f} s, {row.tree_bound_s / s:.0%}" for s in (row.tree_s, row.chains_s))
        lines.append(f"| {row.gpus} | {row.bound_s:.2f} | {shares} | {row.tree_bound_s:.2f} | {tree} |")
    from_gpus = split_from([cost.seconds for cost in costs.problems])
    lines += ["", f"From {from_gpus} GPUs on, a problem would have to be split for all of them to be busy to the end."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, default=COSTS, help="of benchmarks/problem_costs.py (default: shipped)")
    parser.add_argument("--gpus", type=int, nargs="+", default=list(GPUS), metavar="N")
    parser.add_argument("--json", type=Path, help="where to save every makespan")
    args = parser.parse_args()
    jobs = load(args.costs)
    rows = {costs.job: [simulate(costs, gpus) for gpus in args.gpus] for costs in jobs}
    print("\n\n".join(report(costs, rows[costs.job]) for costs in jobs))
    if args.json:
        found = [
            {
                "job": costs.job,
                "origin": costs.origin,
                "split_from_gpus": split_from([cost.seconds for cost in costs.problems]),
                "makespans": [asdict(row) for row in rows[costs.job]],
            }
            for costs in jobs
        ]
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found))
    job, gpus, least = REQUIRED
    missed = [row for row in rows.get(job, ()) if row.gpus == gpus and row.queued_efficiency < least]
    for row in missed:
        print(f"\n{job} on {gpus} GPUs: {row.queued_efficiency:.1%} is below the {least:.0%} asked of a queue.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
