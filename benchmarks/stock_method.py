"""What the method of SGLang's tuning script costs on this GPU, from a sample. One GPU.

That script (benchmark/kernels/quantization/tuning_block_wise_kernel.py) tries all 1,280 configs of every problem one
after another in one process: the first launch compiles, four more warm up, then ten are timed by events, each waited
for. Nothing is verified. Here the same is done to configs drawn at random, in an empty cache, until the time is up:
each draw compiles one config for one class of batch sizes (1; multiples of 16; others), which Triton compiles apart,
and times it on the sampled problems of that class: 512×7168 and 24576×7168 at M = 1, 16, 24, 256, 4096. Kernels are
this package's, which compile to the engine's instructions; launches go straight to the compiled kernel, so each costs
some 20 µs of CPU less than there.

The whole job is extrapolated as follows, and no config is left out, as there:

* compiling: mean seconds of a first launch, failures included, × 1,280 configs × the classes of (M, N, K, groups) in
  the job, since Triton's cache gives the other problems of a class their kernel;
* timing: mean seconds a config at each sampled M and weight, linear in N·K between and beyond the two weights, and
  linear in M between the sampled batch sizes.

    python benchmarks/stock_method.py --seconds 60 --json out/stock_method.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from whole_model import weights_of

from blockscale.hardware import H200
from blockscale.measure.classify import Failure, classify
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, TrialStatus, WeightShape, ceil_div
from blockscale.space import combinations, stock_axes
from blockscale.tuning.request import STOCK_BATCH_SIZES

WEIGHTS = (WeightShape(512, 7168), WeightShape(24576, 7168))
BATCH_SIZES = (1, 16, 24, 256, 4096)
WARM_UPS, TIMED = 5, 10
INPUT_SEED = 0


@dataclass(frozen=True)
class Compiled:
    """One first launch: seconds with compiling, and why it failed."""

    config: str
    M: int
    N: int
    K: int
    first_launch_s: float
    failure: str = ""
    poisoned: bool = False  # the GPU's context is lost


@dataclass(frozen=True)
class Timed:
    """One config on one problem: seconds of all launches but one that compiled, and mean µs of those timed."""

    config: str
    M: int
    N: int
    K: int
    spent_s: float
    time_us: float


@dataclass(frozen=True)
class Extrapolation:
    """The whole job in seconds, with the standard error of the part that is compiling."""

    kernels: int
    mean_first_launch_s: float
    compiling_s: float
    compiling_error_s: float
    timing_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the job on one GPU."""
        return self.compiling_s + self.timing_s


def specialisation(value: int) -> str:
    """What Triton's compiled code depends on in a size."""
    return "1" if value == 1 else "16" if value % 16 == 0 else "other"


def compile_class(shape: GemmShape, block_k: int = 128) -> tuple[str, ...]:
    """Equal for problems that share the compiled kernel of each config of plain tiles."""
    return tuple(map(specialisation, (shape.M, shape.N, shape.K, ceil_div(shape.K, block_k))))


def extrapolated(
    compiled: Sequence[Compiled], timed: Iterable[Timed], job: Sequence[GemmShape], configs: int
) -> Extrapolation:
    """The cost of trying ``configs`` on every problem of ``job``, from a sample."""
    seconds = [each.first_launch_s for each in compiled]
    mean_s = statistics.fmean(seconds)
    error_s = statistics.stdev(seconds) / math.sqrt(len(seconds)) if len(seconds) > 1 else math.inf
    kernels = configs * len({compile_class(shape) for shape in job})
    spent: dict[int, dict[int, list[float]]] = {}
    for each in timed:
        spent.setdefault(each.M, {}).setdefault(each.N * each.K, []).append(each.spent_s)
    means = {m: {size: statistics.fmean(values) for size, values in by.items()} for m, by in spent.items()}
    timing_s = configs * sum(config_s(means, shape) for shape in job)
    return Extrapolation(kernels, mean_s, kernels * mean_s, kernels * error_s, timing_s)


def config_s(means: Mapping[int, Mapping[int, float]], shape: GemmShape) -> float:
    """Seconds of timing one config on a problem, from means by M and N·K: a line in N·K, then one in M."""
    by_m = {m: line(sizes, shape.N * shape.K) for m, sizes in means.items()}
    return line(by_m, min(max(shape.M, min(by_m)), max(by_m)))


def line(points: Mapping[int, float], x: int) -> float:
    """Through the two points around ``x``, or the two nearest to it; never below half of the least point."""
    xs = sorted(points)
    if len(xs) == 1:
        return points[xs[0]]
    right = min(max(1, bisect_left(xs, x)), len(xs) - 1)
    a, b = xs[right - 1], xs[right]
    value = points[a] + (points[b] - points[a]) * (x - a) / (b - a)
    return max(value, min(points.values()) / 2)


class Stock:
    """The GPU of this process, and operands of all sampled problems."""

    def __init__(self) -> None:
        import torch

        from blockscale.kernels.inputs import make_inputs
        from blockscale.kernels.launch import bind, forget_compiled

        self._torch, self._bind, self._forget = torch, bind, forget_compiled
        self.device = torch.cuda.get_device_name()
        self._operands = {}
        for problem in (Problem(GemmShape(m, w.N, w.K)) for m in BATCH_SIZES for w in WEIGHTS):
            out = torch.empty((problem.shape.M, problem.shape.N), dtype=torch.bfloat16, device="cuda")
            self._operands[problem] = (make_inputs(problem, "float8_e4m3fn", INPUT_SEED, "cuda"), out)

    @property
    def problems(self) -> list[Problem]:
        """Everything that is sampled."""
        return list(self._operands)

    def draw(self, problems: Sequence[Problem], config: TileConfig) -> tuple[Compiled, list[Timed]]:
        """Compile one config for problems of one class, and time it on each."""
        first_s, failure, timed = 0.0, Failure(TrialStatus.OK, ""), []
        began_s = time.perf_counter()
        try:
            self._run(problems[0], config)()
            self._torch.cuda.synchronize()
            first_s = time.perf_counter() - began_s
            timed = [self._time(p, config, WARM_UPS - (p is problems[0])) for p in problems]
        except Exception as error:  # the script passes over what does not fit, too
            failure = classify(error, TrialStatus.LAUNCH_ERROR)
        self._forget()
        first_s = first_s or time.perf_counter() - began_s
        return Compiled(str(config), *sizes(problems[0]), first_s, failure.message, failure.poisoned), timed

    def _time(self, problem: Problem, config: TileConfig, warm_ups: int) -> Timed:
        """Warm up and time as the script does."""
        began_s = time.perf_counter()
        run = self._run(problem, config)
        for _ in range(warm_ups):
            run()
        self._torch.cuda.synchronize()
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        total_ms = 0.0
        for _ in range(TIMED):
            self._torch.cuda.synchronize()
            begin.record()
            run()
            end.record()
            end.synchronize()
            total_ms += begin.elapsed_time(end)
        return Timed(str(config), *sizes(problem), time.perf_counter() - began_s, 1e3 * total_ms / TIMED)

    def _run(self, problem: Problem, config: TileConfig) -> Callable[[], None]:
        return self._bind(problem, Candidate(Kernel.FP8, config), *self._operands[problem])


def sizes(problem: Problem) -> tuple[int, int, int]:
    """M, N and K."""
    return problem.shape.M, problem.shape.N, problem.shape.K


def sample(
    stock: Stock, configs: Sequence[TileConfig], seconds: float, rng: random.Random
) -> tuple[list[Compiled], list[Timed]]:
    """Draw configs, class by class in turn, until ``seconds`` have passed or all are drawn.

    The draw that passes the time counts, so that slow ones are not left out. A kernel that breaks the GPU's context
    ends it early.
    """
    by_class: dict[tuple[str, ...], list[Problem]] = {}
    for problem in stock.problems:
        by_class.setdefault(compile_class(problem.shape), []).append(problem)
    orders = [rng.sample(configs, len(configs)) for _ in by_class]
    compiled: list[Compiled] = []
    timed: list[Timed] = []
    until_s = time.monotonic() + seconds
    for turn in zip(*orders, strict=True):
        for problems, config in zip(by_class.values(), turn, strict=True):
            outcome, times = stock.draw(problems, config)
            compiled.append(outcome)
            timed += times
            if outcome.poisoned:
                return compiled, timed
        if time.monotonic() >= until_s:  # between turns: every class has as many draws
            break
    return compiled, timed


def report(device: str, found: Extrapolation, compiled: Sequence[Compiled], timed: Sequence[Timed]) -> str:
    """The sample and the whole job, in a few lines."""
    failures = Counter(each.failure.partition(":")[0] for each in compiled if each.failure)
    seconds = sorted(each.first_launch_s for each in compiled)
    lines = [
        f"{device}: {len(compiled)} first launches, mean {found.mean_first_launch_s:.2f} s, "
        f"median {statistics.median(seconds):.2f} s, longest {seconds[-1]:.1f} s; "
        f"failed: {', '.join(f'{count} {name}' for name, count in failures.items()) or 'none'}"
    ]
    by_problem: dict[tuple[int, int, int], list[Timed]] = {}
    for each in timed:
        by_problem.setdefault((each.M, each.N, each.K), []).append(each)
    for (m, n, k), times in sorted(by_problem.items()):
        mean_ms = 1e3 * statistics.fmean(each.spent_s for each in times)
        mean_us = statistics.fmean(each.time_us for each in times)
        lines.append(
            f"M={m} {n}×{k}: {mean_ms:.2f} ms a config, launches of {mean_us:.1f} µs on average, {len(times)} configs"
        )
    hours, error_hours = found.compiling_s / 3600, found.compiling_error_s / 3600
    lines.append(
        f"the whole job: {found.kernels} kernels to compile, {hours:.1f} ± {error_hours:.1f} h, and "
        f"{found.timing_s / 3600:.1f} h of timing: {found.total_s / 3600:.1f} h on one GPU"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for drawing (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--json", type=Path, help="where to save every draw")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # before Triton is imported
        stock = Stock()
        configs = list(combinations(stock_axes(stock.problems[0], H200)))
        # The compiler's own start belongs to no config; one stage is in no stock config.
        stock.draw(stock.problems[:1], TileConfig(64, 64, 64, num_stages=1))
        compiled, timed = sample(stock, configs, args.seconds, random.Random(args.seed))
    job = [GemmShape(m, w.N, w.K) for w in weights_of("stock") for m in STOCK_BATCH_SIZES]
    found = extrapolated(compiled, timed, job, len(configs))
    print(report(stock.device, found, compiled, timed))
    if args.json:
        whole = asdict(found) | {"total_s": found.total_s, "problems": len(job), "configs": len(configs)}
        draws = {"compiled": [asdict(each) for each in compiled], "timed": [asdict(each) for each in timed]}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"device": stock.device, "seed": args.seed, "whole_job": whole, **draws}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
