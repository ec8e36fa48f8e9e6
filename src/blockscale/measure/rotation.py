"""Inputs on the GPU: made once for the largest M of a weight, copied into the sets that timing rotates over."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from blockscale.errors import InputError
from blockscale.kernels.inputs import GemmInputs, make_inputs
from blockscale.kernels.reference import Reference, Verdict, check, reference
from blockscale.measure.timing import set_count, touched_bytes
from blockscale.problem import GemmShape, Problem, QuantScheme, TrialStatus, WeightShape, ceil_div

SCREEN_SEED = 1
FINAL_SEED = 2
# Kept references take two float32 a result: 1 GiB at this many.
_KEPT_RESULTS = 1 << 27
_ALIGN_BYTES = 512
# The reference of a chunk, its bound and the comparison's intermediates, in float32 a result.
_CHECK_BYTES_PER_RESULT = 24


@dataclass(frozen=True)
class InputOptions:
    """Where and in which format inputs are made; ``device`` as torch names it."""

    device: str
    fp8_format: str
    l2_bytes: int


def needed_bytes(problem: Problem, largest_m: int, l2_bytes: int) -> int:
    """Device memory that measuring ``problem`` takes, with base inputs for ``largest_m`` rows."""
    shape = problem.shape
    base = shape.N * shape.K + largest_m * shape.K
    checked = min(shape.M * shape.N, _KEPT_RESULTS) * _CHECK_BYTES_PER_RESULT
    return base + set_count(problem, l2_bytes) * touched_bytes(problem) + checked


def refuse_too_large(problems: Sequence[Problem], l2_bytes: int, free_bytes: int) -> None:
    """Check that each problem fits into the GPU's free memory.

    Raises:
        InputError: one does not; the message has the bytes needed, those free, and the way out.
    """
    largest_m = _largest_m(problems)
    for problem in problems:
        needed = needed_bytes(problem, largest_m[_weight(problem)], l2_bytes)
        if needed > free_bytes:
            raise InputError(
                f"{problem} needs {needed / 2**30:.1f} GiB of GPU memory and {free_bytes / 2**30:.1f} GiB are free: "
                "tune smaller batch sizes, or stop what else uses this GPU."
            )


_Weight = tuple[WeightShape, QuantScheme]


def _weight(problem: Problem) -> _Weight:
    return problem.shape.weight, problem.quant


def _largest_m(problems: Sequence[Problem]) -> dict[_Weight, int]:
    largest: dict[_Weight, int] = {}
    for problem in problems:
        largest[_weight(problem)] = max(problem.shape.M, largest.get(_weight(problem), 0))
    return largest


class Rotation:
    """Input sets of one problem, equal in value and apart in memory, each with its own output."""

    def __init__(self, problem: Problem, base: GemmInputs, sets: int) -> None:
        self.problem = problem
        self._base = base
        self.sets = [base, *(_copy(base) for _ in range(sets - 1))]
        m, n = problem.shape.M, problem.shape.N
        dtype = getattr(torch, problem.out_dtype)
        # Padded between sets, so that each output is aligned as a tensor of its own would be.
        stride = ceil_div(m * n * problem.out_dtype.bytes, _ALIGN_BYTES) * _ALIGN_BYTES // problem.out_dtype.bytes
        self._buffer = torch.empty((sets, stride), dtype=dtype, device=base.a.device)
        self._results = self._buffer[:, : m * n]
        self.outputs = [result.view(m, n) for result in self._results]
        self._kept: list[Reference] = []

    def fill_nan(self) -> None:
        """Make every output NaN, so that what a kernel does not write shows."""
        self._buffer.fill_(float("nan"))

    def check(self) -> Verdict:
        """Compare every set's output with the reference; the verdict is the first that is bad, else good.

        Kernels are deterministic, so the outputs of equal inputs are normally equal bits and one comparison with the
        reference is enough; where they are not, each output is compared.
        """
        verdict = self._check_one(self.outputs[0])
        if not verdict.ok or bool((self._results[1:] == self._results[:1]).all()):
            return verdict
        return next((v for v in map(self._check_one, self.outputs[1:]) if not v.ok), verdict)

    def _check_one(self, out: torch.Tensor) -> Verdict:
        verdict = Verdict(True, TrialStatus.OK, "")
        for start, part, expected in self._references():
            rows = part.shape.M
            verdict = check(out[start : start + rows], expected, part)
            if not verdict.ok:
                where = "" if rows == self.problem.shape.M else f" (rows {start} to {start + rows - 1})"
                return replace(verdict, message=verdict.message + where)
        return verdict

    def _references(self) -> Iterator[tuple[int, Problem, Reference]]:
        """The reference in chunks of rows: kept when one chunk holds it, else computed again for each check."""
        m, n, k = self.problem.shape.M, self.problem.shape.N, self.problem.shape.K
        rows = max(1, min(m, _KEPT_RESULTS // n))
        for start in range(0, m, rows):
            count = min(rows, m - start)
            part = replace(self.problem, shape=GemmShape(count, n, k))
            if self._kept:
                yield start, part, self._kept[0]
                continue
            a, scale = self._base.a[start : start + count], self._base.a_scale[start : start + count]
            expected = reference(replace(self._base, a=a, a_scale=scale), part)
            if count == m:
                self._kept.append(expected)
            yield start, part, expected


def _copy(inputs: GemmInputs) -> GemmInputs:
    return GemmInputs(inputs.a.clone(), inputs.b.clone(), inputs.a_scale.clone(), inputs.b_scale.clone())


class RotationPool:
    """Holds the base inputs of one weight and the rotation of one problem; the latest asked for stay."""

    def __init__(self, options: InputOptions) -> None:
        self._options = options
        self._largest_m: dict[_Weight, int] = {}
        self._base_key: tuple[_Weight, int] | None = None
        self._base: GemmInputs | None = None
        self._rotation_key: tuple[Problem, int] | None = None
        self._rotation: Rotation | None = None

    def announce(self, problems: Sequence[Problem]) -> None:
        """Learn the largest M of each weight before its inputs are made."""
        for weight, m in _largest_m(problems).items():
            self._largest_m[weight] = max(m, self._largest_m.get(weight, 0))

    def rotation(self, problem: Problem, seed: int) -> Rotation:
        """The rotated sets of a problem; equal arguments give inputs of equal values in every run."""
        if self._rotation is None or self._rotation_key != (problem, seed):
            self._rotation = None  # freed before the next is made
            base = self._base_inputs(problem, seed).rows(problem.shape.M)
            self._rotation = Rotation(problem, base, set_count(problem, self._options.l2_bytes))
            self._rotation_key = (problem, seed)
        return self._rotation

    def forget(self) -> None:
        """Drop everything that is in GPU memory; the next rotation is made afresh from its seed."""
        self._rotation = self._base = None

    def _base_inputs(self, problem: Problem, seed: int) -> GemmInputs:
        self.announce([problem])
        key = (_weight(problem), seed)
        if self._base is None or self._base_key != key or self._base.a.shape[0] < problem.shape.M:
            self._base = None
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # blocks of the last weight's sizes would not be used again
            weight = problem.shape.weight
            shape = GemmShape(self._largest_m[key[0]], weight.N, weight.K)
            seed_of_weight = zlib.crc32(f"{weight.N},{weight.K},{problem.quant},{seed}".encode())
            options = self._options
            largest = replace(problem, shape=shape)
            self._base = make_inputs(largest, options.fp8_format, seed_of_weight, options.device)
            self._base_key = key
        return self._base
