"""What the nearest-key lookup loses between tuned keys, and how much of it further keys win back.

Without a GPU: a run on the recorded device tunes every second recorded size of a weight, and the sizes left out, whose
full tables are recorded, say what the lookup's choice loses there against the best config. The cost model has not seen
the weight.

    python benchmarks/key_loss.py --json out/key-loss.json

With ``--errors``: how wrong the times are that the choice of keys rests on, for each recorded size from all others.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np
from compare_runs import ROUND_US, ROUNDS, FreshInputs, Pair, compile_all
from teaching import Table, learnt, recorded_tables

from blockscale.costmodel import CostModel, Portfolio
from blockscale.engines import engine, read_config_file
from blockscale.executor.replay import ReplayDevice
from blockscale.hardware import DeviceSpec
from blockscale.measure.compile_cache import default_cache_dir
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, WeightShape
from blockscale.recording import Recording, embedded, load_recording
from blockscale.space import canonical
from blockscale.store import Store
from blockscale.tuning.baselines import launched
from blockscale.tuning.between import Ladder
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


def ladders(recording: Recording) -> Iterator[tuple[WeightShape, dict[int, Table], Portfolio]]:
    """Weights with many recorded sizes, with what the recording teaches of all others."""
    tables = [t for t in recorded_tables([recording]) if len(t.times) >= FULL_TABLE]
    found: dict[WeightShape, dict[int, Table]] = {}
    for table in tables:
        if table.kernel is Kernel.FP8:
            found.setdefault(table.problem.shape.weight, {})[table.problem.shape.M] = table
    for weight, ladder in found.items():
        if len(ladder) >= FEWEST_SIZES:
            yield weight, ladder, learnt(recording.spec, tables, [weight])


def errors(recording: Recording) -> str:
    """Quantiles of log errors of expected times, and how often a certain bound is broken.

    Looked at are the configs within 15% of the fastest at either neighbouring size.
    """
    found: dict[str, list[float]] = {}
    for weight, ladder, portfolio in ladders(recording):
        model = CostModel(recording.spec, portfolio)
        default = SGLANG.default_config(problem_at(weight, 1), recording.spec)
        for below, m, above in zip(sorted(ladder), sorted(ladder)[1:], sorted(ladder)[2:], strict=False):
            times = {size: table.times for size, table in ladder.items() if size != m}
            known = Ladder(times, partial(problem_at, weight), model, default)
            truth = {c: ladder[m].times.get(canonical(problem_at(weight, m), c)) for c in near(ladder, below, above)}
            configs = [default, *(c for c, time_us in truth.items() if time_us and c != default)]
            expected = known.expected_us(configs, [m])[:, 0]
            taken = [ladder[m].times[canonical(problem_at(weight, m), c)] for c in configs]
            off = np.log(taken) - np.log(expected)
            width = "up to 2" if above <= 2 * below else "wider"
            for config, time_us, error in zip(configs[1:], taken[1:], off[1:], strict=True):
                found.setdefault(f"expected time, keys {width}", []).append(error)
                found.setdefault(f"expected ratio to the default, keys {width}", []).append(error - off[0])
                if math.isfinite(at_most := known.at_most_us(config, m)):
                    found.setdefault("time over what is certain at most", []).append(math.log(time_us / at_most))
                if at_least := known.at_least_us(config, m):
                    found.setdefault("what is certain at least over time", []).append(math.log(at_least / time_us))
    lines = ["| log of | cases | 1% | 5% | 25% | 50% | 75% | 95% | 99% |", "|---" * 9 + "|"]
    for name, values in sorted(found.items()):
        cells = (f"{q:.3f}" for q in np.percentile(values, (1, 5, 25, 50, 75, 95, 99)))
        lines.append(f"| {name} | {len(values)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def near(ladder: Mapping[int, Table], *sizes: int) -> list[TileConfig]:
    """Configs within the rules' contention of the fastest at one of the sizes, in order."""
    limits = {m: (1 + KeyRules().contention) * ladder[m].best_us for m in sizes}
    return sorted({c for m in sizes for c, time_us in ladder[m].times.items() if time_us <= limits[m]})


def on_recorded(recording: Recording, rules: KeyRules) -> list[Row]:
    """Rows of every second size of the weights with many recorded ones, in both halves."""
    rows = []
    for weight, ladder, portfolio in ladders(recording):
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
    """Loss against the best before and after, by range of M and by weight."""
    known = [_Known.of(r) for r in rows if None not in (r.before_us, r.after_us, r.default_us)]
    head = "sizes | moved | loss before | after | worst before | after | slower than before | than default |"
    by_range = [(f"{a}–{b}", [k for k in known if a <= k.M <= b]) for a, b in (*RANGES, (1, RANGES[-1][1]))]
    by_weight = [(str(weight), [k for k in known if k.weight == weight]) for weight in {k.weight: None for k in known}]
    return "\n\n".join(
        "\n".join([f"| {name} | {head}", "|---" * 9 + "|", *(_line(label, part) for label, part in parts if part)])
        for name, parts in (("M", by_range), ("N×K", by_weight))
    )


def _line(label: str, part: Sequence[_Known]) -> str:
    befores, afters = [k.before for k in part], [k.after for k in part]
    slower = [sum(getattr(k, name) > 1.01 * k.default for k in part) for name in ("before", "after")]
    cells = (
        label,
        len(part),
        sum(k.moved for k in part),
        *(_percent(share) for share in (_mean(befores), _mean(afters), max(befores), max(afters))),
        sum(k.after > 1.01 * k.before for k in part),
        f"{slower[0]} before, {slower[1]} after",
    )
    return f"| {' | '.join(map(str, cells))} |"


@dataclass(frozen=True)
class _Known:
    """A row whose times are all known, each over that of the best."""

    M: int
    weight: WeightShape
    moved: bool
    before: float
    after: float
    default: float

    @classmethod
    def of(cls, row: Row) -> _Known:
        before, after, default = (us or math.nan for us in (row.before_us, row.after_us, row.default_us))
        weight = WeightShape(row.N, row.K)
        times = (before / row.best_us, after / row.best_us, default / row.best_us)
        return cls(row.M, weight, row.before != row.after, *times)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f}%"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path, default=embedded("h200"), help="recorded device (default: shipped)")
    parser.add_argument("--gpu", nargs="+", metavar="NxK", help="measure between the stock keys of these weights")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where kernels are compiled to (default: temporary)")
    parser.add_argument("--errors", action="store_true", help="how wrong expected times and certain bounds are")
    parser.add_argument("--certain", action="store_true", help="only configs certain to be no slower than the default")
    parser.add_argument("--json", type=Path, help="where to save every row")
    args = parser.parse_args()
    recording = load_recording(args.recording)
    never = math.inf
    rules = KeyRules(advantage=never, wide_advantage=never) if args.certain else KeyRules()
    if args.errors:
        print(errors(recording))
        return 0
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
        args.json.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
