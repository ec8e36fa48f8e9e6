"""What measuring costs and how much it varies, part by part, on one GPU: ``python benchmarks/measuring_cost.py``.

Measures in this process, without the compile pool's and the measuring process's share. For each of eight problems:

* parts of a screen: inputs (once a problem), bind, load (the first launch of a kernel that Triton has in its cache),
  capture, first look, verification, the long look;
* screens and finals in all, a screen each of a config near the best and of one far behind it;
* noise: one config screened again and again, spread over the run with other problems and configs in between, and equal
  finalists within one series and between series, held against `SelectionRules`.

    python benchmarks/measuring_cost.py --screens 30 --json out/measuring_cost.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from blockscale.problem import (
    Candidate,
    GemmShape,
    Kernel,
    Phase,
    Problem,
    TileConfig,
    Trial,
    TrialStatus,
)
from blockscale.selection import SelectionRules, levelled, ties

SHAPES = [
    (1, 512, 7168),
    (16, 2112, 7168),
    (64, 7168, 256),
    (64, 24576, 7168),
    (256, 512, 7168),
    (1024, 2112, 7168),
    (4096, 7168, 256),
    (4096, 24576, 7168),
]
SMALL_M = [TileConfig(16, 64, 128, num_stages=4), TileConfig(16, 128, 128), TileConfig(16, 32, 128, num_stages=4)]
LARGE_M = [
    TileConfig(64, 128, 128, group_m=32, num_warps=4, num_stages=3),
    TileConfig(128, 128, 128, group_m=8, num_warps=8, num_stages=3),
    TileConfig(64, 64, 128, group_m=8, num_warps=4, num_stages=4),
]
FAR_BEHIND_SMALL_M = TileConfig(16, 32, 32, num_warps=8, num_stages=1)
FAR_BEHIND_LARGE_M = TileConfig(32, 32, 64, num_stages=2)
PARTS = ("bind", "load", "capture", "look", "verify", "long", "verify 2")
FINALISTS = SelectionRules().finalists + 2  # with two baselines, as in a run
SERIES = 4


def candidates_of(problem: Problem) -> list[Candidate]:
    """Three configs near each other, and one far behind."""
    small = problem.shape.M <= 64
    configs = [*SMALL_M, FAR_BEHIND_SMALL_M] if small else [*LARGE_M, FAR_BEHIND_LARGE_M]
    return [Candidate(Kernel.FP8, config) for config in configs]


@dataclass
class Row:
    """What was found of one problem. Times of parts and of requests in ms, of launches in µs."""

    problem: str
    sets: int = 0
    inputs_ms: dict[str, float] = field(default_factory=dict)
    parts_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PARTS})
    screen_ms: dict[str, list[float]] = field(default_factory=dict)
    screened_us: list[float] = field(default_factory=list)
    finals_ms: list[float] = field(default_factory=list)
    finals_us: list[list[float]] = field(default_factory=list)  # of equal finalists, a list each series
    tied: int = 0
    pairs: int = 0
    labels: list[str] = field(default_factory=list)


@dataclass
class Bench:
    """The parts of a measuring process, and how to wait for its GPU and to make Triton forget what it has loaded."""

    session: Any
    gpu: Any
    kernels: Any
    pool: Any
    wait: Callable[[], None]
    forget: Callable[[], None]

    @contextmanager
    def timed(self, into: list[float]) -> Iterator[None]:
        """Append the ms that the block took, GPU work included."""
        self.wait()
        started = time.perf_counter()
        yield
        self.wait()
        into.append(1e3 * (time.perf_counter() - started))

    def inputs(self, problem: Problem, row: Row) -> None:
        """Make the inputs of both phases."""
        from blockscale.measure.rotation import FINAL_SEED, SCREEN_SEED

        for name, seed in (("screen", SCREEN_SEED), ("finals", FINAL_SEED)):
            taken: list[float] = []
            with self.timed(taken):
                rotation = self.pool.rotation(problem, seed)
            row.inputs_ms[name] = taken[0]
        row.sets = len(rotation.sets)

    def parts(self, problem: Problem, candidate: Candidate, row: Row) -> None:
        """One screen in its parts, as `Session` has them; the kernel is loaded from Triton's cache on disk."""
        from blockscale.measure.rotation import SCREEN_SEED

        plan, into = self.session.plan, row.parts_ms
        rotation = self.pool.rotation(problem, SCREEN_SEED)
        self.forget()
        with self.timed(into["bind"]):
            launches = self.kernels.launches(problem, candidate, rotation.sets, rotation.outputs)
        with self.timed(into["load"]):
            launches[0]()
        with self.timed(into["capture"]):
            replay = self.gpu.capture(launches)
        with self.timed(into["look"]):
            rotation.fill_nan()
            looks_us = replay.samples_us(plan.first_look())
            if (second := plan.second_look(looks_us[0], math.inf)) is not None:
                looks_us = replay.samples_us(second)
        with self.timed(into["verify"]):
            right = rotation.check()
        with self.timed(into["long"]):
            rotation.fill_nan()
            replay.samples_us(plan.screening(min(looks_us)))
        with self.timed(into["verify 2"]):
            right = rotation.check() if right.ok else right
        if not right.ok:
            raise RuntimeError(f"{problem} {candidate}: {right.message}")

    def screen(self, problem: Problem, candidate: Candidate, best_us: float | None, row: Row) -> Any:
        """One screen as requests ask for it."""
        self.forget()
        taken: list[float] = []
        with self.timed(taken):
            measured = self.session.screen(problem, candidate, best_us)
        row.screen_ms.setdefault(str(measured.status), []).append(taken[0])
        row.labels += measured.labels
        return measured

    def finals(self, problem: Problem, candidates: Sequence[Candidate], row: Row) -> None:
        """One series in which the first candidate stands several times."""
        finalists = [candidates[i % len(candidates)] for i in range(FINALISTS)]
        self.forget()
        with self.timed(row.finals_ms):
            measured = self.session.finals(problem, finalists)
        trials = [
            Trial(problem, c, m.status, Phase.FINAL, m.samples_us)
            for c, m in zip(finalists, measured, strict=True)
            if m is not None and m.status.timed
        ]
        equal = [t for t in levelled(trials) if t.candidate == candidates[0]]
        row.finals_us.append([statistics.median(t.samples_us) for t in equal])
        pairs = list(combinations(equal, 2))
        row.pairs += len(pairs)
        row.tied += sum(ties(a, b, SelectionRules()) for a, b in pairs)
        row.labels += [label for m in measured if m is not None for label in m.labels]


def measure(bench: Bench, problems: Sequence[Problem], screens: int) -> list[Row]:
    """Everything of all problems, interleaved."""
    bench.pool.announce(problems)
    rows = {problem: Row(str(problem)) for problem in problems}
    near: dict[Problem, list[Candidate]] = {}
    best_us: dict[Problem, float] = {}
    for problem, row in rows.items():
        bench.inputs(problem, row)
        found = {c: bench.session.screen(problem, c, None) for c in candidates_of(problem)}
        for candidate, measured in found.items():
            if not measured.status.timed:
                print(f"{problem} {candidate}: {measured.status} {measured.message[:200]}")
        times = {c: statistics.median(m.samples_us) for c, m in found.items() if m.status is TrialStatus.OK}
        near[problem] = sorted(times, key=times.__getitem__)[:3]
        best_us[problem] = min(times.values())
    far = {problem: candidates_of(problem)[-1] for problem in problems}
    shuffled = random.Random(0)
    for turn in range(screens):
        for problem in shuffled.sample(list(problems), len(problems)):
            row = rows[problem]
            if turn < 10:
                bench.parts(problem, near[problem][0], row)
            bench.screen(problem, near[problem][1 + turn % (len(near[problem]) - 1)], best_us[problem], row)
            bench.screen(problem, far[problem], best_us[problem], row)
            measured = bench.screen(problem, near[problem][0], None, row)
            row.screened_us.append(statistics.median(measured.samples_us))
        if turn % max(1, screens // SERIES) == 0:
            for problem in problems:
                bench.finals(problem, near[problem], rows[problem])
    return list(rows.values())


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Standard deviation and range, both as shares of the mean."""
    mean = statistics.mean(values)
    return statistics.pstdev(values) / mean, (max(values) - min(values)) / mean


def table(rows: Sequence[Row]) -> str:
    """The figures as lines of text: medians of ms; noise in percent."""
    names = ["problem", "sets", "inputs", *PARTS, "near", "far", "finals", "µs", "σ", "range", "σ fin", "tied"]
    lines = [names]
    for row in rows:
        parts = [f"{statistics.median(times):.2f}" for times in row.parts_ms.values()]
        statuses = (str(TrialStatus.OK), str(TrialStatus.COARSE))
        screens = [f"{statistics.median(row.screen_ms[s]):.2f}" if s in row.screen_ms else "-" for s in statuses]
        sigma, full = spread(row.screened_us)
        between, _ = spread([time_us for series in row.finals_us for time_us in series])
        lines.append(
            [row.problem, str(row.sets), f"{row.inputs_ms['screen']:.1f}", *parts, *screens]
            + [f"{statistics.median(row.finals_ms):.1f}", f"{statistics.median(row.screened_us):.2f}"]
            + [f"{100 * share:.2f}" for share in (sigma, full, between)]
            + [f"{row.tied}/{row.pairs}"]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def compile_one(problem: Problem, candidate: Candidate, arch: str, fp8_format: str) -> str:
    """Leave one kernel in Triton's cache; an empty text, or what the compiler said."""
    from blockscale.kernels.compile_only import offline_target
    from blockscale.kernels.launch import warm_up

    offline_target(arch)
    try:
        warm_up(problem, candidate, fp8_format)
    except Exception as error:
        return f"{problem} {candidate}: {type(error).__name__}: {error}"
    return ""


def compile_all(problems: Sequence[Problem], arch: str, fp8_format: str) -> None:
    """Compile every candidate in processes that see no GPU."""
    cases = [(p, c, arch, fp8_format) for p in problems for c in candidates_of(p)]
    workers = min(len(cases), max(1, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for message in pool.map(compile_one, *zip(*cases, strict=True)):
            if message:
                print(message)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--screens", type=int, default=30, help="how often the noise config of a problem is screened")
    parser.add_argument("--json", type=Path, help="where to save every figure")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # before Triton is imported, here and in the compiling processes
        import torch

        from blockscale.kernels.launch import forget_compiled
        from blockscale.measure.worker import GpuMeasuring

        process = GpuMeasuring()
        description = process.describe()
        problems = [Problem(GemmShape(*sizes)) for sizes in SHAPES]
        compile_all(problems, description.spec.arch, description.spec.fp8_format)
        print(f"{description.spec.name}: compiled after {time.monotonic() - started:.1f} s")
        bench = Bench(
            process.session, process.gpu, process.kernels, process.pool, torch.cuda.synchronize, forget_compiled
        )
        measuring = time.monotonic()
        rows = measure(bench, problems, max(2, arguments.screens))
        measured_s = time.monotonic() - measuring
    print("ms: inputs of the first problem of a weight include the weight's; near and far: screens in all; noise in %")
    print(table(rows))
    labels = sorted({label for row in rows for label in row.labels})
    print(f"labels: {', '.join(labels) or 'none'}; inputs hold {process.pool.held_bytes / 2**30:.1f} GiB")
    print(f"{measured_s:.1f} s of measuring, {time.monotonic() - started:.1f} s in all")
    if arguments.json:
        found = {"environment": asdict(description.environment), "rows": [asdict(row) for row in rows]}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
