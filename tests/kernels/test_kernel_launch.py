"""What reaches a kernel's launch, and what is refused before one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockscale.kernels.compile_only import gpu_target
from blockscale.kernels.inputs import make_inputs
from blockscale.kernels.launch import bind, extra_launch_args, kernel_sources_hash, warm_up, workspace_bytes
from blockscale.problem import Candidate, GemmShape, Kernel, OutDtype, Problem, QuantFormat, QuantScheme, TileConfig

CONFIG = TileConfig(16, 64, 128)
PROBLEM = Problem(GemmShape(3, 130, 256))


def bound(problem=PROBLEM, kernel=Kernel.FP8, config=CONFIG, **changes):
    """Bind on CPU tensors, which checks everything and starts nothing."""
    inputs = make_inputs(problem, "float8_e4m3fn", 0)
    out = changes.pop("out", torch.empty((problem.shape.M, problem.shape.N), dtype=torch.bfloat16))
    workspace = changes.pop("workspace", None)
    return bind(problem, Candidate(kernel, config), replace(inputs, **changes), out, workspace)


@pytest.mark.parametrize("kernel", [Kernel.INT8, Kernel.FP8_MASKED])
def test_kernels_that_always_mask_get_no_needs_masking(kernel):
    assert extra_launch_args(kernel, PROBLEM, CONFIG) == {"num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize("kernel", [Kernel.FP8, Kernel.FP8_UNROLLED_X4, Kernel.FP8_HOPPER])
@pytest.mark.parametrize(("k", "needed"), [(256, False), (300, True)])
def test_masking_is_asked_for_where_tiles_do_not_fill_k(kernel, k, needed):
    problem = Problem(GemmShape(3, 130, k))
    assert extra_launch_args(kernel, problem, CONFIG)["needs_masking"] is needed


def test_hopper_and_amd_keys_reach_the_launch():
    hopper = extra_launch_args(Kernel.FP8_HOPPER, PROBLEM, CONFIG.with_(swap_ab=True, split_k=4))
    assert (hopper["SWAP_AB"], hopper["SPLIT_K"]) == (True, 4)
    amd = TileConfig.from_entry(CONFIG.to_entry() | {"waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 1})
    extra = extra_launch_args(Kernel.FP8, PROBLEM, amd)
    assert (extra["waves_per_eu"], extra["matrix_instr_nonkdim"], extra["kpack"]) == (0, 16, 1)


def test_workspace_holds_a_float32_for_each_element_and_split():
    split = Candidate(Kernel.FP8_HOPPER, CONFIG.with_(split_k=8))
    assert workspace_bytes(PROBLEM, split) == 4 * 8 * 3 * 130
    assert workspace_bytes(PROBLEM, Candidate(Kernel.FP8_HOPPER, CONFIG.with_(swap_ab=True))) == 0


REFUSALS = {
    "BLOCK_SIZE_K = 128 does not divide block_k = 64": (QuantScheme(QuantFormat.FP8, 64, 64), Kernel.FP8, CONFIG),
    "has its own kernels": (QuantScheme(), Kernel.INT8, CONFIG),
    "hopper kernel only": (QuantScheme(), Kernel.FP8, CONFIG.with_(swap_ab=True)),
    "SPLIT_K = 3 is no power of two": (QuantScheme(), Kernel.FP8_HOPPER, CONFIG.with_(split_k=3)),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_configs_that_would_compute_wrong_numbers_are_refused(message):
    quant, kernel, config = REFUSALS[message]
    problem = replace(PROBLEM, quant=quant)
    with pytest.raises(ValueError, match=message):
        bound(problem, kernel, config)
    with pytest.raises(ValueError, match=message):
        warm_up(problem, Candidate(kernel, config), "float8_e4m3fn")


@pytest.mark.parametrize(
    ("sizes", "split", "message"),
    [
        ((4_610_048, 4096, 256), 1, "M·N = 18"),
        ((300_000, 64, 8192), 1, "M·K = 2,4"),
        ((1, 65536, 65536), 1, "N·K = 4,2"),
        ((65536, 8192, 512), 8, "partial sums beyond"),
    ],
)
def test_matrices_beyond_32_bit_offsets_are_refused_before_a_launch(sizes, split, message):
    problem = Problem(GemmShape(*sizes))
    with pytest.raises(ValueError, match=message):
        warm_up(problem, Candidate(Kernel.FP8_HOPPER, CONFIG.with_(split_k=split)), "float8_e4m3fn")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": torch.empty((3, 130))}, "out is torch.float32"),
        ({"out": torch.empty((130, 3), dtype=torch.bfloat16).T}, "out of shape"),
        ({"a_scale": torch.ones(3, 3)}, "a_scale of shape"),
        ({"b": torch.zeros((130, 256), dtype=torch.int8)}, "b torch.int8"),
        ({"a": torch.zeros(3 * 256 + 1, dtype=torch.int8)[1:].view(3, 256)}, "multiple of 16 bytes"),
        ({"workspace": torch.empty(7), "config": CONFIG.with_(split_k=2), "kernel": Kernel.FP8_HOPPER}, "workspace"),
    ],
)
def test_tensors_that_are_not_the_problems_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        bound(**changes)


def test_int8_operands_bind_and_any_workspace_type_serves():
    int8 = Problem(GemmShape(3, 130, 256), QuantScheme(QuantFormat.INT8), OutDtype.BFLOAT16)
    assert callable(bound(int8, Kernel.INT8))
    config = CONFIG.with_(split_k=4)
    size = workspace_bytes(PROBLEM, Candidate(Kernel.FP8_HOPPER, config))
    assert callable(bound(kernel=Kernel.FP8_HOPPER, config=config, workspace=torch.empty(size, dtype=torch.uint8)))


@pytest.mark.parametrize(
    ("arch", "expected"),
    [("sm_90", ("cuda", 90, 32)), ("sm_100a", ("cuda", 100, 32)), ("gfx942", ("hip", "gfx942", 64)),
     ("gfx1250", ("hip", "gfx1250", 32))],
)  # fmt: skip
def test_architecture_names_become_compiler_targets(arch, expected):
    target = gpu_target(arch)
    assert (target.backend, target.arch, target.warp_size) == expected


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="hopper"):
        gpu_target("hopper")


def test_the_sources_digest_is_a_stable_sha256():
    assert kernel_sources_hash() == kernel_sources_hash()
    assert len(bytes.fromhex(kernel_sources_hash())) == 32


def test_a_launch_that_goes_straight_to_its_kernel_is_the_one_that_triton_would_make(tmp_path):
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("record_launches.py")],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    recorded = json.loads(done.stdout)
    assert len(recorded) == 2 * len(Kernel)
    for case in recorded.values():
        assert case["straight"] == case["through_triton"]
        assert len(case["straight"]) >= 3
        assert case["looked_up"] == []
