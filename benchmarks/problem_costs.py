"""GPU seconds of each problem of a whole job, out of what `whole_model.py` left. No GPU.

Each RUN is a folder of that script: of a problem, the seconds of its trials are summed by phase, as the store has them.
``--like RUN_JSON`` adds a job whose store is not at hand, from its ``run.json``, which knows its screens a problem and
its seconds of screening and finals in all. A screen and a finalist are taken to cost what they did in the first RUN on
the same problem; on a weight that RUN has not, what is linear in N between its two nearest of the same K. Then both are
scaled so that they add up to the job's seconds.

    python benchmarks/problem_costs.py out/stock-0 --like out/deepseek-v3-0/run.json --json out/problem-costs.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from blockscale.problem import GemmShape, Phase
from blockscale.store import Store


@dataclass(frozen=True)
class ProblemCost:
    """What one problem cost a GPU: seconds by phase, and trials in them. Of derived costs ``finals`` is a mean."""

    N: int
    K: int
    M: int
    screening_s: float
    finals_s: float
    screens: float
    finals: float

    @property
    def shape(self) -> GemmShape:
        """Its sizes."""
        return GemmShape(self.M, self.N, self.K)

    @property
    def seconds(self) -> float:
        """Of both phases."""
        return self.screening_s + self.finals_s


@dataclass(frozen=True)
class JobCosts:
    """A job's problems, weight by weight, and where their costs come from."""

    job: str
    origin: str
    problems: tuple[ProblemCost, ...]


def load(path: Path) -> list[JobCosts]:
    """What `main` has saved."""
    saved = json.loads(path.read_text())
    return [JobCosts(j["job"], j["origin"], tuple(ProblemCost(**p) for p in j["problems"])) for j in saved["jobs"]]


def measured(store: Path) -> dict[GemmShape, ProblemCost]:
    """Sums over the trials of a store."""
    sums: dict[GemmShape, dict[Phase, list[float]]] = {}
    with Store.open(store, create=False) as opened:
        for _, trial in opened.trials():
            by_phase = sums.setdefault(trial.problem.shape, {phase: [] for phase in Phase})
            by_phase[trial.phase].append(trial.elapsed_s)
    costs = {}
    for shape, by_phase in sums.items():
        screens, finals = by_phase[Phase.SCREEN], by_phase[Phase.FINAL]
        costs[shape] = ProblemCost(shape.N, shape.K, shape.M, sum(screens), sum(finals), len(screens), len(finals))
    return costs


def derived(run: Mapping[str, Any], known: Mapping[GemmShape, ProblemCost]) -> dict[GemmShape, ProblemCost]:
    """Costs of a job's problems from its screens and total seconds, and from what trials cost in another job."""
    rough = {}
    for row in run["problems"]:
        shape = GemmShape(row["M"], row["N"], row["K"])
        like = known.get(shape) or _between(shape, known)
        screening_s = like.screening_s * row["screened"] / like.screens
        rough[shape] = ProblemCost(shape.N, shape.K, shape.M, screening_s, like.finals_s, row["screened"], like.finals)
    screening = run["time"]["screening_s"] / sum(cost.screening_s for cost in rough.values())
    finals = run["time"]["finals_s"] / sum(cost.finals_s for cost in rough.values())
    return {
        shape: ProblemCost(c.N, c.K, c.M, c.screening_s * screening, c.finals_s * finals, c.screens, c.finals)
        for shape, c in rough.items()
    }


def _between(shape: GemmShape, known: Mapping[GemmShape, ProblemCost]) -> ProblemCost:
    """Linear in N between the two nearest known weights of the same K, at the same M."""
    akin = [cost for cost in known.values() if (cost.K, cost.M) == (shape.K, shape.M)]
    below = max((cost for cost in akin if cost.N < shape.N), key=lambda cost: cost.N, default=None)
    above = min((cost for cost in akin if cost.N > shape.N), key=lambda cost: cost.N, default=None)
    if below is None or above is None:
        raise SystemExit(f"{shape}: the first RUN has no weights of K = {shape.K} on both sides of its N")
    share = (shape.N - below.N) / (above.N - below.N)

    def mean(name: str) -> float:
        low, high = getattr(below, name), getattr(above, name)
        return float(low + share * (high - low))

    return ProblemCost(shape.N, shape.K, shape.M, *map(mean, ("screening_s", "finals_s", "screens", "finals")))


def in_order(costs: Mapping[GemmShape, ProblemCost], run: Mapping[str, Any]) -> tuple[ProblemCost, ...]:
    """As the job lists its weights, each weight's batch sizes ascending."""
    shapes = [GemmShape(m, n, k) for n, k in run["weights"] for m in run["batch_sizes"]]
    return tuple(costs[shape] for shape in shapes)


def save(path: Path, device: str, jobs: Sequence[JobCosts]) -> None:
    """One problem a line, so that a person can read it; seconds to the microsecond."""
    blocks = []
    for job in jobs:
        rows = []
        for problem in job.problems:
            row = {name: round(v, 6) if isinstance(v, float) else v for name, v in asdict(problem).items()}
            rows.append("      " + json.dumps(row))
        head = f'    {{"job": {json.dumps(job.job)}, "origin": {json.dumps(job.origin)}, "problems": [\n'
        blocks.append(head + ",\n".join(rows) + "\n    ]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"device": {json.dumps(device)}, "jobs": [\n' + ",\n".join(blocks) + "\n]}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder with run.json and trials.db")
    parser.add_argument("--like", type=Path, action="append", default=[], metavar="RUN_JSON", help="run.json alone")
    parser.add_argument("--json", type=Path, required=True, help="where to save the costs")
    args = parser.parse_args()
    jobs, known = [], None
    for folder in args.runs:
        run = json.loads((folder / "run.json").read_text())
        costs = measured(folder / "trials.db")
        known = known or costs
        jobs.append(JobCosts(run["job"], "the trials of the run's store", in_order(costs, run)))
    for path in args.like:
        like = json.loads(path.read_text())
        origin = (
            f"screens and total seconds of the run, a trial's share of them as in the job {jobs[0].job}: see "
            "benchmarks/problem_costs.py"
        )
        jobs.append(JobCosts(like["job"], origin, in_order(derived(like, known or {}), like)))
    save(args.json, run["environment"]["device_name"], jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
