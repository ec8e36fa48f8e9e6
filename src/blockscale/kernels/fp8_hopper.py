"""FP8 GEMM for few rows on SM90: operands swapped (SWAP_AB), K split over programs (SPLIT_K), a reduction after it.

A decode step has a few rows and thousands of weight columns. The matrix unit's M is 64, so with the usual order most of
it multiplies wrapped rows: SWAP_AB computes ``Cᵀ = B · Aᵀ`` and lays the weight's columns along it. SPLIT_K makes
enough programs to keep every SM loading weights; float32 partial sums go to a workspace and a second kernel adds them
in a fixed order, so results are reproducible bit for bit.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from blockscale.kernels.tiles import load_tile, operand_pointers, store_tile, tile_of_program


# fmt: off
@triton.jit
def fp8_gemm_hopper(
    A, B, C, As, Bs, M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    needs_masking: tl.constexpr, SWAP_AB: tl.constexpr, SPLIT_K: tl.constexpr,
):
    """Program (tile, split) sums a contiguous run of K tiles.

    With SPLIT_K > 1 C is the float32 workspace [SPLIT_K, M, N]; a split without K tiles stores zeros.
    """
    pid = tl.program_id(0)
    split = tl.program_id(1)
    tiles_per_split = tl.cdiv(tl.cdiv(K, BLOCK_SIZE_K), SPLIT_K)
    first = split * tiles_per_split
    C += split * M * N
    tile_row, tile_column = tile_of_program(pid, M, N, BLOCK_SIZE_M, BLOCK_SIZE_N, GROUP_SIZE_M)
    a_ptrs, b_ptrs, as_ptrs, bs_ptrs = operand_pointers(
        A, B, As, Bs, tile_row, tile_column, M, N, group_n,
        stride_am, stride_ak, stride_bk, stride_bn, stride_As_m, stride_Bs_n, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K,
    )
    # fmt: on
    depth = tl.arange(0, BLOCK_SIZE_K)
    tiles_per_group = group_k // BLOCK_SIZE_K
    a_ptrs += first * BLOCK_SIZE_K * stride_ak
    b_ptrs += first * BLOCK_SIZE_K * stride_bk
    as_ptrs += (first // tiles_per_group) * stride_As_k
    bs_ptrs += (first // tiles_per_group) * stride_Bs_k

    if SWAP_AB:
        acc = tl.zeros((BLOCK_SIZE_N, BLOCK_SIZE_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(first, min(first + tiles_per_split, tl.cdiv(K, BLOCK_SIZE_K))):
        inside = depth < K - k * BLOCK_SIZE_K
        a = load_tile(a_ptrs, inside[None, :], needs_masking)
        b = load_tile(b_ptrs, inside[:, None], needs_masking)
        a_s = tl.load(as_ptrs)
        b_s = tl.load(bs_ptrs)
        group_ends = tl.where((k + 1) % tiles_per_group == 0, 1, 0)
        if SWAP_AB:
            acc += tl.dot(tl.trans(b), tl.trans(a)) * b_s[:, None] * a_s[None, :]
        else:
            acc += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
        as_ptrs += group_ends * stride_As_k
        bs_ptrs += group_ends * stride_Bs_k

    if SWAP_AB:
        acc = tl.trans(acc)
    store_tile(C, acc, tile_row, tile_column, M, N, stride_cm, stride_cn, BLOCK_SIZE_M, BLOCK_SIZE_N)


@triton.jit
def sum_splits(partials, C, elements, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr):
    """Add the SPLIT_K partial sums of ``BLOCK`` of the ``elements`` of C, which is contiguous."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    splits = tl.arange(0, SPLIT_K)
    parts = tl.load(partials + splits[:, None] * elements + at[None, :], mask=at[None, :] < elements, other=0.0)
    tl.store(C + at, tl.sum(parts, axis=0), mask=at < elements)
