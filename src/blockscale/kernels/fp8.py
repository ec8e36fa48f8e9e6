"""Generic FP8 GEMM with block scales: one kernel that masks the K tail on demand, one that masks every K tile.

Both compute ``C[m, n] = Σ_g As[m, g] · Bs[n // group_n, g] · Σ_{k in g} A[m, k] · B[n, k]`` in float32, where g is
``k // group_k``. BLOCK_SIZE_K must divide ``group_k``, so that one K tile needs one scale a row and column.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from blockscale.kernels.tiles import load_tile, operand_pointers, store_tile, tile_of_program


# fmt: off
@triton.jit
def fp8_gemm(
    A, B, C, As, Bs, M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    needs_masking: tl.constexpr,
):
    """Mask the K tail only with ``needs_masking``, which the caller sets where BLOCK_SIZE_K does not divide K."""
    tile_row, tile_column = tile_of_program(tl.program_id(0), M, N, BLOCK_SIZE_M, BLOCK_SIZE_N, GROUP_SIZE_M)
    a_ptrs, b_ptrs, as_ptrs, bs_ptrs = operand_pointers(
        A, B, As, Bs, tile_row, tile_column, M, N, group_n,
        stride_am, stride_ak, stride_bk, stride_bn, stride_As_m, stride_Bs_n, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K,
    )
    # fmt: on
    depth = tl.arange(0, BLOCK_SIZE_K)
    tiles_per_group = group_k // BLOCK_SIZE_K

    acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        inside = depth < K - k * BLOCK_SIZE_K
        a = load_tile(a_ptrs, inside[None, :], needs_masking)
        b = load_tile(b_ptrs, inside[:, None], needs_masking)
        a_s = tl.load(as_ptrs)
        b_s = tl.load(bs_ptrs)
        group_ends = tl.where((k + 1) % tiles_per_group == 0, 1, 0)
        acc += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
        as_ptrs += group_ends * stride_As_k
        bs_ptrs += group_ends * stride_Bs_k

    store_tile(C, acc, tile_row, tile_column, M, N, stride_cm, stride_cn, BLOCK_SIZE_M, BLOCK_SIZE_N)


# fmt: off
@triton.jit
def fp8_gemm_masked(
    A, B, C, As, Bs, M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):
    """Mask every K tile and find each tile's scales by division, whatever K is: its cost is part of what is tuned."""
    tile_row, tile_column = tile_of_program(tl.program_id(0), M, N, BLOCK_SIZE_M, BLOCK_SIZE_N, GROUP_SIZE_M)
    a_ptrs, b_ptrs, as_ptrs, bs_ptrs = operand_pointers(
        A, B, As, Bs, tile_row, tile_column, M, N, group_n,
        stride_am, stride_ak, stride_bk, stride_bn, stride_As_m, stride_Bs_n, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K,
    )
    # fmt: on
    depth = tl.arange(0, BLOCK_SIZE_K)

    acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        inside = depth < K - k * BLOCK_SIZE_K
        a = load_tile(a_ptrs, inside[None, :], True)
        b = load_tile(b_ptrs, inside[:, None], True)
        group = k * BLOCK_SIZE_K // group_k
        a_s = tl.load(as_ptrs + group * stride_As_k)
        b_s = tl.load(bs_ptrs + group * stride_Bs_k)
        acc += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk

    store_tile(C, acc, tile_row, tile_column, M, N, stride_cm, stride_cn, BLOCK_SIZE_M, BLOCK_SIZE_N)
