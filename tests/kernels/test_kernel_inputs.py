"""Quantised inputs: what a scale covers, which values appear, what stays equal between calls."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.kernels.inputs import LARGEST_OUTPUT, make_inputs, quantise_activations, quantise_weight
from blockscale.kernels.reference import reference
from blockscale.problem import GemmShape, OutDtype, Problem, QuantFormat, QuantScheme

FORMATS = ["float8_e4m3fn", "float8_e4m3fnuz"]


def dequantise(elements, scales, block):
    rows, columns = block
    spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return elements.float() * spread[: elements.shape[0], : elements.shape[1]]


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 200)),
    block=st.sampled_from([(128, 128), (64, 128), (128, 64), (32, 32)]),
    fp8_format=st.sampled_from([*FORMATS, "int8"]),
    seed=st.integers(0, 1000),
)
def test_quantising_stays_within_half_a_step_of_each_groups_largest_value(size, block, fp8_format, seed):
    quant = QuantScheme(QuantFormat.INT8 if fp8_format == "int8" else QuantFormat.FP8, *block)
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 7 - 3)
    for quantise, rows in ((quantise_activations, 1), (quantise_weight, block[0])):
        elements, scales = quantise(x, quant, fp8_format)
        assert elements.shape == x.shape
        assert scales.shape == (-(-size[0] // rows), -(-size[1] // block[1]))
        error = (dequantise(elements, scales, (rows, block[1])) - x).abs()
        largest = dequantise(torch.full_like(x, 127.0 if fp8_format == "int8" else 1.0), scales, (rows, block[1]))
        # INT8: half a step of 1; e4m3: three mantissa bits, so 1/16 of the value, and small ones next to nothing.
        allowed = largest / 254 if fp8_format == "int8" else x.abs() / 16 + largest * 2.0**-10
        assert (error <= allowed * 1.001).all()


@pytest.mark.parametrize(("fp8_format", "limit"), [("float8_e4m3fn", 448.0), ("float8_e4m3fnuz", 240.0)])
def test_largest_element_of_each_block_is_the_formats_own_limit(fp8_format, limit):
    inputs = make_inputs(Problem(GemmShape(5, 256, 384)), fp8_format, seed=1)
    assert inputs.a.float().view(5, 3, 128).abs().amax(-1).unique().tolist() == [limit]
    assert inputs.b.float().view(2, 128, 3, 128).abs().amax((1, 3)).unique().tolist() == [limit]


def test_zeros_quantise_to_zeros_with_a_usable_scale():
    elements, scales = quantise_weight(torch.zeros(130, 200), QuantScheme(), "float8_e4m3fn")
    assert elements.float().abs().max() == 0
    assert (scales == 1).all()


def test_inputs_depend_on_the_seed_alone():
    problem = Problem(GemmShape(33, 130, 300), QuantScheme(QuantFormat.FP8, 64, 128))
    first, again, other = (make_inputs(problem, "float8_e4m3fn", seed) for seed in (7, 7, 8))
    for name in ("a", "b", "a_scale", "b_scale"):
        assert torch.equal(getattr(first, name).view(torch.uint8), getattr(again, name).view(torch.uint8))
        assert not torch.equal(getattr(first, name).view(torch.uint8), getattr(other, name).view(torch.uint8))
    assert first.a_scale.shape == (33, 3)
    assert first.b_scale.shape == (3, 3)


def test_scales_spread_over_two_to_the_six_either_way():
    scales = make_inputs(Problem(GemmShape(500, 128, 4096)), "float8_e4m3fn", seed=3).a_scale
    exponents = (scales / scales.log2().mean().exp2()).log2()
    assert 5.5 < exponents.max() < 6.5
    assert -6.5 < exponents.min() < -5.5
    assert 3.2 < exponents.std() < 3.7  # uniform over 12 octaves: 12 / √12


@pytest.mark.parametrize("k", [128, 18432])
@pytest.mark.parametrize("quant", [QuantScheme(), QuantScheme(QuantFormat.INT8)], ids=["fp8", "int8"])
def test_no_output_can_overflow_float16(k, quant):
    problem = Problem(GemmShape(16, 256, k), quant, OutDtype.FLOAT16)
    expected = reference(make_inputs(problem, "float8_e4m3fn", seed=2), problem)
    assert expected.magnitude.max() < LARGEST_OUTPUT
    assert expected.exact.abs().median() > 2.0**-14  # nor sink below float16's normal range


def test_first_rows_are_a_view():
    inputs = make_inputs(Problem(GemmShape(33, 64, 128)), "float8_e4m3fn", seed=1)
    part = inputs.rows(17)
    assert part.a.shape == (17, 128)
    assert part.a_scale.shape == (17, 1)
    assert part.a.data_ptr() == inputs.a.data_ptr()
    assert part.b is inputs.b
    with pytest.raises(ValueError, match="34 rows"):
        inputs.rows(34)


def test_a_format_that_torch_lacks_is_refused():
    with pytest.raises(ValueError, match="float8_e9m9"):
        make_inputs(Problem(GemmShape(1, 64, 64)), "float8_e9m9", seed=0)
