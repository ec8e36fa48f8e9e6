"""What all GEMM kernels share: which tile a program computes, where its operands lie, how it is stored."""
# Triton's language is no Python that mypy could check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of_program(
    pid, M, N, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, GROUP_SIZE_M: tl.constexpr
):  # fmt: skip
    """Row and column of the tile that a program computes.

    Programs walk down ``GROUP_SIZE_M`` rows of tiles before they step to the next column, so that those running
    together share tiles of A and B in the L2 cache.
    """
    tile_rows = tl.cdiv(M, BLOCK_SIZE_M)
    tile_columns = tl.cdiv(N, BLOCK_SIZE_N)
    tiles_per_group = GROUP_SIZE_M * tile_columns
    first_row = (pid // tiles_per_group) * GROUP_SIZE_M
    height = min(tile_rows - first_row, GROUP_SIZE_M)
    within = pid % tiles_per_group
    return first_row + within % height, within // height


@triton.jit
def wrapped(start, length, BLOCK: tl.constexpr):
    """``BLOCK`` row numbers from ``start``, those past ``length`` wrapped to valid rows; int64.

    A row number times its stride passes 2³¹ where M·K does. Widening the row, outside the loop over K, is all it takes.
    """
    return ((start + tl.arange(0, BLOCK)) % length).to(tl.int64)


@triton.jit
def load_tile(pointers, inside, MASKED: tl.constexpr):
    """Load a tile; with ``MASKED`` elements that are not ``inside`` are 0 and never touched."""
    return tl.load(pointers, mask=inside, other=0.0) if MASKED else tl.load(pointers)


@triton.jit
def store_tile(
    C, tile, row, column, M, N, stride_cm, stride_cn, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr
):  # fmt: skip
    """Store a tile whose first element is C[row, column], in C's element type, leaving out what lies beyond M or N."""
    rows = row + tl.arange(0, BLOCK_SIZE_M)
    columns = column + tl.arange(0, BLOCK_SIZE_N)
    pointers = C + rows.to(tl.int64)[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(pointers, tile.to(C.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))
