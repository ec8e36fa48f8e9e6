"""Every kernel compiles for the GPUs it is meant for, and compiling ahead finds what a launch will look up."""

import importlib.metadata
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from blockscale.problem import Kernel

GENERIC = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 8, "num_stages": 2}
DECODE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_stages": 4, "SWAP_AB": True, "SPLIT_K": 8}
SHAPE = (64, 576, 7168)


def request(kernel, config=GENERIC, shape=SHAPE, **more):
    return {"kernel": kernel, "config": config, "shape": shape} | more


ANY_GPU = [request(Kernel.FP8), request(Kernel.FP8_MASKED), request(Kernel.INT8)]
AMD = [*ANY_GPU, request(Kernel.FP8_UNROLLED_X4, GENERIC | {"waves_per_eu": 2})]
# One row, a multiple of 16, neither; a K tail; a scale stride (K / 128) that is a multiple of 16.
HOPPER = [
    request(Kernel.FP8_HOPPER, DECODE, (m, n, k), with_tensors=True) for m, n, k in ((1, 576, 7168), (17, 130, 2100))
]
TARGETS = {
    "sm_80": ("float8_e4m3fn", [request(Kernel.INT8)]),
    "sm_89": ("float8_e4m3fn", ANY_GPU),
    "sm_90": ("float8_e4m3fn", [*ANY_GPU, *HOPPER, request(Kernel.FP8, shape=(16, 576, 2048), with_tensors=True)]),
    "sm_100": ("float8_e4m3fn", ANY_GPU),
    "sm_103": ("float8_e4m3fn", ANY_GPU),
    "sm_120": ("float8_e4m3fn", ANY_GPU),
    "gfx942": ("float8_e4m3fnuz", [*AMD, request(Kernel.FP8, shape=(17, 576, 2048), with_tensors=True)]),
    "gfx950": ("float8_e4m3fn", AMD),
    "gfx1201": ("float8_e4m3fn", AMD),
    "gfx1250": ("float8_e4m3fn", AMD),
}

TRITON = tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))


@cache
def compiled(arch, fp8_format, cases):
    """Compile in a process of its own; ``cases`` is JSON, so that results are remembered."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_kernels.py")],
        input=f'{{"arch": "{arch}", "fp8_format": "{fp8_format}", "cases": {cases}}}',
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No kernel compiled earlier may stand in for one that no longer compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))


@pytest.mark.parametrize("arch", TARGETS)
def test_kernels_compile(arch):
    if arch == "gfx1250" and TRITON < (3, 8):
        pytest.skip("Triton compiles for gfx1250 from 3.8 on, before that for minutes")
    fp8_format, cases = TARGETS[arch]
    results = compiled(arch, fp8_format, json.dumps(cases))
    assert [result.get("error") for result in results] == [None] * len(cases)
    for case, result in zip(cases, results, strict=True):
        config = case["config"]
        one_stage = (config["BLOCK_SIZE_M"] + config["BLOCK_SIZE_N"]) * config["BLOCK_SIZE_K"]
        assert len(result["shared"]) == (2 if config.get("SPLIT_K", 1) > 1 else 1)
        # Operands of at least one stage, or an AMD kernel that keeps them in registers; at most 4 tiles a step, padded
        # by a sixteenth where that keeps banks apart.
        assert 0 < result["shared"][0] <= 4 * config["num_stages"] * one_stage * 17 / 16 + 4096


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_a_launch_looks_up_what_was_compiled_ahead(arch):
    fp8_format, cases = TARGETS[arch]
    results = [result for result in compiled(arch, fp8_format, json.dumps(cases)) if "tensor_hashes" in result]
    assert results
    for result in results:
        assert result["tensor_hashes"] == result["hashes"]


def test_split_k_compiles_its_reduction_too():
    fp8_format, cases = TARGETS["sm_90"]
    split = compiled("sm_90", fp8_format, json.dumps(cases))[3]
    assert len(split["hashes"]) == 2
    assert split["shared"][0] == 4 * (16 + 64) * 128
    assert split["shared"][1] <= 4096  # partial sums meet between threads


def test_a_gpu_without_fp8_says_so():
    (result,) = compiled("sm_80", "float8_e4m3fn", json.dumps([request(Kernel.FP8)]))
    assert "fp8e4nv not supported in this architecture" in result["error"]
