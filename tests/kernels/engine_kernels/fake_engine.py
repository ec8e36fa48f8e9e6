"""Packages that look like an installed engine: a module with the engine's kernels by name and signature, written here.

The kernels are right but simple: every K tile is masked, and no tile walks in groups.
"""

from collections.abc import Sequence
from pathlib import Path

OPERANDS = (
    "A, B, C, As, Bs, M, N, K, group_n, group_k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, "
    "stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n"
)
TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
MASKING = (*TILE, "needs_masking")
HOPPER = (*MASKING, "SWAP_AB", "SPLIT_K")

IMPORTS = "import triton\nimport triton.language as tl\n"
# As vLLM has it; the package is not there, so importing the module would fail.
INDIRECT_IMPORTS = "import no_such_dependency\nfrom no_such_dependency.triton_utils import tl, triton\n"

HELPERS = """
NOTHING = tl.constexpr(0.0)


@triton.jit
def _scaled(product, row_scale, column_scale):
    return product.to(tl.float32) * row_scale[:, None] * column_scale[None, :]
"""

REDUCTION = """
@triton.jit
def _reduce_block_fp8_split_k(Parts, Out, ELEMENTS: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in range(SPLITS):
        total += tl.load(Parts + split * ELEMENTS + at, mask=at < ELEMENTS, other=NOTHING)
    tl.store(Out + at, total, mask=at < ELEMENTS)
"""


def gemm(name: str, constants: Sequence[str], operands: str = OPERANDS) -> str:
    """Source of a GEMM with these compile-time constants after its operands."""
    split = "SPLIT_K" if "SPLIT_K" in constants else "1"
    return f"""
@triton.jit
def {name}(
    {operands},
    {", ".join(f"{constant}: tl.constexpr" for constant in constants)},
):
    tile, split = tl.program_id(0), tl.program_id(1)
    columns = tl.cdiv(N, BLOCK_SIZE_N)
    row = tile // columns * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    column = tile % columns * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    tiles = tl.cdiv(tl.cdiv(K, BLOCK_SIZE_K), {split})
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(split * tiles, (split + 1) * tiles):
        depth = k * BLOCK_SIZE_K + tl.arange(0, BLOCK_SIZE_K)
        a_inside = (row[:, None] < M) & (depth[None, :] < K)
        b_inside = (depth[:, None] < K) & (column[None, :] < N)
        a = tl.load(A + row[:, None] * stride_am + depth[None, :] * stride_ak, mask=a_inside, other=0.0)
        b = tl.load(B + depth[:, None] * stride_bk + column[None, :] * stride_bn, mask=b_inside, other=0.0)
        group = tl.minimum(k * BLOCK_SIZE_K, K - 1) // group_k
        row_scale = tl.load(As + row * stride_As_m + group * stride_As_k, mask=row < M, other=NOTHING)
        column_scale = tl.load(
            Bs + column // group_n * stride_Bs_n + group * stride_Bs_k, mask=column < N, other=NOTHING
        )
        total += _scaled(tl.dot(a, b), row_scale, column_scale)
    places = C + split * M * N + row[:, None] * stride_cm + column[None, :] * stride_cn
    tl.store(places, total.to(C.dtype.element_ty), mask=(row[:, None] < M) & (column[None, :] < N))
"""


def write_package(folder: Path, engine: str, version: str, modules: dict[str, str]) -> Path:
    """Install a package into ``folder``: its metadata, and modules by their path in it; returns the folder."""
    metadata = folder / f"{engine}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}\n")
    for inner, text in modules.items():
        path = folder / engine / inner
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


SGLANG_MODULE = "kernels/ops/gemm/fp8_kernel.py"


def sglang_module(imports: str = IMPORTS) -> str:
    """The FP8 kernels of SGLang 0.5.23 by name and signature."""
    plain = [gemm("_w8a8_block_fp8_matmul" + suffix, MASKING) for suffix in ("", "_gfx1250")]
    return "\n".join([imports, HELPERS, *plain, gemm("_w8a8_block_fp8_matmul_hopper", HOPPER), REDUCTION])
