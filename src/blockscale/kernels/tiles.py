"""What all GEMM kernels share: which tile a program computes, where its operands lie, how it is stored.

A tuned time is worth something only if the engine's kernel takes it too, so the arithmetic here is what the engines'
kernels do, down to 32-bit offsets and the order of sums: for equal configs the compiler emits equal instructions. The
price is that a matrix of 2³¹ elements or more must be refused before a launch.
"""
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
    return first_row + pid % height, (pid % tiles_per_group) // height


# fmt: off
@triton.jit
def operand_pointers(
    A, B, As, Bs, tile_row, tile_column, M, N, group_n,
    stride_am, stride_ak, stride_bk, stride_bn, stride_As_m, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
):
    # fmt: on
    """Pointers to a tile's first K tile of A [M, K] and Bᵀ [K, N], and to its first scales of both.

    Rows and columns past M and N wrap to valid ones, so that loads need no mask for them.
    """
    rows = (tile_row * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    columns = (tile_column * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    depth = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = A + (rows[:, None] * stride_am + depth[None, :] * stride_ak)
    b_ptrs = B + (depth[:, None] * stride_bk + columns[None, :] * stride_bn)
    return a_ptrs, b_ptrs, As + rows * stride_As_m, Bs + (columns // group_n) * stride_Bs_n


@triton.jit
def load_tile(pointers, inside, MASKED: tl.constexpr):
    """Load a tile; with ``MASKED`` elements that are not ``inside`` are 0 and never touched."""
    return tl.load(pointers, mask=inside, other=0.0) if MASKED else tl.load(pointers)


# fmt: off
@triton.jit
def store_tile(
    C, tile, tile_row, tile_column, M, N, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
):
    # fmt: on
    """Store a tile of C in C's element type, leaving out what lies beyond M or N."""
    converted = tile.to(C.dtype.element_ty)
    rows = tile_row * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    columns = tile_column * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    pointers = C + stride_cm * rows[:, None] + stride_cn * columns[None, :]
    tl.store(pointers, converted, mask=(rows[:, None] < M) & (columns[None, :] < N))
