"""Loads an engine's own block-FP8 kernels out of its published package, at run time, without importing the engine.

Only the named functions are taken, by the module's syntax tree; nothing of the package is kept.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton

SOURCES = {
    "sglang": (
        "sglang/kernels/ops/gemm/fp8_kernel.py",
        ("_w8a8_block_fp8_matmul", "_w8a8_block_fp8_matmul_hopper", "_reduce_block_fp8_split_k"),
    ),
    "sglang_int8": ("sglang/kernels/ops/gemm/int8_kernel.py", ("_w8a8_block_int8_matmul",)),
    "vllm": ("vllm/model_executor/layers/quantization/utils/fp8_utils.py", ("_w8a8_triton_block_scaled_mm",)),
}
_DEFAULT = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4}
DEFAULTS = {"sglang": _DEFAULT | {"num_stages": 3}, "vllm": _DEFAULT | {"num_stages": 2}}


def load(engine: str, source: Path) -> ModuleType:
    """The engine's kernel functions as a module; ``source`` is the package's wheel or the one module's file."""
    inner, names = SOURCES[engine]
    text = zipfile.ZipFile(source).read(inner).decode() if source.suffix == ".whl" else source.read_text()
    wanted = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name in names]
    missing = set(names) - {n.name for n in wanted}
    if missing:
        raise SystemExit(f"{source} does not hold {', '.join(sorted(missing))}: another release of {engine}?")
    body = "\n\n\n".join(
        "@triton.jit\n" + (ast.get_source_segment(text, n) or "") for n in sorted(wanted, key=lambda n: n.lineno)
    )
    code = f"import triton\nimport triton.language as tl\n\n\n{body}\n"
    # One path for one text: Triton's cache goes by the file, and several processes may load it.
    name = f"blockscale-{engine}-{hashlib.sha256(code.encode()).hexdigest()[:12]}"
    path = Path(tempfile.gettempdir()) / name / f"{engine}_kernels.py"
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(code)
        partial.replace(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launcher(
    engine: str, module: ModuleType, config: dict[str, Any], tensors: tuple[torch.Tensor, ...], block: tuple[int, int]
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
