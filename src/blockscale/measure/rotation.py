"""Inputs on the GPU: made once for the largest M of a weight, copied into the sets that timing rotates over.

All problems of a weight share its matrix, in as many copies as the one with most sets needs, and one reference. What
was made stays until its memory is needed, since requests for many problems arrive in any order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from blockscale.errors import InputError
from blockscale.kernels.inputs import GemmInputs, make_inputs
from blockscale.kernels.launch import refuse_wrong_tensors
from blockscale.kernels.reference import Bounds, Reference, Verdict, bounds, check, reference
from blockscale.measure.timing import set_count
from blockscale.problem import GemmShape, OutDtype, Problem, QuantScheme, TrialStatus, WeightShape, ceil_div

SCREEN_SEED = 1
FINAL_SEED = 2
# The bounds of a weight's outputs are kept for so many of them at most: two float32 each, 1 GiB.
_KEPT_RESULTS = 1 << 27
_KEPT_BYTES_PER_RESULT = 8
# What making a reference and a comparison that fails take beyond the bounds, in float32 a result.
_CHECK_BYTES_PER_RESULT = 16
_ALIGN_BYTES = 512

_Weight = tuple[WeightShape, QuantScheme]


@dataclass(frozen=True)
class InputOptions:
    """Where and in which format inputs are made; ``device`` as torch names it.

    ``budget_bytes`` is how much device memory inputs may keep for problems that are not being measured just now.
    """

    device: str
    fp8_format: str
    l2_bytes: int
    budget_bytes: int


def needed_bytes(problem: Problem, largest_m: int, l2_bytes: int) -> int:
    """Device memory that measuring ``problem`` alone takes, with base inputs for ``largest_m`` rows."""
    sets, most_m = set_count(problem, l2_bytes), max(largest_m, problem.shape.M)
    checked = min(most_m * problem.shape.N, _KEPT_RESULTS) * _CHECK_BYTES_PER_RESULT
    return _weight_bytes(problem, most_m, sets) + _rows_bytes(problem, sets) + checked


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


class Rotation:
    """Input sets of one problem, equal in value and apart in memory, each with its own output."""

    def __init__(self, problem: Problem, weight: _WeightInputs, sets: int) -> None:
        self.problem = problem
        self._base = weight.base.rows(problem.shape.M)
        self._bounds = weight.bounds_of(problem)
        a_copies = [self._base.a, *_copies(self._base.a, sets - 1)]
        scale_copies = [self._base.a_scale, *_copies(self._base.a_scale, sets - 1)]
        self.sets = [
            GemmInputs(a, b, a_scale, b_scale)
            for a, a_scale, (b, b_scale) in zip(a_copies, scale_copies, weight.copies[:sets], strict=True)
        ]
        m, n = problem.shape.M, problem.shape.N
        dtype = getattr(torch, problem.out_dtype)
        # Padded between sets, so that each output is aligned as a tensor of its own would be.
        stride = _aligned(m * n * problem.out_dtype.bytes) // problem.out_dtype.bytes
        self._buffer = torch.empty((sets, stride), dtype=dtype, device=self._base.a.device)
        self._results = self._buffer[:, : m * n]
        self.outputs = [result.view(m, n) for result in self._results]
        for inputs, out in zip(self.sets, self.outputs, strict=True):
            refuse_wrong_tensors(problem, inputs, out)  # once here, not for each candidate

    def fill_nan(self) -> None:
        """Make every output NaN, so that what a kernel does not write shows."""
        self._buffer.fill_(float("nan"))

    def check(self) -> Verdict:
        """Compare every set's output with the reference; the verdict is the first that is bad, else good.

        Kernels are deterministic, so the outputs of equal inputs are normally equal bits and one comparison with the
        reference is enough; where they are not, each output is compared. Right outputs are waited for once.
        """
        equal = (self._results[1:] == self._results[:1]).all()
        if self._bounds is None:
            suspects = self.outputs[:1] if bool(equal) else self.outputs
        elif bool(self._bounds.hold(self.outputs[0]).logical_and_(equal)):
            suspects = []
        else:
            suspects = [out for out in self.outputs if not bool(self._bounds.hold(out))]
        return next((v for v in map(self._check_one, suspects) if not v.ok), Verdict(True, TrialStatus.OK))

    def _check_one(self, out: torch.Tensor) -> Verdict:
        verdict = Verdict(True, TrialStatus.OK)
        for start, part, expected in self._references():
            rows = part.shape.M
            verdict = check(out[start : start + rows], expected, part)
            if not verdict.ok:
                where = "" if rows == self.problem.shape.M else f" (rows {start} to {start + rows - 1})"
                return replace(verdict, message=verdict.message + where)
        return verdict

    def _references(self) -> Iterator[tuple[int, Problem, Reference]]:
        """The reference in chunks of rows, computed as it is asked for."""
        m, n, k = self.problem.shape.M, self.problem.shape.N, self.problem.shape.K
        rows = max(1, min(m, _KEPT_RESULTS // n))
        for start in range(0, m, rows):
            count = min(rows, m - start)
            part = replace(self.problem, shape=GemmShape(count, n, k))
            a, scale = self._base.a[start : start + count], self._base.a_scale[start : start + count]
            yield start, part, reference(replace(self._base, a=a, a_scale=scale), part)


class _WeightInputs:
    """What the problems of one weight and seed share: inputs of the largest M, copies of B, bounds of outputs."""

    def __init__(self, base: GemmInputs, largest: Problem) -> None:
        self.base = base
        self.copies = [(base.b, base.b_scale)]
        self._largest = largest
        self._bounds: dict[OutDtype, Bounds] = {}

    def have(self, sets: int) -> None:
        """Copy B and its scales until there are ``sets`` of them."""
        while len(self.copies) < sets:
            self.copies.append((self.base.b.clone(), self.base.b_scale.clone()))

    def trim(self, sets: int) -> None:
        """Let go of what a problem with ``sets`` sets does without."""
        del self.copies[sets:]
        self._bounds.clear()

    def bounds_of(self, problem: Problem) -> Bounds | None:
        """Bounds of a problem's outputs, which are rows of one comparison for the whole weight; None: too large."""
        rows = _kept_rows(self._largest)
        if rows < problem.shape.M:
            return None
        if problem.out_dtype not in self._bounds:
            shape = replace(self._largest.shape, M=rows)
            kept = replace(self._largest, shape=shape, out_dtype=problem.out_dtype)
            self._bounds[problem.out_dtype] = bounds(reference(self.base.rows(rows), kept), kept)
        return self._bounds[problem.out_dtype].rows(problem.shape.M)

    @property
    def nbytes(self) -> int:
        """Bytes held, with the bounds that the next problem will ask for."""
        return _weight_bytes(self._largest, self._largest.shape.M, len(self.copies), max(1, len(self._bounds)))


class RotationPool:
    """Holds base inputs of weights and rotations of problems, as many as fit into its budget.

    For want of memory it drops the problems that have not been asked for longest, then such weights. What is asked for
    is made in any case: the budget is a share of memory, and what alone fits into all of it is measured.
    """

    def __init__(self, options: InputOptions) -> None:
        self._options = options
        self._largest_m: dict[_Weight, int] = {}
        # Both in order of use, the latest last.
        self._weights: dict[tuple[_Weight, int], _WeightInputs] = {}
        self._rotations: dict[tuple[Problem, int], Rotation] = {}

    @property
    def held_bytes(self) -> int:
        """Device memory of everything held now."""
        rotations = sum(_rows_bytes(r.problem, len(r.sets)) for r in self._rotations.values())
        return rotations + sum(weight.nbytes for weight in self._weights.values())

    def announce(self, problems: Sequence[Problem]) -> None:
        """Learn the largest M of each weight before its inputs are made; those of a smaller one are dropped."""
        for weight, m in _largest_m(problems).items():
            if m > self._largest_m.get(weight, 0):
                self._largest_m[weight] = m
                self._weights = {key: held for key, held in self._weights.items() if key[0] != weight}
                self._rotations = {key: held for key, held in self._rotations.items() if _weight(key[0]) != weight}

    def rotation(self, problem: Problem, seed: int) -> Rotation:
        """The rotated sets of a problem.

        Equal problems, seeds and largest announced M give inputs of equal values, whatever was made before.
        """
        self.announce([problem])
        key, weight_key = (problem, seed), (_weight(problem), seed)
        rotation = self._rotations.pop(key, None)
        if rotation is None:
            try:
                rotation = self._make(problem, seed)
            except torch.OutOfMemoryError:  # something else on this GPU has grown into our budget
                self.forget()
        if rotation is None:  # not before here: the exception holds what was made before it failed
            torch.cuda.empty_cache()
            rotation = self._make(problem, seed)
        self._rotations[key] = rotation
        self._weights[weight_key] = self._weights.pop(weight_key)
        return rotation

    def forget(self) -> None:
        """Drop everything that is in GPU memory; the next rotation is made afresh from its seed.

        Everything, since a kernel with a wrong address reaches whatever lies within 2³¹ elements of its operands, and
        that is no longer known to belong to one problem.
        """
        self._rotations.clear()
        self._weights.clear()

    def _make(self, problem: Problem, seed: int) -> Rotation:
        key = (_weight(problem), seed)
        sets, largest_m = set_count(problem, self._options.l2_bytes), self._largest_m[key[0]]
        held = self._weights.get(key)
        copies = max(sets, len(held.copies) if held else 0)
        growth = _weight_bytes(problem, largest_m, copies) - (held.nbytes if held else 0)
        self._make_room(growth + _rows_bytes(problem, sets), key, sets)
        if key not in self._weights:
            self._weights[key] = self._weight_inputs(problem, largest_m, seed)
        weight = self._weights[key]
        weight.have(sets)
        return Rotation(problem, weight, sets)

    def _make_room(self, needed: int, in_use: tuple[_Weight, int], sets: int) -> None:
        """Drop what has not been used longest until ``needed`` bytes more are within the budget."""
        excess = self.held_bytes + needed - self._options.budget_bytes
        if excess <= 0:
            return
        for oldest in list(self._rotations):
            if excess > 0:
                dropped = self._rotations.pop(oldest)
                excess -= _rows_bytes(dropped.problem, len(dropped.sets))
        for key in list(self._weights):
            if excess > 0 and key != in_use:
                excess -= self._weights.pop(key).nbytes
        if excess > 0 and in_use in self._weights:
            self._weights[in_use].trim(sets)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # blocks of other sizes than the next will have

    def _weight_inputs(self, problem: Problem, largest_m: int, seed: int) -> _WeightInputs:
        weight = problem.shape.weight
        seed_of_weight = zlib.crc32(f"{weight.N},{weight.K},{problem.quant},{seed}".encode())
        largest = replace(problem, shape=GemmShape(largest_m, weight.N, weight.K))
        made = make_inputs(largest, self._options.fp8_format, seed_of_weight, self._options.device)
        return _WeightInputs(made, largest)


def _weight(problem: Problem) -> _Weight:
    return problem.shape.weight, problem.quant


def _largest_m(problems: Sequence[Problem]) -> dict[_Weight, int]:
    largest: dict[_Weight, int] = {}
    for problem in problems:
        largest[_weight(problem)] = max(problem.shape.M, largest.get(_weight(problem), 0))
    return largest


def _kept_rows(largest: Problem) -> int:
    return min(largest.shape.M, _KEPT_RESULTS // largest.shape.N)


def _rows_of_a_bytes(problem: Problem, m: int) -> int:
    return m * (problem.shape.K + 4 * ceil_div(problem.shape.K, problem.quant.block_k))


def _weight_bytes(problem: Problem, largest_m: int, copies: int, out_dtypes: int = 1) -> int:
    """Bytes of a `_WeightInputs`: A for ``largest_m`` rows, ``copies`` of B, bounds for each output type asked for."""
    n, k, quant = problem.shape.N, problem.shape.K, problem.quant
    b = n * k + 4 * ceil_div(n, quant.block_n) * ceil_div(k, quant.block_k)
    kept = _kept_rows(replace(problem, shape=GemmShape(largest_m, n, k))) * n * _KEPT_BYTES_PER_RESULT
    return _rows_of_a_bytes(problem, largest_m) + copies * b + out_dtypes * kept


def _rows_bytes(problem: Problem, sets: int) -> int:
    """Bytes of a `Rotation` beyond its weight's: copies of A for all sets but the first, outputs for all."""
    m, n = problem.shape.M, problem.shape.N
    return (sets - 1) * _rows_of_a_bytes(problem, m) + sets * _aligned(m * n * problem.out_dtype.bytes)


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, _ALIGN_BYTES) * _ALIGN_BYTES


def _copies(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Equal copies of a contiguous matrix in one allocation, each aligned as a tensor of its own would be."""
    buffer = torch.empty((count, _aligned(tensor.nbytes)), dtype=torch.uint8, device=tensor.device)
    content = buffer[:, : tensor.nbytes]
    content.copy_(tensor.view(torch.uint8).view(1, -1))
    return [copy.view(tensor.dtype).view(tensor.shape) for copy in content]
