"""Quantised operands: real quantisation, and seeded random inputs in which a wrong scale group shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockscale.problem import Problem, QuantFormat, QuantScheme, ceil_div

# Scales of random inputs spread log-uniformly over 2^±SCALE_EXPONENT: two neighbouring groups differ by a factor of
# about 16 on average, so a sum that takes the wrong one is far off.
SCALE_EXPONENT = 6
# No output of random inputs can pass this: float16 ends at 65504.
LARGEST_OUTPUT = 2.0**15
_CHUNK_ELEMENTS = 1 << 25  # of random data at a time: 128 MiB as float32


@dataclass(frozen=True)
class GemmInputs:
    """Operands of one GEMM on one device, all contiguous.

    ``a`` [M, K] and ``b`` [N, K] in the element type; ``a_scale`` [M, ceil(K / block_k)] and ``b_scale``
    [ceil(N / block_n), ceil(K / block_k)] in float32.
    """

    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor
    b_scale: torch.Tensor

    def rows(self, m: int) -> GemmInputs:
        """The same GEMM with the first ``m`` rows of A; nothing is copied.

        Raises:
            ValueError: A has fewer rows.
        """
        if not 1 <= m <= self.a.shape[0]:
            raise ValueError(f"m = {m} rows asked of inputs that have {self.a.shape[0]}.")
        return GemmInputs(self.a[:m], self.b, self.a_scale[:m], self.b_scale)


def element_dtype(quant: QuantScheme, fp8_format: str) -> torch.dtype:
    """Torch type of both operands; ``fp8_format`` names the device's FP8 type and is ignored for INT8.

    Raises:
        ValueError: no 8-bit float type of that name.
    """
    if quant.format is QuantFormat.INT8:
        return torch.int8
    dtype = getattr(torch, fp8_format, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize != 1:
        raise ValueError(f"fp8_format = {fp8_format!r} names no 8-bit float type of torch, such as float8_e4m3fn.")
    return dtype


def largest_value(dtype: torch.dtype) -> float:
    """Largest finite value of an element type: 448 for e4m3fn, 240 for e4m3fnuz, 127 for int8."""
    return float(torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max)


def quantise_activations(x: torch.Tensor, quant: QuantScheme, fp8_format: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise ``x`` [M, K] with one scale per row and group of ``block_k`` columns.

    Returns the elements [M, K] and the scales [M, ceil(K / block_k)], float32: largest magnitude of the group over the
    largest value of the element type. A group of zeros gets scale 1.
    """
    return _quantise(x, 1, quant.block_k, element_dtype(quant, fp8_format))


def quantise_weight(w: torch.Tensor, quant: QuantScheme, fp8_format: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise ``w`` [N, K] with one scale per ``block_n × block_k`` block.

    Returns the elements [N, K] and the scales [ceil(N / block_n), ceil(K / block_k)], float32, as for activations.
    """
    return _quantise(w, quant.block_n, quant.block_k, element_dtype(quant, fp8_format))


def make_inputs(problem: Problem, fp8_format: str, seed: int, device: str = "cpu") -> GemmInputs:
    """Random operands made on ``device``; equal arguments give equal bits on one kind of device.

    Elements are what quantising normal data gives, so each block reaches the limits of its type. Scales are drawn apart
    from them, log-uniform over 2^±6, about a mean that depends on K such that no output passes ``LARGEST_OUTPUT``.
    """
    shape, quant = problem.shape, problem.quant
    dtype = element_dtype(quant, fp8_format)
    generator = torch.Generator(device=device).manual_seed(seed)
    # |C| ≤ K · (centre · 2^6 · limit)², with equality when all scales and elements are largest.
    centre = (LARGEST_OUTPUT / shape.K) ** 0.5 / 2.0**SCALE_EXPONENT / largest_value(dtype)
    k_groups = ceil_div(shape.K, quant.block_k)
    return GemmInputs(
        a=_random_elements(shape.M, shape.K, (1, quant.block_k), dtype, generator),
        b=_random_elements(shape.N, shape.K, (quant.block_n, quant.block_k), dtype, generator),
        a_scale=_random_scales(shape.M, k_groups, centre, generator),
        b_scale=_random_scales(ceil_div(shape.N, quant.block_n), k_groups, centre, generator),
    )


def _quantise(x: torch.Tensor, rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise in blocks of ``rows × columns``; the last ones may be cut off by the edge."""
    height, width = x.shape
    down, across = ceil_div(height, rows), ceil_div(width, columns)
    padded = torch.nn.functional.pad(x.float(), (0, across * columns - width, 0, down * rows - height))
    blocks = padded.view(down, rows, across, columns)
    limit = largest_value(dtype)
    scales = blocks.abs().amax(dim=(1, 3)) / limit
    scales.masked_fill_(scales == 0, 1.0)
    # Where the scale is subnormal its rounding can push a quotient past the limit, and e4m3 has no infinity.
    scaled = (blocks / scales[:, None, :, None]).clamp_(-limit, limit)
    if not dtype.is_floating_point:
        scaled.round_()
    return scaled.to(dtype).view(down * rows, across * columns)[:height, :width].contiguous(), scales


def _random_elements(
    height: int, width: int, block: tuple[int, int], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Quantised normal data, made some whole blocks of rows at a time so that float32 copies stay small."""
    elements = torch.empty((height, width), dtype=dtype, device=generator.device)
    step = max(1, _CHUNK_ELEMENTS // (block[0] * width)) * block[0]
    for start in range(0, height, step):
        rows = min(step, height - start)
        data = torch.randn((rows, width), generator=generator, device=generator.device)
        elements[start : start + rows] = _quantise(data, *block, dtype)[0]
    return elements


def _random_scales(height: int, width: int, centre: float, generator: torch.Generator) -> torch.Tensor:
    exponents = torch.rand((height, width), generator=generator, device=generator.device)
    return torch.exp2(exponents.mul_(2.0).sub_(1.0).mul_(float(SCALE_EXPONENT))).mul_(centre)
