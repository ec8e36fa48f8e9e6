"""FP8 GEMM that takes four K tiles a loop step: on AMD it hides latency where the grid leaves compute units idle."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from blockscale.kernels.tiles import load_tile, operand_pointers, store_tile, tile_of_program


# fmt: off
@triton.jit
def fp8_gemm_unrolled_x4(
    A, B, C, As, Bs, M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    needs_masking: tl.constexpr,
):
    """Same sum as ``fp8_gemm``. Up to three K tiles that are left after the unrolled steps are taken one by one, so
    nothing is read past a row's end and every tile gets the scales of its own group.
    """
    tile_row, tile_column = tile_of_program(tl.program_id(0), M, N, BLOCK_SIZE_M, BLOCK_SIZE_N, GROUP_SIZE_M)
    a_ptrs, b_ptrs, as_ptrs, bs_ptrs = operand_pointers(
        A, B, As, Bs, tile_row, tile_column, M, N, group_n,
        stride_am, stride_ak, stride_bk, stride_bn, stride_As_m, stride_Bs_n, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K,
    )
    # fmt: on
    depth = tl.arange(0, BLOCK_SIZE_K)
    tiles = tl.cdiv(K, BLOCK_SIZE_K)
    unrolled_tiles = tiles // 4 * 4

    acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for first in range(0, unrolled_tiles, 4):
        for u in tl.static_range(4):
            k_start = (first + u) * BLOCK_SIZE_K
            inside = depth < K - k_start
            a = load_tile(a_ptrs, inside[None, :], needs_masking)
            b = load_tile(b_ptrs, inside[:, None], needs_masking)
            a_s = tl.load(as_ptrs + k_start // group_k * stride_As_k)
            b_s = tl.load(bs_ptrs + k_start // group_k * stride_Bs_k)
            acc += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
            a_ptrs += BLOCK_SIZE_K * stride_ak
            b_ptrs += BLOCK_SIZE_K * stride_bk
    for k in range(unrolled_tiles, tiles):
        k_start = k * BLOCK_SIZE_K
        inside = depth < K - k_start
        a = load_tile(a_ptrs, inside[None, :], needs_masking)
        b = load_tile(b_ptrs, inside[:, None], needs_masking)
        a_s = tl.load(as_ptrs + k_start // group_k * stride_As_k)
        b_s = tl.load(bs_ptrs + k_start // group_k * stride_Bs_k)
        acc += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk

    store_tile(C, acc, tile_row, tile_column, M, N, stride_cm, stride_cn, BLOCK_SIZE_M, BLOCK_SIZE_N)
