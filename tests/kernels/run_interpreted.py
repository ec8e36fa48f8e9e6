"""Runs GEMMs under Triton's interpreter: cases as JSON on stdin, one result a case on stdout.

A program of its own, since ``TRITON_INTERPRET`` must be set before Triton is imported.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from blockscale.engines import engine
from blockscale.engines.kernels import kernels_of
from blockscale.kernels.inputs import make_inputs
from blockscale.kernels.installed import OWN, KernelSource, find_kernels
from blockscale.kernels.launch import KernelFunctions, bind
from blockscale.kernels.reference import check, reference
from blockscale.measure.functions import launch_functions
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, QuantFormat, QuantScheme, TileConfig


def functions_of(case: dict, quant_format: QuantFormat) -> KernelFunctions:
    """Those of the engine that a case names, in the folder of packages that it gives; else ours."""
    if "engine" not in case:
        return launch_functions(find_kernels(OWN), "sm_90")
    sys.path.insert(0, case["packages"])
    try:
        return launch_functions(
            find_kernels(KernelSource((kernels_of(engine(*case["engine"]), quant_format),))), "sm_90"
        )
    finally:
        sys.path.pop(0)


def run_case(case: dict) -> dict:
    """Worst error of a case, in units of what exact tile products allow, and the function that was launched."""
    kernel = Kernel(case["kernel"])
    quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8, *case["block"])
    problem = Problem(GemmShape(*case["shape"]), quant, OutDtype(case["out"]))
    m, n, k = case["shape"]
    inputs = make_inputs(problem, "float8_e4m3fn", seed=m * n + k)
    dtype = getattr(torch, problem.out_dtype)
    out = torch.full((m, n), float("nan"), dtype=dtype)
    functions = functions_of(case, quant.format)
    bind(problem, Candidate(kernel, TileConfig.from_entry(case["config"])), inputs, out, functions=functions)()
    expected = reference(inputs, problem)
    # The interpreter adds a tile's products almost exactly, but truncates to bfloat16 instead of rounding.
    allowed = expected.exact.abs() * torch.finfo(dtype).eps + expected.magnitude * 1e-5 + 2.0**-25
    error = (out.double() - expected.exact).abs()
    return {
        "worst": float((error / allowed).max()),
        "status": check(out, expected, problem).status,
        "function": functions.gemms[kernel].__name__,
    }


if __name__ == "__main__":
    for request in json.load(sys.stdin):
        print(json.dumps(run_case(request)), flush=True)
