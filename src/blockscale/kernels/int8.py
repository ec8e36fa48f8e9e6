"""INT8 GEMM with block scales: products summed in int32 within a K tile, scaled and summed in float32 between tiles."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from blockscale.kernels.tiles import load_tile, store_tile, tile_of_program, wrapped


# fmt: off
@triton.jit
def int8_gemm(
    A, B, C, As, Bs, M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):
    # fmt: on
    """Same sum as the FP8 kernels; every K tile is masked and BLOCK_SIZE_K must divide ``group_k``."""
    pid_m, pid_n = tile_of_program(tl.program_id(0), M, N, BLOCK_SIZE_M, BLOCK_SIZE_N, GROUP_SIZE_M)
    rows = wrapped(pid_m * BLOCK_SIZE_M, M, BLOCK_SIZE_M)
    columns = wrapped(pid_n * BLOCK_SIZE_N, N, BLOCK_SIZE_N)
    depth = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = A + rows[:, None] * stride_am + depth[None, :] * stride_ak
    b_ptrs = B + depth[:, None] * stride_bk + columns[None, :] * stride_bn
    as_ptrs = As + rows * stride_As_m
    bs_ptrs = Bs + (columns // group_n) * stride_Bs_n

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

    store_tile(C, acc, pid_m * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, M, N, stride_cm, stride_cn,
               BLOCK_SIZE_M, BLOCK_SIZE_N)  # fmt: skip
