"""Prove the measuring method on a real GPU, in under four minutes: ``python benchmarks/gpu_probe.py RESULT.json``.

Compile-pool products are cache hits, times repeat, kernels are right, known figures come out, faults cost one trial.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

from blockscale.executor.base import Comparison, Screening  # noqa: E402
from blockscale.executor.local import LocalDevice, LocalSettings  # noqa: E402
from blockscale.hardware import H200, DeviceSpec  # noqa: E402
from blockscale.measure.compile_pool import CompileOptions, CompilePool, CompileRequest  # noqa: E402
from blockscale.measure.process import Limits  # noqa: E402
from blockscale.problem import (  # noqa: E402
    Candidate,
    GemmShape,
    Kernel,
    OutDtype,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    Trial,
)

CRASHES, HANGS, UNWRITTEN = 61, 62, 63  # as gpu_probe_worker takes them
SGLANG_DEFAULT = TileConfig(64, 128, 128, group_m=32, num_warps=4, num_stages=3)
VLLM_DEFAULT = SGLANG_DEFAULT.with_(num_stages=2)
FAST_SMALL_M = TileConfig(16, 64, 128, num_warps=4, num_stages=4, swap_ab=True, split_k=8)
OF_KERNEL = {
    Kernel.FP8: TileConfig(16, 64, 128, num_stages=4),
    Kernel.FP8_MASKED: TileConfig(16, 64, 128, num_stages=4),
    Kernel.FP8_UNROLLED_X4: TileConfig(16, 64, 128, num_stages=2),
    Kernel.FP8_HOPPER: FAST_SMALL_M,
    Kernel.INT8: TileConfig(16, 64, 128, num_stages=4),
}


def problem(m: int, n: int, k: int, kernel: Kernel = Kernel.FP8, **more: Any) -> Problem:
    quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8, **more.pop("block", {}))
    return Problem(GemmShape(m, n, k), quant, **more)


@dataclass
class Probe:
    """Where results gather while sections run; a section that fails does not stop the others."""

    folder: Path
    result: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def cache_dir(self) -> Path:
        """A compiler's cache that begins empty."""
        return self.folder / "cache"

    def device(self, worker: str, limits: Limits) -> LocalDevice:
        """The first GPU, measured by this entry of `gpu_probe_worker`."""
        return LocalDevice(LocalSettings(cache_dir=self.cache_dir, limits=limits, worker=f"gpu_probe_worker:{worker}"))

    def section(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        """Run one part of the probe and keep what it returns."""
        started = time.monotonic()
        try:
            self.result[name] = run()
        except Exception as error:
            traceback.print_exc()
            self.result[name] = {"failed": f"{type(error).__name__}: {error}"}
            self.say(f"{name}: FAILED: {type(error).__name__}: {error}")
        self.result[name]["seconds"] = time.monotonic() - started
        print(f"-- {name}: {time.monotonic() - started:.1f} s", flush=True)

    def say(self, line: str) -> None:
        """A line of the summary."""
        self.lines.append(line)
        print(line, flush=True)


def screen(device: LocalDevice, p: Problem, candidates: Sequence[Candidate]) -> list[Trial]:
    """Screening trials of candidates that differ, in the order given."""
    for candidate in candidates:
        device.start(Screening(p, candidate), 0)
    trials = [trial for _ in candidates for trial in device.next_done().trials]
    return sorted(trials, key=lambda trial: candidates.index(trial.candidate))


def compare(device: LocalDevice, p: Problem, candidates: Sequence[Candidate]) -> list[Trial]:
    """Final trials of candidates, in the order given."""
    device.start(Comparison(p, tuple(candidates)), 0)
    return list(device.next_done().trials)


def cubins(folder: Path) -> set[str]:
    return {path.name + path.parent.name for path in folder.rglob("*.cubin")}


def cache_hits(probe: Probe, spec: DeviceSpec, device: LocalDevice) -> dict[str, Any]:
    """Compile with one pool, measure with a device: the device must add nothing to the cache."""
    cases = [
        (problem(m, 2112, 7168, kernel), Candidate(kernel, c)) for kernel, c in OF_KERNEL.items() for m in (1, 16, 3)
    ]
    cases.append((problem(16, 576, 1000), Candidate(Kernel.FP8, OF_KERNEL[Kernel.FP8])))
    pool = CompilePool(CompileOptions(probe.cache_dir))
    with closing(pool):
        outcomes = [future.result(180) for future in [pool.submit(CompileRequest(spec, *case)) for case in cases]]
    rows = []
    for (p, candidate), outcome in zip(cases, outcomes, strict=True):
        before = cubins(probe.cache_dir)
        (trial,) = screen(device, p, [candidate])
        added = len(cubins(probe.cache_dir) - before)
        rows.append([str(candidate.kernel), str(p), str(outcome.status), added, str(trial.status), trial.time_us])
        if added or not trial.status.timed:
            probe.say(f"cache: {candidate.kernel} {p}: {added} new files, {trial.status} {trial.message}")
    hits = sum(row[3] == 0 and row[5] is not None for row in rows)
    probe.say(f"cache hits: {hits} of {len(rows)} ({'YES' if hits == len(rows) else 'NO'})")
    return {"rows": rows, "cubins": len(cubins(probe.cache_dir)), "compile_s": [o.compile_s for o in outcomes]}


def noise(probe: Probe, device: LocalDevice) -> dict[str, Any]:
    """The same candidate again and again."""
    found: dict[str, Any] = {}
    cases = [
        (16, Kernel.FP8_HOPPER, FAST_SMALL_M),
        (256, Kernel.FP8, SGLANG_DEFAULT),
        (4096, Kernel.FP8, SGLANG_DEFAULT),
    ]
    for m, kernel, config in cases:
        p, candidate = problem(m, 2112, 7168), Candidate(kernel, config)
        # A screen of code that was screened before is not measured again, a comparison is.
        trials = [trial for _ in range(20) for trial in compare(device, p, [candidate])]
        medians = [trial.time_us for trial in trials if trial.time_us is not None]
        spread = statistics.pstdev(medians) / statistics.mean(medians)
        cost_ms = 1e3 * statistics.median(trial.elapsed_s for trial in trials)
        probe.say(
            f"noise M={m}: median {statistics.median(medians):.2f} µs, σ {spread:.2%} of 20 comparisons, range "
            f"{min(medians):.2f}-{max(medians):.2f}; {cost_ms:.1f} ms each"
        )
        labels = Counter(label for trial in trials for label in trial.labels)
        found[f"M={m}"] = {
            "samples": [t.samples_us for t in trials],
            "labels": labels,
            "elapsed_s": [t.elapsed_s for t in trials],
        }
    return found


def correctness_cases() -> list[tuple[Problem, Candidate]]:
    small = TileConfig(16, 64, 64, num_stages=3)
    wide = TileConfig(64, 128, 128, group_m=8, num_warps=4, num_stages=3)
    tall = TileConfig(128, 64, 128, group_m=16, num_warps=8, num_stages=4)
    cases: list[tuple[Problem, Candidate]] = []
    sizes = [(1, 576, 7168), (3, 130, 384), (17, 32, 2304), (24, 2112, 1000), (33, 24576, 256), (1000, 4608, 1536)]
    for kernel in Kernel:
        for m, n, k in sizes:
            for config in (small, wide, tall):
                # Four tiles a step need four times the shared memory.
                stages = 2 if kernel is Kernel.FP8_UNROLLED_X4 else config.num_stages
                cases.append((problem(m, n, k, kernel), Candidate(kernel, config.with_(num_stages=stages))))
        for n, k in ((64, 64), (32, 32), (64, 128), (128, 64)):
            config = TileConfig(32, 64, min(k, 64), num_stages=3)
            p = problem(40, 1088, 2080, kernel, block={"block_n": n, "block_k": k})
            cases.append((p, Candidate(kernel, config)))
        for dtype in OutDtype:
            p = problem(65, 1536, 1536, kernel, out_dtype=dtype)
            cases.append((p, Candidate(kernel, wide.with_(num_stages=2))))
    for swap in (False, True):
        for split in (1, 2, 8, 16):
            for m, n, k in ((1, 2112, 7168), (24, 576, 1100), (70, 4608, 896)):
                config = TileConfig(16, 64, 128, num_stages=4, swap_ab=swap, split_k=split)
                cases.append((problem(m, n, k), Candidate(Kernel.FP8_HOPPER, config)))
    cases.append((problem(4096, 24576, 1536), Candidate(Kernel.FP8, wide)))
    cases.append((problem(4096, 24576, 1536, Kernel.INT8), Candidate(Kernel.INT8, wide)))
    return cases


def correctness(probe: Probe, device: LocalDevice) -> dict[str, Any]:
    """Every kernel over ragged sizes, blocks, output types, splits."""
    by_problem: dict[Problem, list[Candidate]] = {}
    for p, candidate in correctness_cases():
        by_problem.setdefault(p, []).append(candidate)
    trials = [trial for p, candidates in by_problem.items() for trial in screen(device, p, candidates)]
    for kernel in Kernel:
        counts = Counter(str(t.status) for t in trials if t.candidate.kernel is kernel)
        probe.say(f"right: {kernel}: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    for trial in trials:
        if not trial.status.timed:
            probe.say(
                f"  {trial.status}: {trial.problem} {trial.problem.quant} {trial.candidate}: {trial.message[:200]}"
            )
    return {"trials": [describe(trial) for trial in trials]}


def figures(probe: Probe, device: LocalDevice) -> dict[str, Any]:
    """Figures that are known for this GPU, in µs."""
    rows = []
    known: Sequence[tuple[int, int, int, Kernel, TileConfig, float]] = (
        (16, 2112, 7168, Kernel.FP8_HOPPER, FAST_SMALL_M, 8.9),
        (16, 2112, 7168, Kernel.FP8, SGLANG_DEFAULT, 33.4),
        (16, 2112, 7168, Kernel.FP8_MASKED, VLLM_DEFAULT, 67.0),
        (64, 4608, 7168, Kernel.FP8, SGLANG_DEFAULT, 34.9),
        (64, 4608, 7168, Kernel.FP8_MASKED, VLLM_DEFAULT, 67.1),
        (64, 24576, 1536, Kernel.FP8, SGLANG_DEFAULT, 15.1),
        (4096, 24576, 1536, Kernel.FP8, SGLANG_DEFAULT, 479.3),
        (4096, 24576, 1536, Kernel.FP8_MASKED, VLLM_DEFAULT, 648.4),
        (4096, 2112, 7168, Kernel.FP8, SGLANG_DEFAULT, 201.2),
    )
    for m, n, k, kernel, config, expected_us in known:
        (trial,) = compare(device, problem(m, n, k), [Candidate(kernel, config)])
        time_us = trial.time_us or float("nan")
        probe.say(
            f"figure M={m} {n}×{k} {kernel} {config}: {time_us:.1f} µs, known {expected_us} "
            f"({time_us / expected_us - 1:+.0%}) {trial.status} {' '.join(trial.labels)} {trial.message[:120]}"
        )
        rows.append({**describe(trial), "known_us": expected_us})
    return {"trials": rows}


def memory(probe: Probe, device: LocalDevice, report: Path) -> dict[str, Any]:
    """GPU memory of the largest problem of the default ladder beyond its own tensors."""
    p = problem(4096, 24576, 1536)
    device.prepare([problem(m, 24576, 1536) for m in (1, 16, 4096)])
    screen(device, p, [Candidate(Kernel.FP8, SGLANG_DEFAULT)])
    peak = json.loads(report.read_text())["peak_bytes"]
    beyond = (peak["reserved"] - p.bytes_moved) / 2**30
    probe.say(
        f"memory M=4096 24576×1536: peak {peak['allocated'] / 2**30:.2f} GiB allocated, {peak['reserved'] / 2**30:.2f} "
        f"reserved, {beyond:.2f} beyond the problem's own {p.bytes_moved / 2**30:.2f}"
    )
    return {"peak_bytes": peak, "own_bytes": p.bytes_moved}


def throughput(probe: Probe, device: LocalDevice) -> dict[str, Any]:
    """A cold search of 96 candidates on one problem, compile and measuring overlapped."""
    tiles = product((16, 32), (32, 64, 128), (4, 8), (3, 4), ((True, 4), (True, 16), (False, 4), (True, 1)))
    configs = [
        TileConfig(block_m, block_n, 128, num_warps=warps, num_stages=stages, swap_ab=swap, split_k=split)
        for block_m, block_n, warps, stages, (swap, split) in tiles
    ]
    p = problem(16, 4608, 7168)
    started = time.monotonic()
    trials = screen(device, p, [Candidate(Kernel.FP8_HOPPER, config) for config in configs])
    wall_s = time.monotonic() - started
    compile_s = sum(trial.compile_s for trial in trials)
    best = min((t for t in trials if t.time_us is not None), key=lambda t: t.time_us or 0.0)
    statuses = Counter(str(trial.status) for trial in trials)
    probe.say(
        f"search: {len(trials)} cold candidates in {wall_s:.1f} s ({compile_s:.0f} s of compiling), best "
        f"{best.time_us:.2f} µs {best.candidate.config} (known 14.2); {dict(statuses)}"
    )
    return {"wall_s": wall_s, "compile_s": compile_s, "trials": [describe(trial) for trial in trials]}


def faults(probe: Probe) -> dict[str, Any]:
    """A crash, a hang and an unwritten output, each between two good candidates."""
    p = problem(16, 2112, 7168)
    groups = [1, CRASHES, 2, HANGS, 4, UNWRITTEN, 8]
    limits = Limits(request_s=15.0, first_of_problem_s=30.0)
    with closing(probe.device("open_misbehaving", limits)) as device:
        trials = screen(device, p, [Candidate(Kernel.FP8, OF_KERNEL[Kernel.FP8].with_(group_m=g)) for g in groups])
        finals = compare(device, p, [trials[i].candidate for i in (0, 1, 2)])
    for trial in (*trials, *finals):
        probe.say(
            f"fault {trial.phase} G{trial.candidate.config.group_m}: {trial.status} {trial.time_us or ''} "
            f"({trial.elapsed_s:.1f} s) {trial.message[:100]}"
        )
    expected = ["ok", "illegal_access", "ok", "timeout", "ok", "nan_result", "ok"]
    as_expected = [str(t.status) for t in trials] == expected
    probe.say(f"faults cost one trial each: {'YES' if as_expected else 'NO'}")
    return {"trials": [describe(trial) for trial in (*trials, *finals)], "as_expected": as_expected}


def describe(trial: Trial) -> dict[str, Any]:
    return {
        "problem": f"{trial.problem} {trial.problem.quant} {trial.problem.out_dtype}",
        "kernel": str(trial.candidate.kernel),
        "config": trial.candidate.config.to_entry(),
        "status": str(trial.status),
        "samples_us": trial.samples_us,
        "message": trial.message,
        "labels": trial.labels,
        "compile_s": trial.compile_s,
        "elapsed_s": trial.elapsed_s,
    }


def run(probe: Probe) -> None:
    report = probe.folder / "worker.json"
    os.environ["GPU_PROBE_WORKER_REPORT"] = str(report)
    with closing(probe.device("open_profiled", Limits())) as device:
        probe.say(f"{device.spec}")
        probe.say(f"{device.environment}")
        if device.spec.name == H200.name and device.spec != H200:
            probe.say(f"differs from the built-in H200: {H200}")
        probe.section("cache", lambda: cache_hits(probe, device.spec, device))
        probe.section("figures", lambda: figures(probe, device))
        probe.section("noise", lambda: noise(probe, device))
        probe.section("search", lambda: throughput(probe, device))
        probe.section("memory", lambda: memory(probe, device, report))
        probe.section("right", lambda: correctness(probe, device))
        probe.result["worker"] = json.loads(report.read_text())
        probe.result["warnings"] = device.warnings()
    probe.section("faults", lambda: faults(probe))
    worker = probe.result["worker"]
    for name, seconds in sorted(worker["seconds"].items(), key=lambda item: -item[1]):
        probe.say(f"worker: {seconds:7.2f} s {worker['calls'].get(name, 0):6d} × {name}")
    for warning in probe.result["warnings"]:
        probe.say(f"warning: {warning}")


def main(arguments: list[str]) -> int:
    target = Path(arguments[0]) if arguments else Path("gpu_probe.json")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(Path(folder))
        try:
            run(probe)
        finally:
            probe.result["lines"] = probe.lines
            target.write_text(json.dumps(probe.result, default=str))
    print("\n== SUMMARY ==")
    print("\n".join(probe.lines))
    print(f"{time.monotonic() - started:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
