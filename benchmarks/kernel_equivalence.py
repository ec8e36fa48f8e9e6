"""Does our kernel compile to what the engine's own compiles to? No GPU needed: both are compiled for one target.

The engines' kernel functions are taken out of their installed or unpacked packages. Per kernel, config and problem the
PTX of both is compared with names and register numbers taken out: `equal`, `reordered` (the same instructions in
another order outside the loop), or how many instructions differ.

    pip install --no-deps --target out/packages sglang==0.5.23 vllm==0.33.0
    python benchmarks/kernel_equivalence.py --packages out/packages
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_packages import found_kernels, installed_sources

from blockscale.kernels.compile_only import offline_target
from blockscale.kernels.launch import KernelFunctions, warm_up
from blockscale.measure.functions import launch_functions
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, QuantFormat, QuantScheme, TileConfig

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
CONFIGS = {Kernel.FP8: PLAIN, Kernel.FP8_HOPPER: HOPPER, Kernel.INT8: PLAIN, Kernel.FP8_MASKED: PLAIN}


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


def rows(kernels: set[Kernel], theirs: KernelFunctions) -> Iterator[tuple[Problem, Candidate, str]]:
    """Every comparison of kernels that the packages have; of a split K the GEMM, not the reduction, which differs: the
    engine compiles its for the number of elements."""
    for kernel, configs in CONFIGS.items():
        if kernel not in kernels:
            continue
        quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8)
        for sizes in SIZES:
            problem = Problem(GemmShape(*sizes), quant)
            for candidate in (Candidate(kernel, config) for config in configs):
                compiled = [
                    warm_up(problem, candidate, "float8_e4m3fn", *functions)[0] for functions in ((), (theirs,))
                ]
                yield problem, candidate, compare(*compiled)


def main() -> None:
    """Print one line a comparison and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, help="folder of unpacked packages (default: what is installed)")
    parser.add_argument("--arch", default="sm_90")
    args = parser.parse_args()
    found = found_kernels(installed_sources(args.packages))
    offline_target(args.arch)
    counts: Counter[str] = Counter()
    for problem, candidate, verdict in rows({each.kernel for each in found}, launch_functions(found, args.arch)):
        counts[f"{candidate.kernel}: {verdict}"] += 1
        print(f"{problem!s:>20}  {candidate!s:<50} {verdict}")
    for line, count in sorted(counts.items()):
        print(f"{count:4} × {line}")


if __name__ == "__main__":
    main()
