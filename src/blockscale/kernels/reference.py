"""What a kernel's output is held to: the exact product, a bound for each element, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from blockscale.kernels.inputs import GemmInputs
from blockscale.problem import OutDtype, Problem, QuantFormat, TrialStatus, ceil_div

FLOAT32_ROUNDOFF = 2.0**-24
# FP8 tensor cores of Hopper add the products of one instruction aligned to the largest of them and keep about 14 bits
# (DeepSeek-V3 report, section 3.3.2: "around 14 bits"). Simulated so on quantised normal data, K = 128, the worst of
# 10⁷ outputs is off by 2⁻¹¹·⁵ of the sum of magnitudes, the usual one by 2⁻¹⁶; 2⁻¹⁰ leaves room for 10⁹ outputs.
FP8_ACCUMULATION = 2.0**-10
_CHUNK_ELEMENTS = 1 << 26  # elements of C at a time: 256 MiB for a float32 temporary


@dataclass(frozen=True)
class Reference:
    """``exact`` [M, N], the product; ``magnitude`` [M, N], the sum of the magnitudes of its terms, Σ|a·b|."""

    exact: torch.Tensor
    magnitude: torch.Tensor

    def rows(self, m: int) -> Reference:
        """Reference of ``GemmInputs.rows(m)``; nothing is copied."""
        return Reference(self.exact[:m], self.magnitude[:m])


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest value [M, N] that each element of a right output may have."""

    lowest: torch.Tensor
    highest: torch.Tensor

    def rows(self, m: int) -> Bounds:
        """Bounds of ``GemmInputs.rows(m)``; nothing is copied."""
        return Bounds(self.lowest[:m], self.highest[:m])

    def hold(self, out: torch.Tensor) -> torch.Tensor:
        """Whether every element of an output [M, N] lies within, as one boolean where ``out`` lies; NaN never does.

        Nothing waits for the result, so that a caller may ask for several and wait once.
        """
        return (out >= self.lowest).logical_and_(out <= self.highest).all()


@dataclass(frozen=True)
class Verdict:
    """Whether an output may pass; if not, the trial status it means and what is wrong."""

    ok: bool
    status: TrialStatus
    message: str = ""


def reference(inputs: GemmInputs, problem: Problem) -> Reference:
    """Exact product and magnitudes of ``inputs``, computed where they lie.

    On a CPU in float64. On a GPU in float32 without TF32, group by group of ``block_k``: the error, at most
    (block_k + K/block_k)·2⁻²⁴ of the magnitude, is far below any kernel's, and GPUs with next to no float64 (H20, L40)
    stay fast. Only one group of B is held dequantised at a time.
    """
    dtype = torch.float64 if inputs.a.device.type == "cpu" else torch.float32
    m, n = inputs.a.shape[0], inputs.b.shape[0]
    exact = torch.zeros((m, n), dtype=dtype, device=inputs.a.device)
    magnitude = torch.zeros_like(exact)
    block_n, block_k = problem.quant.block_n, problem.quant.block_k
    with _full_float32():
        for group in range(inputs.a_scale.shape[1]):
            columns = slice(group * block_k, (group + 1) * block_k)
            b_scale = inputs.b_scale[:, group].repeat_interleave(block_n)[:n, None].to(dtype)
            b = (inputs.b[:, columns].to(dtype) * b_scale).T
            a = inputs.a[:, columns].to(dtype) * inputs.a_scale[:, group, None].to(dtype)
            exact.addmm_(a, b)
            magnitude.addmm_(a.abs_(), b.abs_())
    return Reference(exact, magnitude)


def tolerance(reference: Reference, problem: Problem) -> torch.Tensor:
    """Largest error [M, N] that a right kernel can have: its output's rounding, and its float32 sums.

    Rounding: unit roundoff of the output type times |exact|, in float16 at least half the smallest subnormal number.
    Sums: (block_k + 2·K/block_k + 8)·2⁻²⁴·magnitude for products, scaling and both levels of sums, kernel and reference
    taken together, and for FP8 ``FP8_ACCUMULATION``·magnitude for the matrix unit.
    """
    info = torch.finfo(getattr(torch, problem.out_dtype))
    quant = problem.quant
    sums = (quant.block_k + 2 * ceil_div(problem.shape.K, quant.block_k) + 8) * FLOAT32_ROUNDOFF
    if quant.format is QuantFormat.FP8:
        sums += FP8_ACCUMULATION
    bound = reference.exact.abs().mul_(info.eps / 2)
    if problem.out_dtype is OutDtype.FLOAT16:
        bound.clamp_(min=info.smallest_normal * info.eps / 2)
    return bound.add_(reference.magnitude, alpha=sums)


def bounds(reference: Reference, problem: Problem) -> Bounds:
    """What `tolerance` allows around the exact product, kept where many outputs are compared with one reference."""
    allowed = tolerance(reference, problem)
    return Bounds(reference.exact - allowed, allowed.add_(reference.exact))


def check(out: torch.Tensor, reference: Reference, problem: Problem) -> Verdict:
    """Compare an output [M, N] with the reference, element by element.

    NaN anywhere is NAN_RESULT, also where the output was never written and still holds the NaN it was filled with; an
    element outside its tolerance, or an infinity, is WRONG_RESULT. A right output costs a few passes over the GPU's
    memory and one synchronisation.

    Raises:
        ValueError: the output has another shape than the reference.
    """
    if out.shape != reference.exact.shape:
        raise ValueError(f"output of shape {tuple(out.shape)} against a reference of {tuple(reference.exact.shape)}.")
    worst = torch.stack([_excess(*chunk, problem).max() for chunk in _chunks(out, reference)]).max()
    # Tensor.max lets NaN through, and NaN is not ≤ 0.
    if worst.item() <= 0.0:
        return Verdict(True, TrialStatus.OK)
    return _nan_verdict(out) or _wrong_verdict(out, reference, problem)


def _excess(out: torch.Tensor, reference: Reference, problem: Problem) -> torch.Tensor:
    """By how much each element's error passes its tolerance."""
    # Not in place from the start: a float32 output is its own float32 copy.
    return (out - reference.exact).abs_().sub_(tolerance(reference, problem))


def _nan_verdict(out: torch.Tensor) -> Verdict | None:
    nan = out.isnan()
    count = int(nan.sum())
    if not count:
        return None
    first = divmod(int(nan.flatten().to(torch.uint8).argmax()), out.shape[1])
    return Verdict(False, TrialStatus.NAN_RESULT, f"{count} of {out.numel()} elements are NaN, the first at {first}.")


def _wrong_verdict(out: torch.Tensor, reference: Reference, problem: Problem) -> Verdict:
    wrong, worst_ratio, worst_at, row = 0, -1.0, 0, 0
    for rows, part in _chunks(out, reference):
        error = (rows.to(part.exact.dtype) - part.exact).abs_()
        ratio = error.div_(tolerance(part, problem).clamp_(min=torch.finfo(error.dtype).tiny)).flatten()
        wrong += int((ratio > 1.0).sum())
        at = int(ratio.argmax())
        if ratio[at].item() > worst_ratio:
            worst_ratio, worst_at = ratio[at].item(), row * out.shape[1] + at
        row += rows.shape[0]
    place = divmod(worst_at, out.shape[1])
    return Verdict(
        False,
        TrialStatus.WRONG_RESULT,
        f"{wrong} of {out.numel()} elements ({wrong / out.numel():.2%}) are outside their tolerance, the worst "
        f"{worst_ratio:.3g} times, at {place}: {out[place].item():.6g}, not {reference.exact[place].item():.6g}.",
    )


def _chunks(out: torch.Tensor, reference: Reference) -> Iterator[tuple[torch.Tensor, Reference]]:
    """Matching rows of output and reference, few enough that float32 temporaries stay small."""
    step = max(1, _CHUNK_ELEMENTS // out.shape[1])
    for start in range(0, out.shape[0], step):
        rows = slice(start, start + step)
        yield out[rows], Reference(reference.exact[rows], reference.magnitude[rows])


@contextmanager
def _full_float32() -> Iterator[None]:
    """Matrix products in full float32: TF32 keeps 10 bits, whatever the process has set for its own work."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
