"""Runs GEMMs under Triton's interpreter: cases as JSON on stdin, one result a case on stdout.

A program of its own, since ``TRITON_INTERPRET`` must be set before Triton is imported.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from blockscale.kernels.inputs import make_inputs
from blockscale.kernels.launch import bind
from blockscale.kernels.reference import check, reference
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, QuantFormat, QuantScheme, TileConfig


def run_case(case: dict) -> dict:
    """Worst error of a case, in units of what exact tile products allow."""
    kernel = Kernel(case["kernel"])
    quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8, *case["block"])
    problem = Problem(GemmShape(*case["shape"]), quant, OutDtype(case["out"]))
    m, n, k = case["shape"]
    inputs = make_inputs(problem, "float8_e4m3fn", seed=m * n + k)
    dtype = getattr(torch, problem.out_dtype)
    out = torch.full((m, n), float("nan"), dtype=dtype)
    bind(problem, Candidate(kernel, TileConfig.from_entry(case["config"])), inputs, out)()
    expected = reference(inputs, problem)
    # The interpreter adds a tile's products almost exactly, but truncates to bfloat16 instead of rounding.
    allowed = expected.exact.abs() * torch.finfo(dtype).eps + expected.magnitude * 1e-5 + 2.0**-25
    error = (out.double() - expected.exact).abs()
    return {"worst": float((error / allowed).max()), "status": check(out, expected, problem).status}


if __name__ == "__main__":
    for request in json.load(sys.stdin):
        print(json.dumps(run_case(request)), flush=True)
