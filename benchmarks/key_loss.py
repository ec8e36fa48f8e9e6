"""What the nearest-key lookup loses between tuned keys, and how much of it further keys win back.

Without a GPU: a run on the recorded device tunes every second recorded size of a weight, and the sizes left out, whose
full tables are recorded, say what the lookup's choice loses there against the best config. The cost model has not seen
the weight.

    python benchmarks/key_loss.py --json out/key-loss.json

With one (``--gpu``): keys of the stock ladder, chosen on the recorded device; at many batch sizes between them what
the lookup picks before and after, the engine's default and the fastest configs of both neighbouring keys are measured
interleaved, on fresh inputs, verified.

    python benchmarks/key_loss.py --gpu 7168x2304 4096x1024 --json out/key-loss-gpu.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from compare_runs import ROUND_US, ROUNDS, FreshInputs, Pair, compile_all
from teaching import Table, learnt, recorded_tables

from blockscale.costmodel import Portfolio
from blockscale.engines import engine, read_config_file
from blockscale.executor.replay import ReplayDevice
from blockscale.hardware import DeviceSpec
from blockscale.measure.compile_cache import default_cache_dir
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, WeightShape
from blockscale.recording import Recording, embedded, load_recording
from blockscale.space import canonical
from blockscale.store import Store
from blockscale.tuning.baselines import launched
from blockscale.tuning.fitted import KeyFitting
from blockscale.tuning.keys import KeyRules
from blockscale.tuning.request import STOCK_BATCH_SIZES, TuneRequest
from blockscale.tuning.run import run_tune

SGLANG = engine("sglang", "0.5.23")
FEWEST_SIZES = 10
FULL_TABLE = 100  # configs; some problems have only a few
RANGES = ((1, 64), (65, 256), (257, 4096))
BESIDE = 2  # of the fastest configs at each neighbouring key that a GPU measures too


@dataclass(frozen=True)
class Row:
    """One batch size between keys: µs of what the lookup picks without and with further keys, None if unknown."""

    M: int
    N: int
    K: int
    keys: tuple[int, ...]
    further: tuple[int, ...]
    before: str
    after: str
    before_us: float | None
    after_us: float | None
    best_us: float
    default_us: float | None


@dataclass(frozen=True)
class Tuned:
    """A file as a run wrote it, its further keys, and the times that the run knows at each key."""

    weight: WeightShape
    configs: Mapping[int, TileConfig]
    further: Mapping[int, TileConfig]
    tried: Mapping[int, Mapping[Candidate, float]]

    def picked(self, m: int, *, further: bool) -> TileConfig:
        """The config that the lookup takes for M."""
        keys = dict(sorted({**self.configs, **(self.further if further else {})}.items()))
        return keys[SGLANG.lookup_key(list(keys), m)]

    def row(self, m: int, times_us: Mapping[str, float | None], best_us: float) -> Row:
        """A row of times by ``before``, ``after`` and ``default``."""
        return Row(
            M=m,
            N=self.weight.N,
            K=self.weight.K,
            keys=tuple(self.configs),
            further=tuple(self.further),
            before=str(self.picked(m, further=False)),
            after=str(self.picked(m, further=True)),
            best_us=best_us,
            **{f"{name}_us": time_us for name, time_us in times_us.items()},
        )


def problem_at(weight: WeightShape, m: int) -> Problem:
    return Problem(GemmShape(m, weight.N, weight.K))


def tuned(
    recording: Recording, weight: WeightShape, keys: Sequence[int], portfolio: Portfolio | None, rules: KeyRules
) -> Tuned:
    """Tune ``keys`` of a weight on the recorded device, in a folder that is gone afterwards, and fit further ones."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        request = TuneRequest((weight,), tuple(keys), ((SGLANG.name, Path(folder)),))
        device = ReplayDevice(recording)
        run_tune(request, [SGLANG], device, store, lambda event: None, portfolio)
        target = request.target(SGLANG, weight, device.spec)
        choices = KeyFitting(store, device.environment, device.spec, portfolio, rules).choices(
            target, request.out_dtype
        )
        tried = {
            m: {
                t.candidate: t.time_us
                for _, t in store.trials(device.environment, problem_at(weight, m))
                if t.time_us is not None
            }
            for m in keys
        }
        entries = read_config_file(target.path).entries
        configs = {m: TileConfig.from_entry(entry) for m, entry in entries.items() if entry is not None}
        return Tuned(weight, configs, {m: TileConfig.from_entry(c.entry) for m, c in choices.items()}, tried)


def on_recorded(recording: Recording, rules: KeyRules) -> list[Row]:
    """Rows of every second size of the weights with many recorded ones, in both halves."""
    tables = [t for t in recorded_tables([recording]) if len(t.times) >= FULL_TABLE]
    ladders: dict[WeightShape, dict[int, Table]] = {}
    for table in tables:
        if table.kernel is Kernel.FP8:
            ladders.setdefault(table.problem.shape.weight, {})[table.problem.shape.M] = table
    rows = []
    for weight, ladder in ladders.items():
        if len(ladder) < FEWEST_SIZES:
            continue
        portfolio = learnt(recording.spec, tables, [weight])
        sizes = sorted(ladder)
        for first in (0, 1):
            keys = sorted({sizes[0], *sizes[first::2]})
            file = tuned(recording, weight, keys, portfolio, rules)
            print(f"{weight}: keys {keys}, further {sorted(file.further)}", flush=True)
            rows += [held_out(file, ladder[m], recording.spec) for m in sizes if m not in keys and m < keys[-1]]
    return rows


def held_out(file: Tuned, table: Table, spec: DeviceSpec) -> Row:
    """A size that was left out, with the recorded times."""
    m = table.problem.shape.M
    configs = {
        "before": file.picked(m, further=False),
        "after": file.picked(m, further=True),
        "default": SGLANG.default_config(table.problem, spec),
    }
    times = {name: table.times.get(canonical(table.problem, config)) for name, config in configs.items()}
    return file.row(m, times, table.best_us)


def sizes_between(keys: Sequence[int]) -> list[int]:
    """Some batch sizes between each two keys: just above the lower one, about both means, and beyond."""
    found = set()
    for a, b in pairwise(keys):
        shares = (0.125, 0.25, 0.5, 0.75) if b > 48 else (0.25, 0.5)
        found |= {a + 1, (a + b) // 2 + 1, *(round(a + share * (b - a)) for share in shares)} - {a, b}
    return sorted(m for m in found if m < keys[-1])


def on_gpu(recording: Recording, weights: Sequence[WeightShape], cache: Path, rules: KeyRules) -> list[Row]:
    """Rows measured on the GPU of this process, whose kernels are compiled into ``cache``."""
    from blockscale.measure.session import Session
    from blockscale.measure.worker import GpuMeasuring

    process = GpuMeasuring()
    spec = process.describe().spec
    session = Session(process.gpu, process.kernels, FreshInputs(process.pool), process.conditions)
    session.plan = replace(session.plan, rounds=ROUNDS, round_us=ROUND_US)
    rows = []
    for weight in weights:
        began_s = time.monotonic()
        file = tuned(recording, weight, STOCK_BATCH_SIZES, None, rules)
        wanted = {m: candidates_at(file, m, spec) for m in sizes_between(sorted(file.configs))}
        # The compiler takes pairs; equal kernels are compiled once.
        pairs = [
            Pair(problem_at(weight, m), c, c) for m, named in wanted.items() for c in dict.fromkeys(named.values())
        ]
        compile_all(pairs, spec, cache)
        compiled_s = time.monotonic()
        process.prepare([problem_at(weight, m) for m in wanted])
        rows += [row for m, named in wanted.items() if (row := measured(session, file, m, named)) is not None]
        print(
            f"{weight}: further keys {sorted(file.further)}; {compiled_s - began_s:.0f} s until compiled, "
            f"{time.monotonic() - compiled_s:.0f} s measuring",
            flush=True,
        )
    return rows


def candidates_at(file: Tuned, m: int, spec: DeviceSpec) -> dict[str, Candidate]:
    """What to measure at M: by name what the lookup picks, the default, and the fastest at the keys around."""
    problem = problem_at(file.weight, m)
    configs = {
        "before": file.picked(m, further=False),
        "after": file.picked(m, further=True),
        "default": SGLANG.default_config(problem, spec),
    }
    for key in dict.fromkeys((max(k for k in file.configs if k <= m), min(k for k in file.configs if k >= m))):
        configs[f"key {key}"] = file.configs[key]
        fastest = sorted(file.tried[key], key=lambda c: (file.tried[key][c], c))[:BESIDE]
        configs |= {f"key {key} no. {i}": c.config for i, c in enumerate(fastest)}
    return {name: launched(SGLANG, problem, spec, config) for name, config in configs.items()}


def measured(session: Any, file: Tuned, m: int, named: Mapping[str, Candidate]) -> Row | None:
    """Median times at M of all candidates, each measured once; None where none ran."""
    candidates = list(dict.fromkeys(named.values()))
    results = session.finals(problem_at(file.weight, m), candidates)
    times = {
        c: statistics.median(r.samples_us) if r is not None and r.status.timed else None
        for c, r in zip(candidates, results, strict=True)
    }
    ran = [time_us for time_us in times.values() if time_us is not None]
    if not ran:
        return None
    return file.row(m, {name: times[named[name]] for name in ("before", "after", "default")}, min(ran))


def report(rows: Iterable[Row]) -> str:
    """Loss against the best by range of M, before and after."""
    known = [_Known.of(r) for r in rows if None not in (r.before_us, r.after_us, r.default_us)]
    lines = ["| M | sizes | moved | loss before | after | worst before | after | slower than before | than default |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for first, last in (*RANGES, (1, RANGES[-1][1])):
        of_range = [k for k in known if first <= k.M <= last]
        if of_range:
            befores, afters = [k.before for k in of_range], [k.after for k in of_range]
            cells = (
                f"{first}–{last}",
                len(of_range),
                sum(k.moved for k in of_range),
                *(_percent(share) for share in (_mean(befores), _mean(afters), max(befores), max(afters))),
                sum(k.after > 1.01 * k.before for k in of_range),
                f"{sum(k.before > 1.01 * k.default for k in of_range)} before, "
                f"{sum(k.after > 1.01 * k.default for k in of_range)} after",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Known:
    """A row whose times are all known, each over that of the best."""

    M: int
    moved: bool
    before: float
    after: float
    default: float

    @classmethod
    def of(cls, row: Row) -> _Known:
        before, after, default = (us or math.nan for us in (row.before_us, row.after_us, row.default_us))
        return cls(row.M, row.before != row.after, before / row.best_us, after / row.best_us, default / row.best_us)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f}%"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path, default=embedded("h200"), help="recorded device (default: shipped)")
    parser.add_argument("--gpu", nargs="+", metavar="NxK", help="measure between the stock keys of these weights")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where kernels are compiled to (default: temporary)")
    parser.add_argument("--certain", action="store_true", help="only configs certain to be no slower than the default")
    parser.add_argument("--json", type=Path, help="where to save every row")
    args = parser.parse_args()
    recording = load_recording(args.recording)
    never = math.inf
    rules = KeyRules(advantage=never, wide_advantage=never) if args.certain else KeyRules()
    if args.gpu:
        weights = [WeightShape(*map(int, text.split("x"))) for text in args.gpu]
        with tempfile.TemporaryDirectory() as temporary:
            cache = default_cache_dir({"XDG_CACHE_HOME": str(args.cache or temporary)})
            cache.mkdir(parents=True, exist_ok=True)
            os.environ["TRITON_CACHE_DIR"] = str(cache)
            rows = on_gpu(recording, weights, cache, rules)
    else:
        rows = on_recorded(recording, rules)
    print(report(rows))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
