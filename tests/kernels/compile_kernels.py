"""Compiles kernels for one GPU architecture without the GPU: a request as JSON on stdin, results as JSON on stdout.

A program of its own, one architecture each: see ``blockscale.kernels.compile_only``.
"""

import json
import sys
import warnings

import torch

from blockscale.kernels import launch
from blockscale.kernels.compile_only import offline_target
from blockscale.kernels.inputs import make_inputs
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, QuantFormat, QuantScheme, TileConfig


def compile_case(case: dict, fp8_format: str) -> dict:
    """Shared memory of each kernel compiled, or the compiler's refusal."""
    kernel = Kernel(case["kernel"])
    quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8)
    problem = Problem(GemmShape(*case["shape"]), quant, OutDtype.BFLOAT16)
    candidate = Candidate(kernel, TileConfig.from_entry(case["config"]))
    try:
        compiled = launch.warm_up(problem, candidate, fp8_format)
    except Exception as error:
        return {"error": str(error)}
    result = {"shared": [kernel.metadata.shared for kernel in compiled], "hashes": [kernel.hash for kernel in compiled]}
    if case.get("with_tensors"):
        result["tensor_hashes"] = hashes_of_real_tensors(problem, candidate, fp8_format)
    return result


def hashes_of_real_tensors(problem: Problem, candidate: Candidate, fp8_format: str) -> list[str]:
    """What Triton would look up for a launch on tensors; A has more rows than M, as in a run over several M."""
    m, n, k = problem.shape.M, problem.shape.N, problem.shape.K
    largest = Problem(GemmShape(m + 7, n, k), problem.quant, problem.out_dtype)
    inputs = make_inputs(largest, fp8_format, 0).rows(m)
    out = torch.empty((m, n), dtype=torch.bfloat16)
    captured = []

    def start_nothing(function, grid):
        return lambda *args, **options: captured.append(function.run(*args, grid=grid, warmup=True, **options))

    # The driver here cannot start kernels: everything of a launch but its start.
    type(launch.sum_splits).__getitem__ = start_nothing
    launch.forget_compiled()
    launch.bind(problem, candidate, inputs, out)()
    return [kernel.hash for kernel in captured]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    offline_target(request["arch"])
    print(json.dumps([compile_case(case, request["fp8_format"]) for case in request["cases"]]))
