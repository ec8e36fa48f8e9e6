"""Do the engines' own kernels compute and cost what ours do? One GPU, made to take a minute.

Each kernel of an installed or unpacked engine and ours for it launch the same configs on the same inputs: outputs are
verified as in tuning and compared bit by bit; ours, theirs and ours once more take turns in five rounds. A ratio is the
median over the rounds of theirs over ours in the same round; ours over ours says what noise alone makes of it.

    pip install --no-deps --target out/packages sglang==0.5.23 vllm==0.33.0
    python benchmarks/engine_kernels.py --packages out/packages --json out/engine_kernels.json

Of the packages these files are read: ``sglang/kernels/ops/gemm/{fp8,int8}_kernel.py``,
``vllm/model_executor/layers/quantization/utils/fp8_utils.py`` and ``METADATA`` in each ``*.dist-info``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from engine_packages import found_kernels, installed_sources

from blockscale.hardware import DeviceSpec
from blockscale.kernels.installed import OWN, KernelSource
from blockscale.measure.compile_pool import CompileOptions, CompilePool, CompileRequest, PoolSettings
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, QuantFormat, QuantScheme, TileConfig
from blockscale.tuning.comparison.rounds import median_ratio

SHAPES = [
    (1, 2112, 7168), (16, 24576, 1536), (17, 576, 7168), (64, 7168, 2304), (256, 4608, 1160), (2048, 2112, 7168),
]  # fmt: skip
PLAIN = [
    TileConfig(64, 128, 128, group_m=32, num_warps=4, num_stages=3),
    TileConfig(16, 32, 128, num_warps=4, num_stages=5),
    TileConfig(16, 64, 128, num_warps=4, num_stages=4),
    TileConfig(64, 64, 128, group_m=16, num_warps=4, num_stages=4),
    TileConfig(128, 64, 64, group_m=16, num_warps=8, num_stages=3),
    TileConfig(128, 128, 128, group_m=16, num_warps=8, num_stages=3),
]
HOPPER = [
    TileConfig(16, 64, 128, num_warps=4, num_stages=4, swap_ab=True),
    TileConfig(16, 64, 128, num_warps=4, num_stages=4, swap_ab=True, split_k=8),
    TileConfig(64, 64, 128, num_warps=4, num_stages=4, split_k=4),
    TileConfig(64, 128, 128, group_m=16, num_warps=4, num_stages=3, split_k=2),
    TileConfig(64, 64, 64, num_warps=4, num_stages=4, swap_ab=True, split_k=2),
    TileConfig(128, 64, 128, group_m=16, num_warps=4, num_stages=3, swap_ab=True),
]


@dataclass(frozen=True, slots=True, order=True)
class Theirs(Candidate):
    """A candidate on the engine's own kernel."""


@dataclass
class Row:
    """One config on one problem: samples in µs a launch, and whether all outputs were equal bits."""

    kernel: Kernel
    M: int
    N: int
    K: int
    config: str
    status: str = ""
    equal_bits: bool = False
    ours_us: Sequence[float] = ()
    theirs_us: Sequence[float] = ()
    again_us: Sequence[float] = ()  # ours once more

    @property
    def ratio(self) -> float:
        """Theirs over ours."""
        return median_ratio(self.theirs_us, self.ours_us)

    @property
    def noise(self) -> float:
        """Ours over ours."""
        return median_ratio(self.again_us, self.ours_us)


class BothKernels:
    """Launches ours or the engines'."""

    def __init__(self, ours: Any, theirs: Any) -> None:
        self._ours, self._theirs = ours, theirs

    def launches(self, problem: Problem, candidate: Candidate, sets: Any, outputs: Any) -> Any:
        """As ``Kernels.launches``."""
        kernels = self._theirs if isinstance(candidate, Theirs) else self._ours
        return kernels.launches(problem, candidate, sets, outputs)


def jobs(kernels: set[Kernel]) -> Iterator[tuple[Problem, Candidate]]:
    """What to compare, by kernel and problem."""
    for kernel in sorted(kernels):
        quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8)
        for shape in SHAPES:
            for config in HOPPER if kernel is Kernel.FP8_HOPPER else PLAIN:
                yield Problem(GemmShape(*shape), quant), Candidate(kernel, config)


def compile_all(
    work: Sequence[tuple[Problem, Candidate]],
    sources: Mapping[QuantFormat, KernelSource],
    spec: DeviceSpec,
    cache: Path,
) -> None:
    """Compile ours and theirs on all cores."""
    workers = max(1, len(os.sched_getaffinity(0)) // (1 + len(sources)))
    with ExitStack() as stack:
        waiting = []
        for quant_format, source in ((None, OWN), *sources.items()):
            options = CompileOptions(cache, source)
            pool = stack.enter_context(closing(CompilePool(options, PoolSettings(workers=workers))))
            wanted = [(p, c) for p, c in work if quant_format in (None, p.quant.format)]
            waiting += [pool.submit(CompileRequest(spec, problem, candidate)) for problem, candidate in wanted]
        for future in waiting:
            if message := future.result().message:
                print(message)


def measure(session: Any, problem: Problem, candidate: Candidate) -> Row:
    """One config on ours and theirs."""
    shape = problem.shape
    row = Row(candidate.kernel, shape.M, shape.N, shape.K, str(candidate.config))
    theirs = Theirs(candidate.kernel, candidate.config)
    results = session.finals(problem, [candidate, theirs, candidate])
    failed = [result for result in results if result is None or not result.status.timed]
    if failed:
        row.status = " ".join(f"{r.status}: {r.message}" if r else "not reached" for r in failed)
        return row
    row.status, (row.ours_us, row.theirs_us, row.again_us) = "measured", (result.samples_us for result in results)
    return row


def outputs_equal(process: Any, kernels: BothKernels, problem: Problem, candidate: Candidate) -> bool:
    """Whether ours and theirs write equal bits on one input set."""
    from blockscale.measure.rotation import FINAL_SEED

    rotation = process.pool.rotation(problem, FINAL_SEED)
    results = []
    for each in (candidate, Theirs(candidate.kernel, candidate.config)):
        rotation.fill_nan()
        kernels.launches(problem, each, rotation.sets[:1], rotation.outputs[:1])[0]()
        process.gpu.synchronize()
        results.append(rotation.outputs[0].clone())
    return bool((results[0] == results[1]).all())


def report(rows: Sequence[Row]) -> str:
    """A line a kernel, the rows farthest from 1, and what failed."""
    lines = [
        f"{'kernel':<12} {'runs':>5} {'equal bits':>10} {'theirs/ours':>12} {'least':>7} {'most':>7} {'noise':>16}"
    ]
    measured = [row for row in rows if row.status == "measured"]
    for kernel in dict.fromkeys(row.kernel for row in measured):
        own = [row for row in measured if row.kernel is kernel]
        ratios, noises = [row.ratio for row in own], [row.noise for row in own]
        lines.append(
            f"{kernel:<12} {len(own):5} {sum(row.equal_bits for row in own):10} "
            f"{statistics.geometric_mean(ratios):12.4f} {min(ratios):7.4f} {max(ratios):7.4f} "
            f"{min(noises):7.4f}…{max(noises):7.4f}"
        )
    for row in sorted(measured, key=lambda row: -abs(row.ratio - 1))[:8]:
        lines.append(
            f"{row.ratio:8.4f} (noise {row.noise:.4f})  {statistics.median(row.ours_us):8.2f} µs ours  "
            f"{row.kernel} M={row.M} {row.N}×{row.K}: {row.config}"
        )
    lines += [f"not equal bits: {r.kernel} M={r.M} {r.N}×{r.K}: {r.config}" for r in measured if not r.equal_bits]
    lines += [f"failed: {r.kernel} M={r.M} {r.N}×{r.K}: {r.config}: {r.status}" for r in rows if r not in measured]
    return "\n".join(lines)


def main() -> None:
    """Compare, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, metavar="DIR", help="folder of unpacked packages (default: installed)")
    parser.add_argument("--json", type=Path, help="where to save every sample")
    args = parser.parse_args()
    began_s = time.monotonic()
    sources = installed_sources(args.packages)
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(temporary)
        os.environ["TRITON_CACHE_DIR"] = temporary
        from blockscale.measure.functions import launch_functions
        from blockscale.measure.launcher import TritonKernels
        from blockscale.measure.session import Session
        from blockscale.measure.worker import GpuMeasuring

        process = GpuMeasuring()
        spec = process.describe().spec
        found = found_kernels(sources)
        kernels = BothKernels(process.kernels, TritonKernels(launch_functions(found, spec.arch)))
        session = Session(process.gpu, kernels, process.pool, process.conditions)
        work = list(jobs({kernel.kernel for kernel in found}))
        compile_all(work, sources, spec, cache)
        compiled_s, compiled = time.monotonic() - began_s, set(cache.rglob("*.cubin"))
        process.prepare([problem for problem, _ in work])
        rows = [measure(session, problem, candidate) for problem, candidate in work]
        for row, job in zip(rows, work, strict=True):
            row.equal_bits = row.status == "measured" and outputs_equal(process, kernels, *job)
        added = set(cache.rglob("*.cubin")) - compiled
    engines = sorted({str(package) for source in sources.values() for package in source.packages})
    print(report(rows))
    print(
        f"{' and '.join(engines)} on {spec.name}: {time.monotonic() - began_s:.1f} s in all, of which "
        f"{compiled_s:.1f} s to the end of compiling; {len(added)} kernels compiled again by the measuring process"
    )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        saved = [asdict(r) | ({"ratio": r.ratio, "noise": r.noise} if r.status == "measured" else {}) for r in rows]
        environment = asdict(process.describe().environment)
        args.json.write_text(json.dumps({"engines": engines, "environment": environment, "rows": saved}))


if __name__ == "__main__":
    main()
