"""Packages that look like installed engines: a loader at its known place, the config folder beside, and a version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

PLACES = {
    "vllm": ("model_executor/layers/quantization/utils/fp8_utils.py", "[{block_n},{block_k}]"),
    "sglang": ("kernels/ops/gemm/fp8_kernel.py", "[{block_n}, {block_k}]"),
}
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}

_LOADER = """
import functools, json, os

READ = []


@functools.lru_cache
def {function}(N, K, block_n, block_k):
    name = f"N={{N}},K={{K}},device_name=NVIDIA_H200,dtype={dtype}_w8a8,block_shape={block}.json"
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "configs", name)
    READ.append(path)
    if os.path.exists(path):
        with open(path) as file:
            return {{int(key): value for key, value in json.load(file).items()}}
    return None
"""


@dataclass(frozen=True)
class FakeEngine:
    name: str
    configs: Path

    @property
    def module(self) -> str:
        return f"{self.name}.{PLACES[self.name][0].removesuffix('.py').replace('/', '.')}"

    def file_name(self, n: int, k: int, device: str = "NVIDIA_H200") -> str:
        block = PLACES[self.name][1].format(block_n=128, block_k=128)
        return f"N={n},K={k},device_name={device},dtype=fp8_w8a8,block_shape={block}.json"


def make_engine(root: Path, name: str, loader: str | None = None, place: str | None = None) -> FakeEngine:
    """Write a package below ``root``; ``loader`` is the text of its module, ``place`` where that lies."""
    known, block = PLACES[name]
    path = root / name / (place or known)
    path.parent.mkdir(parents=True)
    for folder in [path.parent, *path.parent.parents]:
        if folder == root:
            break
        (folder / "__init__.py").touch()
    path.write_text(loader or _LOADER.format(function="get_w8a8_block_fp8_configs", dtype="fp8", block=block))
    if name == "sglang":
        text = _LOADER.format(function="get_w8a8_block_int8_configs", dtype="int8", block=block)
        path.with_name("int8_kernel.py").write_text(text)
    configs = path.parent / "configs"
    configs.mkdir()
    info = root / f"{name}-{VERSIONS[name]}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSIONS[name]}\n")
    return FakeEngine(name, configs)


def entry(**changed: int) -> dict[str, int]:
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    return tile | {"num_warps": 4, "num_stages": 3} | changed


def write_config(path: Path, *keys: int, **changed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({str(key): entry(**changed) for key in keys}, indent=4) + "\n")
    return path
