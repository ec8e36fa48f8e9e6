"""Kernels on a real GPU, at the sizes models have: right, and the same bits twice."""

import pytest
import torch

from blockscale.kernels.inputs import make_inputs
from blockscale.kernels.launch import bind
from blockscale.kernels.reference import check, reference, tolerance
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, QuantFormat, QuantScheme, TileConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

WIDE = TileConfig(64, 64, 128, 8, 4, 3)
DECODE = TileConfig(16, 64, 128, 1, 4, 4, True, 8)
LAUNCHES = [
    (Kernel.FP8, (4096, 2112, 7168), WIDE),
    (Kernel.FP8, (33, 576, 200), WIDE),
    (Kernel.FP8_MASKED, (1024, 4608, 7168), WIDE),
    (Kernel.FP8_HOPPER, (16, 2112, 7168), DECODE),
    (Kernel.FP8_HOPPER, (1, 24576, 1536), DECODE.with_(split_k=2)),
    (Kernel.FP8_HOPPER, (64, 2112, 7168), DECODE.with_(block_m=64, swap_ab=False)),
    (Kernel.INT8, (256, 2112, 7168), WIDE),
]


@pytest.mark.parametrize("out_dtype", list(OutDtype))
@pytest.mark.parametrize(("kernel", "sizes", "config"), LAUNCHES)
def test_kernel_is_right_on_the_gpu(kernel, sizes, config, out_dtype):
    if kernel is Kernel.FP8_HOPPER and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("this kernel is for SM90")
    quant = QuantScheme(QuantFormat.INT8 if kernel is Kernel.INT8 else QuantFormat.FP8)
    problem = Problem(GemmShape(*sizes), quant, out_dtype)
    inputs = make_inputs(problem, "float8_e4m3fn", seed=1, device="cuda")
    outs = [torch.full(sizes[:2], float("nan"), dtype=getattr(torch, out_dtype), device="cuda") for _ in range(2)]
    for out in outs:
        bind(problem, Candidate(kernel, config), inputs, out)()
    expected = reference(inputs, problem)
    verdict = check(outs[0], expected, problem)
    assert verdict.ok, verdict.message
    assert torch.equal(*outs)
    worst = ((outs[0] - expected.exact).abs() / tolerance(expected, problem)).max().item()
    print(f"{kernel} {problem} {out_dtype}: worst error {worst:.2f} of its tolerance")
