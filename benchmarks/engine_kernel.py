"""Loads an engine's own block-FP8 kernels out of its published package, at run time, without importing the engine."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import torch
import triton

from blockscale.kernels.extract import ExtractionError, extract
from blockscale.kernels.foreign import load_function

SOURCES = {
    "sglang": (
        "sglang/kernels/ops/gemm/fp8_kernel.py",
        ("_w8a8_block_fp8_matmul", "_w8a8_block_fp8_matmul_hopper", "_reduce_block_fp8_split_k"),
    ),
    "vllm": ("vllm/model_executor/layers/quantization/utils/fp8_utils.py", ("_w8a8_triton_block_scaled_mm",)),
}
_DEFAULT = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4}
DEFAULTS = {"sglang": _DEFAULT | {"num_stages": 3}, "vllm": _DEFAULT | {"num_stages": 2}}


def load(engine: str, source: Path) -> SimpleNamespace:
    """The engine's kernel functions by name; ``source`` is the package's wheel or the one module's file."""
    inner, names = SOURCES[engine]
    path = _unpacked(zipfile.ZipFile(source).read(inner)) if source.suffix == ".whl" else source
    try:
        module = ".".join(PurePosixPath(inner).with_suffix("").parts)
        functions = {name: load_function(extract(path, name), module, path) for name in names}
    except ExtractionError as error:
        raise SystemExit(f"{source} has not the kernels of the release that is known: {error}") from error
    return SimpleNamespace(**functions)


def _unpacked(module: bytes) -> Path:
    """A file with the module: one path for one text, since several processes load it."""
    path = Path(tempfile.gettempdir()) / f"blockscale-engine-{hashlib.sha256(module).hexdigest()[:12]}.py"
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(module)
        partial.replace(path)
    return path


def launcher(
    engine: str,
    module: SimpleNamespace,
    config: dict[str, Any],
    tensors: tuple[torch.Tensor, ...],
    block: tuple[int, int],
) -> Callable[[], None]:
    """One GEMM as the engine launches it, on A[M,K], B[N,K], C[M,N], As, Bs with blocks (block_n, block_k)."""
    a, b, c, a_scale, b_scale = tensors
    m, k = a.shape
    n = b.shape[0]
    tiles = triton.cdiv(m, config["BLOCK_SIZE_M"]) * triton.cdiv(n, config["BLOCK_SIZE_N"])
    strides = (
        a.stride(0), a.stride(1), b.stride(1), b.stride(0), c.stride(0), c.stride(1),
        a_scale.stride(0), a_scale.stride(1), b_scale.stride(1), b_scale.stride(0),
    )  # fmt: skip
    if engine == "vllm":
        kernel = module._w8a8_triton_block_scaled_mm
        return lambda: kernel[(tiles,)](a, b, c, a_scale, b_scale, m, n, k, *block, *strides, **config)
    masking = {"needs_masking": k % config["BLOCK_SIZE_K"] != 0}
    split = config.get("SPLIT_K", 1)
    if not (config.get("SWAP_AB") or split > 1):
        plain = module._w8a8_block_fp8_matmul
        return lambda: plain[(tiles,)](a, b, c, a_scale, b_scale, m, n, k, *block, *strides, **config, **masking)
    hopper = module._w8a8_block_fp8_matmul_hopper
    parts = torch.empty((split, m, n), device=a.device, dtype=torch.float32) if split > 1 else c

    def run() -> None:
        hopper[(tiles, split)](a, b, parts, a_scale, b_scale, m, n, k, *block, *strides, **config, **masking)
        if split > 1:
            module._reduce_block_fp8_split_k[(triton.cdiv(m * n, 256),)](parts, c, m * n, split, 256)

    return run
