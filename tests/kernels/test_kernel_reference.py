"""The verdict on an output: right ones pass, and what a broken kernel would leave behind does not."""

from dataclasses import replace

import pytest
import torch

from blockscale.kernels.inputs import make_inputs
from blockscale.kernels.reference import Reference, bounds, check, reference, tolerance
from blockscale.problem import GemmShape, OutDtype, Problem, QuantFormat, QuantScheme, TrialStatus

PROBLEMS = [
    Problem(GemmShape(m, n, k), QuantScheme(quant_format, *block), out)
    for (m, n, k), block, quant_format, out in [
        ((1, 576, 7168), (128, 128), QuantFormat.FP8, OutDtype.BFLOAT16),
        ((33, 300, 18432), (128, 128), QuantFormat.FP8, OutDtype.BFLOAT16),
        ((33, 200, 300), (64, 128), QuantFormat.FP8, OutDtype.FLOAT16),
        ((16, 256, 1536), (128, 64), QuantFormat.FP8, OutDtype.FLOAT32),
        ((17, 130, 2048), (128, 128), QuantFormat.INT8, OutDtype.BFLOAT16),
    ]
]


@pytest.fixture(params=PROBLEMS, ids=str, scope="module")
def computed(request):
    """Problem, inputs and reference."""
    problem = request.param
    inputs = make_inputs(problem, "float8_e4m3fn", seed=11)
    return problem, inputs, reference(inputs, problem)


@pytest.fixture
def setting(computed):
    """Problem, inputs, reference, and the output of a right kernel."""
    problem, _, expected = computed
    return *computed, expected.exact.to(getattr(torch, problem.out_dtype))


def test_reference_is_the_product_of_the_dequantised_operands(setting):
    problem, inputs, expected, _ = setting
    n, k = problem.shape.N, problem.shape.K
    a = inputs.a.double() * inputs.a_scale.double().repeat_interleave(problem.quant.block_k, 1)[:, :k]
    spread = inputs.b_scale.double().repeat_interleave(problem.quant.block_n, 0)[:n]
    b = inputs.b.double() * spread.repeat_interleave(problem.quant.block_k, 1)[:, :k]
    torch.testing.assert_close(expected.exact, a @ b.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(expected.magnitude, a.abs() @ b.abs().T, rtol=1e-12, atol=1e-12)


def test_right_output_passes(setting):
    problem, _, expected, out = setting
    assert check(out, expected, problem).ok


def test_errors_of_an_fp8_matrix_unit_pass(setting):
    """Hopper's drops what lies 14 bits below the largest product: about 2⁻¹⁴ of the magnitude."""
    problem, _, expected, _ = setting
    if problem.quant.format is QuantFormat.INT8:
        pytest.skip("integer products are exact")
    noise = torch.randn(expected.exact.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = expected.exact + noise * 2.0**-14 * expected.magnitude
    assert check(out.to(getattr(torch, problem.out_dtype)), expected, problem).ok


@pytest.mark.parametrize("which", ["a_scale", "b_scale"])
def test_one_wrong_scale_group_is_caught(setting, which):
    """Even where 1 of 144 groups takes another's scales: as far off as two random scales are on average, 16 times."""
    problem, inputs, expected, _ = setting
    last = inputs.a_scale.shape[1] - 1
    for group in {0, last // 2, last}:
        scales = getattr(inputs, which).clone()
        scales[:, group] *= 16.0
        wrong = reference(replace(inputs, **{which: scales}), problem)
        verdict = check(wrong.exact.to(getattr(torch, problem.out_dtype)), expected, problem)
        assert verdict.status is TrialStatus.WRONG_RESULT


def test_scales_that_never_step_are_caught(setting):
    problem, inputs, expected, _ = setting
    stuck = replace(inputs, a_scale=inputs.a_scale[:, :1].expand_as(inputs.a_scale))
    out = reference(stuck, problem).exact.to(getattr(torch, problem.out_dtype))
    assert check(out, expected, problem).status is TrialStatus.WRONG_RESULT


def test_one_wrong_element_is_found(setting):
    problem, _, expected, out = setting
    place = (out.shape[0] - 1, 70)
    out[place] += max(float(expected.magnitude[place]) / 50, float(expected.exact[place].abs()) / 20)
    verdict = check(out, expected, problem)
    assert verdict.status is TrialStatus.WRONG_RESULT
    assert verdict.message.startswith(f"1 of {out.numel()} elements")
    assert f"at {place}" in verdict.message


def test_nan_is_counted_and_placed(setting):
    problem, _, expected, out = setting
    out[-1, 3] = out[-1, 9] = float("nan")
    verdict = check(out, expected, problem)
    assert (verdict.ok, verdict.status) == (False, TrialStatus.NAN_RESULT)
    assert verdict.message == f"2 of {out.numel()} elements are NaN, the first at ({out.shape[0] - 1}, 3)."


def test_unwritten_tail_shows_as_nan(setting):
    problem, _, expected, out = setting
    out[:, 128:] = float("nan")
    assert check(out, expected, problem).status is TrialStatus.NAN_RESULT


@pytest.mark.parametrize("share", [0.0, 0.9, 1.1, -0.9, -1.1, float("inf"), float("nan")])
def test_kept_bounds_hold_what_a_check_passes(setting, share):
    """An output in float64, off in one element by so much of what is allowed."""
    problem, _, expected, _ = setting
    out = expected.exact.clone()
    place = (out.shape[0] - 1, 70)
    out[place] += share * tolerance(expected, problem)[place]
    kept = bounds(expected, problem)
    assert bool(kept.hold(out)) is check(out, expected, problem).ok is (abs(share) < 1)
    assert bool(kept.rows(1).hold(out[:1])) is (abs(share) < 1 or out.shape[0] > 1)


@pytest.mark.parametrize("value", [0.0, float("inf")])
def test_zeros_and_infinities_are_wrong(setting, value):
    problem, _, expected, out = setting
    assert check(torch.full_like(out, value), expected, problem).status is TrialStatus.WRONG_RESULT


def test_reference_of_many_rows_serves_fewer(setting):
    problem, inputs, expected, out = setting
    m = (problem.shape.M + 1) // 2
    fewer = replace(problem, shape=GemmShape(m, problem.shape.N, problem.shape.K))
    torch.testing.assert_close(reference(inputs.rows(m), fewer).exact, expected.rows(m).exact, rtol=1e-12, atol=1e-12)
    assert check(out[:m], expected.rows(m), fewer).ok


def test_large_outputs_are_compared_in_chunks(setting, monkeypatch):
    problem, _, expected, out = setting
    monkeypatch.setattr("blockscale.kernels.reference._CHUNK_ELEMENTS", 2 * out.shape[1])
    assert check(out, expected, problem).ok
    out[-1, 5] = -50 * out.abs().max()
    assert f"at ({out.shape[0] - 1}, 5)" in check(out, expected, problem).message


def test_float16_may_lose_what_lies_below_its_smallest_number():
    problem = Problem(GemmShape(16, 128, 128), QuantScheme(), OutDtype.FLOAT16)
    expected = reference(make_inputs(problem, "float8_e4m3fn", seed=1), problem)
    tiny = type(expected)(expected.exact * 1e-9, expected.magnitude * 1e-9)
    assert check(tiny.exact.to(torch.float16), tiny, problem).ok
    assert tolerance(tiny, problem).min() >= 2.0**-25


def test_an_output_of_another_shape_is_a_programming_error(setting):
    problem, _, expected, out = setting
    with pytest.raises(ValueError, match="shape"):
        check(out[:, :-1], expected, problem)


@pytest.mark.parametrize("out_dtype", list(OutDtype))
def test_a_check_leaves_the_output_as_it_was(out_dtype):
    problem = Problem(GemmShape(8, 64, 256), out_dtype=out_dtype)
    exact = reference(make_inputs(problem, "float8_e4m3fn", seed=1), problem)
    single = Reference(exact.exact.float(), exact.magnitude.float())  # as a GPU computes it
    out = single.exact.to(getattr(torch, out_dtype))
    before = out.clone()
    assert check(out, single, problem).ok
    assert torch.equal(out, before)
