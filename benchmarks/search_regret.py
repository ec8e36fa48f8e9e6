"""How far from the best of a full table each search ends, on recorded devices. No GPU needed.

Regret is the time of the best config that a search found over the best of the problem's table, minus one. The space of
a problem is its recorded table, so every config asked has a time. Every config asked counts as a trial, the engine's
default included. Regimes:

* ``new shape``: the portfolio holds all recorded problems but those of the tested (N, K).
* ``99 KiB``, ``64 KiB``: a GPU never seen: no portfolio, no known peaks, tables cut to what fits that shared memory.
* ``ladder``: the batch sizes of one weight in the order of a run, each learning from those before it; the portfolio
  is that of ``new shape``.

Beside them, on the ``new shape`` tables: ``random`` and Optuna's TPE with as many trials as ``new shape`` took on that
problem, and the stock exhaustive sweep. Simulated seconds: compilation as recorded, shared over 15 processes, plus
measuring (`blockscale.executor.cost`), one after the other.

    python benchmarks/search_regret.py --seeds 5 --json regret.json [--recording FILE …]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from teaching import Table, learnt, recorded_tables

from blockscale.costmodel import CostModel, Portfolio
from blockscale.executor.cost import measuring_s
from blockscale.hardware import DeviceSpec
from blockscale.problem import Kernel, Problem, TileConfig, WeightShape
from blockscale.recording import embedded, load_recording
from blockscale.search import Knowledge, Strategy, make_strategy
from blockscale.space import Clause, Space, build_space, canonical, shared_memory_bytes
from blockscale.tuning.plan import levels

# SGLang's default, which a run measures too.
DEFAULT_CONFIG = TileConfig(block_m=64, block_n=128, block_k=128, group_m=32, num_warps=4, num_stages=3)
COMPILE_PROCESSES = 15
ASK_AT_ONCE = 16
KIB = 1024


@dataclass(frozen=True)
class Outcome:
    """One search of one problem. ``gaps`` is the regret after each trial."""

    kernel: str
    M: int
    N: int
    K: int
    search: str
    seed: int
    regret: float
    trials: int
    simulated_s: float
    own_s: float  # the search's own time
    config: str
    gaps: tuple[float, ...]


def space_of(table: Table, spec: DeviceSpec) -> Space:
    """The recorded configs of a problem as a space."""

    def check(_: Problem, config: TileConfig) -> str | None:
        return None if canonical(table.problem, config) in table.times else "not recorded"

    recorded = Clause("recorded", check)
    return build_space(table.problem, spec, hopper=True, clauses=[recorded])


def drive(make: Callable[[], Strategy], table: Table, name: str, seed: int) -> Outcome:
    """Run one search to its end against a table."""
    times: dict[TileConfig, float] = {}
    gaps: list[float] = []
    started = time.perf_counter()
    strategy = make()
    own_s, best_us = time.perf_counter() - started, math.inf
    while True:
        started = time.perf_counter()
        batch = strategy.ask(ASK_AT_ONCE)
        own_s += time.perf_counter() - started
        if not batch:
            break
        for config in batch:
            times[config] = table.times[config]
            best_us = min(best_us, times[config])
            gaps.append(best_us / table.best_us - 1)
            strategy.tell(config, times[config])
    return outcome(table, name, seed, times, gaps, own_s)


def outcome(
    table: Table, name: str, seed: int, times: Mapping[TileConfig, float], gaps: Sequence[float], own_s: float
) -> Outcome:
    """The row of one finished search; ``times`` in the order tried."""
    shape = table.problem.shape
    compile_s = sum(table.compile_s.get(config, 0.0) for config in times) / COMPILE_PROCESSES
    seconds = compile_s + measuring_s(table.problem) * len(times)
    winner = str(min(times, key=lambda config: times[config]))
    return Outcome(
        table.kernel, shape.M, shape.N, shape.K, name, seed, gaps[-1], len(gaps), seconds, own_s, winner, tuple(gaps)
    )


def search_alone(table: Table, spec: DeviceSpec, portfolio: Portfolio | None, name: str, seed: int) -> Outcome:
    """``auto`` on one problem that learns from no other of its run."""
    model = CostModel(spec, portfolio, table.kernel)
    return drive(lambda: _auto(table, spec, seed, (), model), table, name, seed)


def _auto(table: Table, spec: DeviceSpec, seed: int, knowledge: Sequence[Knowledge], model: CostModel) -> Strategy:
    return make_strategy("auto", space_of(table, spec), [DEFAULT_CONFIG], None, seed, knowledge, model)


def search_ladder(tables: Sequence[Table], spec: DeviceSpec, portfolio: Portfolio | None, seed: int) -> list[Outcome]:
    """``auto`` on the batch sizes of one weight, level by level, each learning from the levels before."""
    model = CostModel(spec, portfolio, tables[0].kernel)
    by_m = {table.problem.shape.M: table for table in tables}
    known: dict[int, Knowledge] = {}
    outcomes = []
    level = levels(sorted(by_m))
    for depth in range(max(level.values()) + 1):
        before = dict(known)
        for m in (m for m in sorted(by_m) if level[m] == depth):
            table = by_m[m]
            near = sorted(before, key=lambda other: (abs(math.log2(other / m)), other))
            knowledge = [before[other] for other in near]
            seen = _Listening(_auto(table, spec, seed, knowledge, model))
            outcomes.append(drive(lambda seen=seen: seen, table, "ladder", seed))
            known[m] = Knowledge(table.problem, seen.times)
    return outcomes


class _Listening:
    """A strategy whose results are kept, for the next problem to learn from."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.times: dict[TileConfig, float] = {}

    def ask(self, n: int) -> list[TileConfig]:
        return self._strategy.ask(n)

    def tell(self, config: TileConfig, time_us: float | None) -> None:
        if time_us is not None:
            self.times[config] = time_us
        self._strategy.tell(config, time_us)

    def doubted(self) -> Mapping[TileConfig, float]:
        return self._strategy.doubted()


def random_search(table: Table, spec: DeviceSpec, trials: int, seed: int) -> Outcome:
    """The evenly spread sample."""
    space = space_of(table, spec)
    return drive(lambda: make_strategy("random", space, [DEFAULT_CONFIG], trials, seed), table, "random", seed)


def exhaustive_search(table: Table) -> Outcome:
    """Everything that was recorded."""
    return outcome(table, "exhaustive", 0, table.times, [0.0] * len(table.times), 0.0)


def tpe_search(table: Table, trials: int, seed: int) -> Outcome | None:
    """Optuna's tree-structured Parzen estimator over the same fields; None without Optuna."""
    try:
        import optuna
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    fields = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages", "swap_ab", "split_k")
    values = {f: sorted({getattr(config, f) for config in table.times}) for f in fields}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=8))
    start = canonical(table.problem, DEFAULT_CONFIG)
    if start in table.times:
        study.enqueue_trial({f: getattr(start, f) for f in fields})
    times: dict[TileConfig, float] = {}
    gaps: list[float] = []
    started = time.perf_counter()
    for _ in range(50 * trials):  # what is not in the table, or a launch again, costs no trial
        if len(gaps) == trials:
            break
        trial = study.ask()
        chosen: dict[str, Any] = {f: trial.suggest_categorical(f, values[f]) for f in fields}
        config = canonical(table.problem, TileConfig(**chosen))
        if config not in table.times:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        study.tell(trial, math.log(table.times[config]))
        if config not in times:
            times[config] = table.times[config]
            gaps.append(min(times.values()) / table.best_us - 1)
    return outcome(table, "TPE", seed, times, gaps, time.perf_counter() - started) if gaps else None


def unseen(spec: DeviceSpec, limit_kib: int) -> DeviceSpec:
    """The recorded device as one without a name that has less shared memory."""
    return replace(spec, name=f"a GPU with {limit_kib} KiB", shared_memory_bytes=limit_kib * KIB)


def fits(table: Table, spec: DeviceSpec, limit_kib: int) -> Table:
    """The configs whose operands fit."""
    return table.cut(lambda c: shared_memory_bytes(table.problem.quant, c, spec) <= limit_kib * KIB)


def run(tables: Sequence[Table], spec: DeviceSpec, seeds: int, only: set[str]) -> list[Outcome]:
    """All regimes and yardsticks."""
    outcomes: list[Outcome] = []
    by_weight: dict[tuple[Kernel, WeightShape], list[Table]] = defaultdict(list)
    for table in tables:
        by_weight[table.kernel, table.problem.shape.weight].append(table)
    portfolios = {weight: learnt(spec, tables, without=[weight]) for weight in dict.fromkeys(w for _, w in by_weight)}
    for (_, weight), group in by_weight.items():
        portfolio = portfolios[weight]
        for seed in range(seeds):
            if "ladder" in only:
                outcomes += search_ladder(group, spec, portfolio, seed)
            for table in group:
                fresh = search_alone(table, spec, portfolio, "new shape", seed)
                outcomes.append(fresh)
                for limit in (99, 64):
                    if f"{limit} KiB" in only:
                        small = fits(table, spec, limit)
                        outcomes.append(search_alone(small, unseen(spec, limit), None, f"{limit} KiB", seed))
                if "random" in only:
                    outcomes.append(random_search(table, spec, fresh.trials, seed))
                if "TPE" in only and seed == 0 and (tpe := tpe_search(table, fresh.trials, seed)):
                    outcomes.append(tpe)
        outcomes += [exhaustive_search(table) for table in group if "exhaustive" in only]
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line: geometric mean and worst regret, trials, simulated and own seconds a problem."""
    mean = math.exp(statistics.fmean(math.log1p(o.regret) for o in outcomes)) - 1
    worst = max(outcomes, key=lambda o: o.regret)
    trials = statistics.fmean(o.trials for o in outcomes)
    where = f"{worst.kernel} M={worst.M} {worst.N}×{worst.K} seed {worst.seed}"
    seconds = statistics.fmean(o.simulated_s for o in outcomes)
    own_ms = 1e3 * statistics.fmean(o.own_s for o in outcomes)
    return f"{mean:8.2%} {worst.regret:8.2%} {trials:8.1f} {seconds:8.2f} {own_ms:8.0f}  {where}"


REGIMES = ("new shape", "99 KiB", "64 KiB", "ladder", "random", "TPE", "exhaustive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recording", type=Path, nargs="+", default=[embedded("h200")])
    parser.add_argument("--only", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--each", action="store_true", help="a line a problem")
    parser.add_argument("--json", type=Path, default=None, help="where to save every outcome")
    args = parser.parse_args()
    recordings = [load_recording(path) for path in args.recording]
    tables = recorded_tables(recordings)
    outcomes = run(tables, recordings[0].spec, args.seeds, set(args.only))
    if args.each:
        for o in outcomes:
            if o.search != "exhaustive":
                where = f"{o.kernel:>10} M={o.M} {o.N}×{o.K} seed {o.seed}"
                print(f"{o.search:>10} {where:>40} {o.regret:7.2%} {o.trials:4d}  {o.config}")
    weights = {(t.kernel, t.problem.shape.weight) for t in tables}
    print(f"{len(tables)} problems, {len(weights)} ladders, {args.seeds} seeds")
    print(f"{'':>10} {'regret':>8} {'worst':>8} {'trials':>8} {'sim. s':>8} {'own ms':>8}  worst at")
    for name in REGIMES:
        if chosen := [o for o in outcomes if o.search == name]:
            print(f"{name:>10} {summary(chosen)}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(o) for o in outcomes]) + "\n")


if __name__ == "__main__":
    main()
