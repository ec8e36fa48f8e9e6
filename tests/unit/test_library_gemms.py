"""GEMMs of libraries beside candidates: what they are called with, and what is said where they cannot be called."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from blockscale.executor import synthetic
from blockscale.executor.base import Comparison
from blockscale.executor.local import LocalDevice, LocalSettings
from blockscale.hardware import H200
from blockscale.kernels.inputs import GemmInputs, make_inputs
from blockscale.kernels.reference import check, reference
from blockscale.measure.classify import classify
from blockscale.measure.compile_pool import CompileOptions, CompileRequest, PoolSettings
from blockscale.measure.libraries import Library, library_gemm, refusal
from blockscale.measure.library_launch import UnavailableError, WithLibraries, column_major
from blockscale.measure.library_worker import open_compiler
from blockscale.problem import (
    Candidate,
    GemmShape,
    Kernel,
    OutDtype,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    TrialStatus,
)

PROBLEM = Problem(GemmShape(8, 130, 384))  # three groups along K, two along N
PLAIN = Candidate(Kernel.FP8, TileConfig(64, 128, 128))


class OtherKernels:
    def launches(self, problem, candidate, sets, outputs):
        return [lambda out=out: out.fill_(1.0) for out in outputs]


def product(a, a_scale, b, b_scale):
    """What a library computes from operands and scales [M, groups] and [N groups, groups]."""
    k, n = a.shape[1], b.shape[0]
    wide_a = a.float() * a_scale.repeat_interleave(128, 1)[:, :k]
    wide_b = b.float() * b_scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return wide_a @ wide_b.T


def run(library: Library, problem: Problem = PROBLEM) -> tuple[GemmInputs, torch.Tensor]:
    inputs = make_inputs(problem, "float8_e4m3fn", seed=3)
    out = torch.full((problem.shape.M, problem.shape.N), float("nan"), dtype=torch.bfloat16)
    (launch,) = WithLibraries(OtherKernels()).launches(problem, library_gemm(library), [inputs], [out])
    launch()
    return inputs, out


def test_candidates_go_to_the_other_kernels():
    out = torch.zeros(1)
    (launch,) = WithLibraries(OtherKernels()).launches(PROBLEM, PLAIN, [None], [out])
    launch()
    assert out.item() == 1.0


@pytest.mark.parametrize("m", [1, 6, 8])
def test_deepgemm_gets_scales_by_columns_of_a_multiple_of_four(monkeypatch, m):
    def fp8_gemm_nt(a, b, out):
        assert a[1].stride() == (1, 4 * ((m + 3) // 4))
        assert b[1].is_contiguous()
        out.copy_(product(*a, *b))

    monkeypatch.setitem(sys.modules, "deep_gemm", SimpleNamespace(fp8_gemm_nt=fp8_gemm_nt))
    problem = replace(PROBLEM, shape=GemmShape(m, 130, 384))
    inputs, out = run(Library.DEEPGEMM, problem)
    assert check(out, reference(inputs, problem), problem).ok


def test_cublas_gets_the_layouts_that_its_recipes_name(monkeypatch):
    types = torch.nn.functional.ScalingType

    def out_variant(a, b, a_scales, recipe_a, swizzle_a, b_scales, recipe_b, swizzle_b, bias, out_dtype, *, out):
        assert (recipe_a, recipe_b) == ([types.BlockWise1x128.value], [types.BlockWise128x128.value])
        assert b.stride() == (1, a.shape[1])
        (a_scale,), (b_scale,) = a_scales, b_scales
        assert (a_scale.shape, a_scale.stride()) == ((8, 3), (1, 8))
        assert (b_scale.shape, b_scale.stride()) == ((4, 2), (1, 4))
        assert out_dtype is out.dtype is torch.bfloat16
        out.copy_(product(a, a_scale, b.t(), b_scale.t()[:, :3]))

    monkeypatch.setattr(torch.ops.aten, "_scaled_mm_v2", SimpleNamespace(out=out_variant), raising=False)
    inputs, out = run(Library.CUBLAS)
    assert check(out, reference(inputs, PROBLEM), PROBLEM).ok


def test_a_copy_by_columns_is_equal_in_value():
    matrix = torch.arange(15.0).view(5, 3)
    copy = column_major(matrix, column_multiple=4)
    assert torch.equal(copy, matrix)
    assert copy.stride() == (1, 8)


@pytest.mark.parametrize(
    ("module", "says"), [(None, "cannot be imported"), (SimpleNamespace(), "install DeepGEMM 2 or newer")]
)
def test_a_library_that_is_not_here_fails_as_a_candidate_and_says_why(monkeypatch, module, says):
    monkeypatch.setitem(sys.modules, "deep_gemm", module)
    with pytest.raises(UnavailableError, match=says) as raised:
        run(Library.DEEPGEMM)
    failure = classify(raised.value, TrialStatus.LAUNCH_ERROR)
    assert (failure.status, failure.poisoned) == (TrialStatus.LAUNCH_ERROR, False)
    assert says in failure.message


def test_a_torch_without_the_operator_says_so(monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_scaled_mm_v2", None, raising=False)
    with pytest.raises(UnavailableError, match=r"torch 2\.10 or newer"):
        run(Library.CUBLAS)


REFUSED = [
    (Library.CUBLAS, GemmShape(17, 512, 7168), QuantScheme(), OutDtype.BFLOAT16, H200, "multiples of 4"),
    (Library.DEEPGEMM, GemmShape(17, 512, 7168), QuantScheme(), OutDtype.BFLOAT16, H200, None),
    (Library.CUBLAS, GemmShape(16, 512, 7168), QuantScheme(), OutDtype.BFLOAT16, H200, None),
    (Library.CUBLAS, GemmShape(16, 512, 7168), QuantScheme(), OutDtype.FLOAT16, H200, "float16"),
    (Library.CUBLAS, GemmShape(16, 512, 7168), QuantScheme(block_n=32), OutDtype.BFLOAT16, H200, "128×128"),
    (Library.DEEPGEMM, GemmShape(16, 512, 7168), QuantScheme(QuantFormat.INT8), OutDtype.BFLOAT16, H200, "FP8"),
    (
        Library.DEEPGEMM,
        GemmShape(16, 512, 7168),
        QuantScheme(),
        OutDtype.BFLOAT16,
        replace(H200, arch="sm_100"),
        "sm_100",
    ),
]


@pytest.mark.parametrize(("library", "shape", "quant", "out_dtype", "spec", "reason"), REFUSED)
def test_what_a_library_has_no_gemm_for_is_not_asked_of_it(library, shape, quant, out_dtype, spec, reason):
    said = refusal(library, Problem(shape, quant, out_dtype), spec)
    assert said is None if reason is None else reason in said


def test_libraries_go_through_a_gpus_processes_beside_candidates(tmp_path):
    pool = PoolSettings(workers=1, function=synthetic.COMPILER)
    device = LocalDevice(LocalSettings(cache_dir=tmp_path, pool=pool, worker=synthetic.WORKER))
    try:
        candidates = (PLAIN, *map(library_gemm, Library))
        device.start(Comparison(PROBLEM, candidates), 0)
        trials = device.next_done().trials
    finally:
        device.close()
    assert tuple(trial.candidate for trial in trials) == candidates
    assert all(trial.status is TrialStatus.OK for trial in trials)


def test_nothing_is_compiled_for_a_library(tmp_path):
    request = CompileRequest(H200, PROBLEM, library_gemm(Library.CUBLAS))
    outcome = open_compiler(CompileOptions(tmp_path))(request)
    assert (outcome.status, outcome.code) == (TrialStatus.OK, "")
