"""INT8 GEMM with block scales: products summed in int32 within a K tile, scaled and summed in float32 between tiles."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from blockscale.kernels.tiles import load_tile, operand_pointers, store_tile, tile_of_program


# fmt: off
@triton.jit
def int8_gemm(
    A, B, C, As, Bs, M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):
    """Same sum as the FP8 kernels; every K tile is masked and BLOCK_SIZE_K must divide ``group_k``."""
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
        acc += tl.dot(a, b).to(tl.float32) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk

    store_tile(C, acc, tile_row, tile_column, M, N, stride_cm, stride_cn, BLOCK_SIZE_M, BLOCK_SIZE_N)
