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

from blockscale.kernels.tiles import load_tile, store_tile, tile_of_program, wrapped


# fmt: off
@triton.jit
def fp8_gemm_hopper(
    A, B, C, As, Bs, M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n, stride_split,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    needs_masking: tl.constexpr, SWAP_AB: tl.constexpr, SPLIT_K: tl.constexpr,
):
    # fmt: on
    """Program (tile, split) sums a contiguous run of K tiles; with SPLIT_K > 1 C is the float32 workspace.

    ``stride_split`` is the distance in elements between the partial sums of two splits. A split without K tiles stores
    zeros.
    """
    pid_m, pid_n = tile_of_program(tl.program_id(0), M, N, BLOCK_SIZE_M, BLOCK_SIZE_N, GROUP_SIZE_M)
    tiles = tl.cdiv(K, BLOCK_SIZE_K)
    if SPLIT_K > 1:
        split = tl.program_id(1)
        tiles_per_split = tl.cdiv(tiles, SPLIT_K)
        first = split * tiles_per_split
        end = min(first + tiles_per_split, tiles)
        C += split.to(tl.int64) * stride_split
    else:
        first = 0
        end = tiles
    tiles_per_group = group_k // BLOCK_SIZE_K
    group = first // tiles_per_group
    left_in_group = (group + 1) * tiles_per_group - first

    rows = wrapped(pid_m * BLOCK_SIZE_M, M, BLOCK_SIZE_M)
    columns = wrapped(pid_n * BLOCK_SIZE_N, N, BLOCK_SIZE_N)
    depth = tl.arange(0, BLOCK_SIZE_K)
    k_offsets = first * BLOCK_SIZE_K + depth
    as_ptrs = As + rows * stride_As_m + group * stride_As_k
    bs_ptrs = Bs + (columns // group_n) * stride_Bs_n + group * stride_Bs_k
    if SWAP_AB:
        # The weight tile is the left operand, [BLOCK_SIZE_N, BLOCK_SIZE_K]; both stay contiguous along K as the FP8
        # matrix instruction wants them.
        left_ptrs = B + columns[:, None] * stride_bn + k_offsets[None, :] * stride_bk
        right_ptrs = A + rows[None, :] * stride_am + k_offsets[:, None] * stride_ak
        left_step, right_step = stride_bk * BLOCK_SIZE_K, stride_ak * BLOCK_SIZE_K
        acc = tl.zeros((BLOCK_SIZE_N, BLOCK_SIZE_M), dtype=tl.float32)
    else:
        left_ptrs = A + rows[:, None] * stride_am + k_offsets[None, :] * stride_ak
        right_ptrs = B + columns[None, :] * stride_bn + k_offsets[:, None] * stride_bk
        left_step, right_step = stride_ak * BLOCK_SIZE_K, stride_bk * BLOCK_SIZE_K
        acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)

    for k in range(first, end):
        inside = depth < K - k * BLOCK_SIZE_K
        left = load_tile(left_ptrs, inside[None, :], needs_masking)
        right = load_tile(right_ptrs, inside[:, None], needs_masking)
        a_s = tl.load(as_ptrs)
        b_s = tl.load(bs_ptrs)
        if SWAP_AB:
            acc += tl.dot(left, right) * b_s[:, None] * a_s[None, :]
        else:
            acc += tl.dot(left, right) * a_s[:, None] * b_s[None, :]
        left_ptrs += left_step
        right_ptrs += right_step
        left_in_group -= 1
        group_ends = (left_in_group == 0).to(tl.int32)
        left_in_group += group_ends * tiles_per_group
        as_ptrs += group_ends * stride_As_k
        bs_ptrs += group_ends * stride_Bs_k

    if SWAP_AB:
        acc = tl.trans(acc)
    store_tile(C, acc, pid_m * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, M, N, stride_cm, stride_cn,
               BLOCK_SIZE_M, BLOCK_SIZE_N)  # fmt: skip


@triton.jit
def sum_splits(partials, C, elements, stride_split, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr):
    """Add the SPLIT_K partial sums of ``BLOCK`` elements of C, which is contiguous.

    The workspace is padded to whole blocks, so its loads need no mask and stay 16 bytes wide.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in tl.static_range(SPLIT_K):
        total += tl.load(partials + at)
        partials += stride_split
    tl.store(C + at, total.to(C.dtype.element_ty), mask=at < elements)
