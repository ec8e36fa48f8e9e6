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


def run_far_rows() -> dict:
    """Rows so far apart that a 32-bit offset would wrap: the buffers are virtual, only four rows are touched."""
    from blockscale.kernels.fp8 import fp8_gemm

    m, n, k, stride = 4, 32, 128, 1 << 30
    problem = Problem(GemmShape(m, n, k))
    inputs = make_inputs(problem, "float8_e4m3fn", seed=5)
    far_a = torch.empty(3 * stride + k, dtype=torch.uint8).view(torch.float8_e4m3fn).as_strided((m, k), (stride, 1))
    far_a.view(torch.uint8).copy_(inputs.a.view(torch.uint8))
    far_c = torch.empty(3 * stride + n, dtype=torch.float16).as_strided((m, n), (stride, 1))
    strides = (stride, 1, 1, k, stride, 1, 1, 1, 1, 1)
    fp8_gemm[(1,)](
        far_a, inputs.b, far_c, inputs.a_scale, inputs.b_scale, m, n, k, 128, 128, *strides,
        BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=128, GROUP_SIZE_M=1, needs_masking=False,
    )  # fmt: skip
    expected = reference(inputs, problem).exact
    return {"worst": float((far_c.double() - expected).abs().max() / expected.abs().max())}


if __name__ == "__main__":
    for request in json.load(sys.stdin):
        print(json.dumps(run_far_rows() if request == "far_rows" else run_case(request)), flush=True)
