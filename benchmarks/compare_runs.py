"""Re-measure what two runs of whole_model.py chose, beside each other on inputs that neither has seen. One GPU.

    python benchmarks/compare_runs.py out/stock-0 out/stock-1 --cache out/cache-0 --json out/stock-0-1.json

Equal configs count as a ratio of 1. Where they differ, A, B and A once more take turns in five rounds, timed and
verified as finals are; a ratio is the median over the rounds of two samples' ratio, the larger time over the smaller.
The second A says what noise alone makes of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from blockscale.engines import engine
from blockscale.hardware import DeviceSpec
from blockscale.measure.compile_cache import default_cache_dir
from blockscale.measure.compile_pool import CompileOptions, CompilePool, CompileRequest
from blockscale.problem import Candidate, GemmShape, Problem, TileConfig
from blockscale.tuning.baselines import launched
from blockscale.tuning.comparison.rounds import median_ratio

ROUNDS = 5
ROUND_US = 500.0
INPUT_SEED = 7  # runs use 1 and 2


@dataclass(frozen=True)
class Pair:
    """What two runs chose for one problem."""

    problem: Problem
    a: Candidate
    b: Candidate


@dataclass
class Row:
    """What was found of one pair: samples in µs a launch, empty where both runs chose the same."""

    M: int
    N: int
    K: int
    a: str
    b: str
    status: str = "equal"
    a_us: Sequence[float] = ()
    b_us: Sequence[float] = ()
    again_us: Sequence[float] = ()  # a once more

    @property
    def ratio(self) -> float | None:
        """How many times slower the slower one is; None where one of them did not run."""
        return _ratio(self.a_us, self.b_us) if self.status == "measured" else 1.0 if self.status == "equal" else None

    @property
    def noise(self) -> float | None:
        """The same of a against itself; None where nothing was measured."""
        return _ratio(self.a_us, self.again_us) if self.status == "measured" else None


def _ratio(a_us: Sequence[float], b_us: Sequence[float]) -> float:
    ratio = median_ratio(a_us, b_us)
    return max(ratio, 1 / ratio)


class FreshInputs:
    """A process's inputs, from a seed that no run uses, whatever is asked for."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def rotation(self, problem: Problem, seed: int) -> Any:
        """The rotated sets of a problem."""
        return self._pool.rotation(problem, INPUT_SEED)

    def forget(self) -> None:
        """Make them anew when they are next asked for."""
        self._pool.forget()


def pairs_of(run_a: Mapping[str, Any], run_b: Mapping[str, Any], spec: DeviceSpec) -> list[Pair]:
    """What both runs chose, for every problem that both have an entry of."""
    chosen = engine(run_a["engine"], run_a["engine_version"])
    entries_a, entries_b = ({(r["M"], r["N"], r["K"]): r["config"] for r in run["problems"]} for run in (run_a, run_b))
    pairs = []
    for sizes, entry_a in entries_a.items():
        problem, entry_b = Problem(GemmShape(*sizes)), entries_b.get(sizes)
        if entry_a is not None and entry_b is not None:
            configs = (
                TileConfig.from_entry(entry, unstated_num_stages=spec.unstated_num_stages)
                for entry in (entry_a, entry_b)
            )
            pairs.append(Pair(problem, *(launched(chosen, problem, spec, config) for config in configs)))
    return sorted(pairs, key=lambda pair: (pair.problem.shape.weight, pair.problem.shape.M))


def compile_all(pairs: Sequence[Pair], spec: DeviceSpec, cache: Path) -> None:
    """Compile what ``cache`` does not hold yet, on all cores."""
    with closing(CompilePool(CompileOptions(cache))) as pool:
        for future in [pool.submit(CompileRequest(spec, p.problem, c)) for p in pairs for c in (p.a, p.b)]:
            if message := future.result().message:
                print(message)


def measure(session: Any, pair: Pair) -> Row:
    """One pair, with samples where the two differ."""
    shape = pair.problem.shape
    row = Row(shape.M, shape.N, shape.K, str(pair.a), str(pair.b))
    if pair.a == pair.b:
        return row
    results = session.finals(pair.problem, [pair.a, pair.b, pair.a])
    failed = [result for result in results if result is None or not result.status.timed]
    if failed:
        row.status = " ".join(f"{r.status}: {r.message}" if r else "not reached" for r in failed)
        return row
    row.status, (row.a_us, row.b_us, row.again_us) = "measured", (result.samples_us for result in results)
    return row


def report(rows: Sequence[Row]) -> str:
    """The ratios in a few lines, with the worst pairs by name."""
    measured = sorted((r for r in rows if r.status == "measured"), key=lambda r: -(r.ratio or 1))
    ratios = [row.ratio for row in rows if row.ratio is not None]
    lines = [
        f"{len(rows)} problems: {sum(r.status == 'equal' for r in rows)} equal configs, {len(measured)} measured, "
        f"{len(rows) - len(ratios)} failed",
        f"slower over faster: geometric mean {statistics.geometric_mean(ratios):.4f}, worst {max(ratios):.4f}",
    ]
    if measured:
        noises = [row.noise or 1 for row in measured]
        b_over_a = statistics.geometric_mean(median_ratio(row.b_us, row.a_us) for row in measured)
        lines += [
            f"of those measured: geometric mean {statistics.geometric_mean([r.ratio or 1 for r in measured]):.4f}, "
            f"{sum((r.ratio or 1) > 1.03 for r in measured)} beyond 3%, B over A {b_over_a:.4f}",
            f"one config against itself: geometric mean {statistics.geometric_mean(noises):.4f}, "
            f"worst {max(noises):.4f}",
        ]
    for row in measured[:8]:
        a_us, b_us = statistics.median(row.a_us), statistics.median(row.b_us)
        lines.append(f"{row.ratio:8.4f}  M={row.M} {row.N}×{row.K}: A {a_us:.2f} µs, {row.a}; B {b_us:.2f} µs, {row.b}")
    lines += [f"failed: M={r.M} {r.N}×{r.K}: {r.status}" for r in rows if r.status not in ("equal", "measured")]
    return "\n".join(lines)


def saved(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows with their ratios, as plain data."""
    return [asdict(row) | {"ratio": row.ratio, "noise": row.noise} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_a", type=Path, metavar="DIR_A", help="--out of one run")
    parser.add_argument("run_b", type=Path, metavar="DIR_B", help="--out of the other")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="--cache of a run: most is compiled then")
    parser.add_argument("--json", type=Path, help="where to save every sample")
    args = parser.parse_args()
    began_s = time.monotonic()
    run_a, run_b = (json.loads((folder / "run.json").read_text()) for folder in (args.run_a, args.run_b))
    with tempfile.TemporaryDirectory() as temporary:
        cache = default_cache_dir({"XDG_CACHE_HOME": str(args.cache or temporary)})
        cache.mkdir(parents=True, exist_ok=True)
        os.environ["TRITON_CACHE_DIR"] = str(cache)
        rows = compare(run_a, run_b, cache)
    print(report(rows))
    print(f"{time.monotonic() - began_s:.1f} s in all")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"a": run_a["seed"], "b": run_b["seed"], "rows": saved(rows)}))
    return 0


def compare(run_a: Mapping[str, Any], run_b: Mapping[str, Any], cache: Path) -> list[Row]:
    """Measure all pairs on the GPU of this process, whose kernels stand in ``cache``."""
    from blockscale.measure.session import Session
    from blockscale.measure.worker import GpuMeasuring

    process = GpuMeasuring()
    spec = process.describe().spec
    pairs = pairs_of(run_a, run_b, spec)
    compile_all([pair for pair in pairs if pair.a != pair.b], spec, cache)
    process.prepare([pair.problem for pair in pairs])
    session = Session(process.gpu, process.kernels, FreshInputs(process.pool), process.conditions)
    session.plan = replace(session.plan, rounds=ROUNDS, round_us=ROUND_US)
    return [measure(session, pair) for pair in pairs]


if __name__ == "__main__":
    sys.exit(main())
