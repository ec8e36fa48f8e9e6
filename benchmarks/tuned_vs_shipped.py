"""Re-measures tuned config files beside the engine's default and its shipped file, on the engine's own kernel.

Independent of the tuner: other inputs, other timing code, the kernel of the published package. Every output is
compared with a float32 reference. Cold L2: input sets rotate past twice the L2 size; CUDA-graph replay; versions are
interleaved; medians and spread over the rounds.

    python benchmarks/tuned_vs_shipped.py --engine sglang --kernel-source sglang-0.5.23-….whl \\
        --tuned configs/sglang --shipped …/configs --output results.json 2112x7168 4608x7168
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from engine_kernel import DEFAULTS, launcher, load

from blockscale.tuning.comparison.rounds import median_ratio

ROUNDS = 15
BLOCK = (128, 128)


def make_set(m: int, n: int, k: int, seed: int) -> tuple[torch.Tensor, ...]:
    g = torch.Generator(device="cuda").manual_seed(seed)
    a = torch.randn(m, k, device="cuda", generator=g).mul_(60).clamp_(-440, 440).to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device="cuda", generator=g).mul_(60).clamp_(-440, 440).to(torch.float8_e4m3fn)
    kb, nb = math.ceil(k / BLOCK[1]), math.ceil(n / BLOCK[0])
    a_scale = torch.exp2(torch.rand(m, kb, device="cuda", generator=g) * 8 - 14)
    b_scale = torch.exp2(torch.rand(nb, kb, device="cuda", generator=g) * 8 - 14)
    return a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16), a_scale, b_scale


def reference(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact product and Σ|a·b| of each element, in float32 arithmetic."""
    a, b, _, a_scale, b_scale = tensors
    k, n = a.shape[1], b.shape[0]
    full_a = a.float() * a_scale.repeat_interleave(BLOCK[1], 1)[:, :k]
    full_b = b.float() * b_scale.repeat_interleave(BLOCK[0], 0)[:n].repeat_interleave(BLOCK[1], 1)[:, :k]
    return full_a @ full_b.T, full_a.abs() @ full_b.abs().T


def wrong_elements(tensors: tuple[torch.Tensor, ...]) -> int:
    exact, magnitude = reference(tensors)
    bound = exact.abs() * 2**-8 + magnitude * 2**-11
    return int((~((tensors[2].float() - exact).abs() <= bound)).sum())


class Version:
    """One config on one problem: a graph over all input sets."""

    def __init__(
        self, name: str, engine: str, module: Any, config: dict[str, Any], sets: list[tuple[Any, ...]]
    ) -> None:
        self.name, self.config = name, config
        self.samples: list[float] = []
        # Kept: the graph writes into the workspaces that they own.
        self.runs = runs = [launcher(engine, module, config, s, BLOCK) for s in sets]
        for s in sets:
            s[2].fill_(math.nan)
        for run in runs:
            run()
        torch.cuda.synchronize()
        self.wrong = sum(wrong_elements(s) for s in sets[:2])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for run in runs:
            run()
        end.record()
        end.synchronize()
        self.passes = max(1, math.ceil(1.0 / begin.elapsed_time(end)))
        self.launches = self.passes * len(runs)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.passes):
                for run in runs:
                    run()
        self.graph.replay()

    def sample(self) -> None:
        """Time one replay: µs per launch."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.graph.replay()  # keeps the GPU busy while the timed replay is queued behind it
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        self.samples.append(begin.elapsed_time(end) * 1e3 / self.launches)


def config_of(folder: Path | None, n: int, k: int, m: int) -> dict[str, Any] | None:
    """The entry that the engine would take for M from the H200 file in ``folder``."""
    for path in sorted(folder.glob(f"N={n},K={k},device_name=NVIDIA_H200,*128]*.json")) if folder else []:
        entries = {int(key): entry for key, entry in json.loads(path.read_text()).items()}
        return entries[min(entries, key=lambda key: abs(key - m))]
    return None


def configs_of(args: argparse.Namespace, m: int, n: int, k: int) -> dict[str, dict[str, Any]]:
    """The configs to compare on one problem, by where they come from."""
    found = {
        "default": DEFAULTS[args.engine],
        "shipped": config_of(args.shipped, n, k, m),
        "tuned": config_of(args.tuned, n, k, m),
    }
    return {name: config for name, config in found.items() if config}


def compile_ahead(job: tuple[argparse.Namespace, tuple[int, int, int]]) -> None:
    """Launch each config of a problem once, in a process of its own, so that Triton's cache holds the kernels."""
    args, (m, n, k) = job
    module = load(args.engine, args.kernel_source)
    tensors = make_set(m, n, k, seed=0)
    for config in configs_of(args, m, n, k).values():
        launcher(args.engine, module, config, tensors, BLOCK)()
    torch.cuda.synchronize()


def measure(args: argparse.Namespace, module: Any, m: int, n: int, k: int) -> dict[str, Any]:
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, math.ceil(2 * l2 / (n * k + m * k + 2 * m * n)) + 1)
    sets = [make_set(m, n, k, seed) for seed in range(1000, 1000 + count)]
    versions = [Version(name, args.engine, module, c, sets) for name, c in configs_of(args, m, n, k).items()]
    for i in range(ROUNDS):
        for version in versions[i % len(versions) :] + versions[: i % len(versions)]:
            version.sample()
    row: dict[str, Any] = {"M": m, "N": n, "K": k, "engine": args.engine}
    for v in versions:
        row[v.name] = {"config": v.config, "samples_us": v.samples, "wrong": v.wrong}
    return row


def gain(row: dict[str, Any], name: str) -> float:
    """Time of ``name`` over time of the tuned config."""
    return median_ratio(row[name]["samples_us"], row["tuned"]["samples_us"])


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line a problem: medians in µs, spread of the tuned samples, gains over default and over what is replaced."""
    names = ("default", "shipped", "tuned")
    heads = " ".join(f"{head:>10}" for head in names)
    print(f"{'M':>5} {'N×K':>12} {heads} {'spread':>7} {'default/tuned':>14} {'shipped/tuned':>14} {'wrong':>6}")
    gains: dict[str, list[float]] = {"default": [], "shipped": []}
    worst = math.inf
    for row in (r for r in rows if "tuned" in r):
        medians = {n: statistics.median(row[n]["samples_us"]) for n in names if n in row}
        shown = {n: gain(row, n) for n in gains if n in row}
        for name, value in shown.items():
            gains[name].append(value)
        worst = min(worst, shown.get("shipped", shown["default"]))
        samples = row["tuned"]["samples_us"]
        spread = (max(samples) - min(samples)) / medians["tuned"]
        wrong = sum(row[n]["wrong"] for n in medians)
        times = " ".join(f"{medians[n]:10.1f}" if n in medians else f"{'–':>10}" for n in names)
        ratios = " ".join(f"{shown[n]:13.2f}x" if n in shown else f"{'–':>14}" for n in gains)
        print(f"{row['M']:5} {row['N']:>6}×{row['K']:<5} {times} {spread:7.1%} {ratios} {wrong:6}")
    for name, values in gains.items():
        if values:
            print(f"{name}/tuned: geometric mean {statistics.geometric_mean(values):.2f} over {len(values)} problems")
    print(f"least gain over what is replaced (shipped, else default): {worst:.3f}x")


def main() -> None:
    """Measure, or print again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", help="NxK …")
    parser.add_argument("--engine", choices=sorted(DEFAULTS), required=True)
    parser.add_argument("--kernel-source", type=Path, required=True, help="the engine's wheel, or its kernel module")
    parser.add_argument("--tuned", type=Path, required=True, help="folder of tuned files")
    parser.add_argument("--shipped", type=Path, help="folder of the engine's shipped files")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16, 64, 256, 1024, 4096])
    parser.add_argument("--output", type=Path, required=True, help="raw results; with no shapes: print its table again")
    args = parser.parse_args()
    if not args.shapes:
        print_table(json.loads(args.output.read_text())["rows"])
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    module = load(args.engine, args.kernel_source)
    shapes = [tuple(map(int, re.split("[x×]", s))) for s in args.shapes]
    problems = [(m, n, k) for n, k in shapes for m in args.batch_sizes]
    workers = max(1, len(os.sched_getaffinity(0)) - 2)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(compile_ahead, [(args, problem) for problem in problems], chunksize=1)
    rows = [measure(args, module, *problem) for problem in problems]
    args.output.write_text(
        json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows})
    )
    print_table(rows)


if __name__ == "__main__":
    main()
