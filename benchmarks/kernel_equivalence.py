"""Does our kernel compile to what the engine's own compiles to? No GPU needed: both are compiled for one target.

The engines' kernel functions are taken out of their published packages at run time. Per kernel, config and problem the
PTX of both is compared with names and register numbers taken out: `equal`, `reordered` (the same instructions in
another order outside the loop), or how many instructions differ.

    python benchmarks/kernel_equivalence.py --sglang sglang-0.5.23-….whl --vllm vllm-0.33.0-….whl
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from engine_kernel import load

from blockscale.kernels.compile_only import offline_target
from blockscale.kernels.launch import extra_launch_args, warm_up
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, QuantFormat, QuantScheme, TileConfig, ceil_div

SIZES = [(4096, 2112, 7168), (16, 2112, 7168), (1, 24576, 1536), (17, 576, 7168), (64, 4608, 300)]
PLAIN = [
    TileConfig(64, 128, 128, group_m=32, num_warps=4, num_stages=3),
    TileConfig(16, 32, 128, num_warps=4, num_stages=5),
    TileConfig(128, 64, 64, group_m=16, num_warps=8, num_stages=3),
]
HOPPER = [
    TileConfig(16, 64, 128, num_warps=4, num_stages=4, swap_ab=True, split_k=8),
    TileConfig(64, 64, 128, num_warps=4, num_stages=4, split_k=8),
    TileConfig(128, 64, 128, group_m=16, num_warps=4, num_stages=3, swap_ab=True),
]
# Our kernel, the package and the function that it stands for, the configs to compare.
PAIRS = [
    (Kernel.FP8, "sglang", "_w8a8_block_fp8_matmul", PLAIN),
    (Kernel.FP8_HOPPER, "sglang", "_w8a8_block_fp8_matmul_hopper", HOPPER),
    (Kernel.INT8, "sglang_int8", "_w8a8_block_int8_matmul", PLAIN),
    (Kernel.FP8_MASKED, "vllm", "_w8a8_triton_block_scaled_mm", PLAIN),
]


def instructions(compiled: Any) -> list[str]:
    """PTX of the kernel's body with debug lines and names taken out and registers numbered by first use."""
    body = compiled.asm["ptx"].split("ld.param", 1)[1].split(".section")[0]
    lines = (re.sub(r"//.*", "", line).strip() for line in body.splitlines())
    kept = [line for line in lines if line and not line.startswith((".loc", ".file", "$L__tmp", "}"))]
    text = re.sub(r"\w+_param_", "param_", "\n".join(kept))
    text = re.sub(r"\$L__\w+", "label", text)
    numbers: dict[str, str] = {}
    return re.sub(r"%[a-z]+\d+", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), text).splitlines()


def compare(ours: Any, theirs: Any) -> str:
    """The verdict on two compiled kernels."""
    a, b = instructions(ours), instructions(theirs)
    if a == b:
        return "equal"

    def opcodes(lines: list[str]) -> Counter[str]:
        return Counter(re.sub(r"%\d+", "%", line) for line in lines)

    differing = (opcodes(a) - opcodes(b)).total() + (opcodes(b) - opcodes(a)).total()
    return "reordered" if not differing else f"{differing} of {len(b)} instructions differ"


def compile_theirs(function: Any, problem: Problem, candidate: Candidate) -> Any:
    """Compile the engine's function for the launch that the engine would make."""
    m, n, k = problem.shape.M, problem.shape.N, problem.shape.K
    groups = ceil_div(k, problem.quant.block_k)
    element = torch.int8 if problem.quant.format is QuantFormat.INT8 else torch.float8_e4m3fn
    config = candidate.config
    out = torch.float32 if config.split_k > 1 else torch.bfloat16
    strides = (k, 1, 1, k, n, 1, groups, 1, 1, groups)
    blocks = (problem.quant.block_n, problem.quant.block_k)
    keywords = config.with_(swap_ab=False, split_k=1).to_entry() | extra_launch_args(candidate.kernel, problem, config)
    operands = (element, element, out, torch.float32, torch.float32)
    return function.warmup(*operands, m, n, k, *blocks, *strides, grid=(1,), **keywords)


def rows(sources: dict[str, Path]) -> Iterator[tuple[Problem, Candidate, str]]:
    """Every comparison that the given packages allow."""
    for kernel, package, name, configs in PAIRS:
        if package not in sources:
            continue
        function = getattr(load(package, sources[package]), name)
        quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8)
        for sizes in SIZES:
            problem = Problem(GemmShape(*sizes), quant)
            for candidate in (Candidate(kernel, config) for config in configs):
                ours = warm_up(problem, candidate, "float8_e4m3fn")[0]
                yield problem, candidate, compare(ours, compile_theirs(function, problem, candidate))


def main() -> None:
    """Print one line a comparison and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang", type=Path, help="SGLang's wheel")
    parser.add_argument("--vllm", type=Path, help="vLLM's wheel")
    parser.add_argument("--arch", default="sm_90")
    args = parser.parse_args()
    given = {"sglang": args.sglang, "sglang_int8": args.sglang, "vllm": args.vllm}
    sources = {package: path for package, path in given.items() if path}
    if not sources:
        parser.error("give --sglang or --vllm, or both")
    offline_target(args.arch)
    counts: Counter[str] = Counter()
    for problem, candidate, verdict in rows(sources):
        counts[f"{candidate.kernel}: {verdict}"] += 1
        print(f"{problem!s:>20}  {candidate!s:<50} {verdict}")
    for line, count in sorted(counts.items()):
        print(f"{count:4} × {line}")


if __name__ == "__main__":
    main()
