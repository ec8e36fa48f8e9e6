"""Every kernel computes the right product: run on the CPU by Triton's interpreter, against a float64 reference."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from blockscale.problem import Kernel

PLAIN = (Kernel.FP8, Kernel.FP8_MASKED, Kernel.FP8_UNROLLED_X4, Kernel.INT8)
# (M, N, K), (block_n, block_k), output, (BLOCK_SIZE_M, N, K, GROUP_SIZE_M)
SITUATIONS = {
    "one row": ((1, 130, 256), (128, 128), "float32", (16, 128, 128, 1)),
    "ragged everywhere": ((33, 130, 200), (64, 64), "float16", (32, 64, 64, 8)),
    "small blocks": ((17, 32, 96), (32, 32), "bfloat16", (16, 32, 32, 1)),
    "groups longer than blocks are wide": ((3, 576, 320), (64, 128), "float32", (16, 256, 128, 1)),
    "groups shorter than blocks are wide": ((33, 130, 256), (128, 64), "float32", (32, 64, 64, 1)),
    "two tiles a group": ((17, 130, 384), (128, 128), "bfloat16", (32, 128, 64, 1)),
    "four tiles a group, cut off": ((17, 130, 300), (128, 128), "float32", (32, 128, 32, 1)),
    "tile wider than a block": ((3, 200, 128), (32, 64), "float32", (16, 128, 32, 1)),
    "last group of tile rows is short": ((70, 130, 128), (128, 128), "float16", (16, 64, 128, 2)),
    "a model's weight, cut along K": ((24, 2112, 200), (128, 128), "float32", (32, 128, 128, 8)),
}
BLOCKS = ((128, 128), (64, 64), (32, 32), (64, 128), (128, 64))
OUTPUTS = ("bfloat16", "float16", "float32")
# K tiles left after steps of four: 0, 1, 2, 3; also fewer than four in all.
UNROLLED_K = (128, 640, 768, 896, 1024, 500)
# (K, BLOCK_SIZE_K, SWAP_AB, SPLIT_K); 640 are five tiles of 128, ten of 64.
HOPPER = [
    (640, 128, True, 1),
    (640, 128, False, 2),
    (640, 64, True, 2),
    (640, 64, False, 4),
    (600, 64, True, 4),
    (600, 128, True, 8),
    (128, 128, True, 16),
    (300, 32, False, 8),
    (640, 128, False, 1),
]


def case(kernel, shape, block, out, tile, **keys):
    m, n, k, group = tile
    sizes = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group}
    return {"kernel": kernel, "shape": shape, "block": block, "out": out, "config": sizes | keys}


def random_case(seed):
    rng = random.Random(seed)
    kernel = rng.choice(list(Kernel))
    block = rng.choice(BLOCKS)
    shape = (rng.randint(1, 70), rng.randint(1, 260), rng.randint(1, 500))
    tile_k = rng.choice([size for size in (32, 64, 128) if size <= block[1]])
    tile = (rng.choice([16, 32, 64]), 128, tile_k, rng.choice([1, 3, 16]))
    keys = {"SWAP_AB": rng.random() < 0.5, "SPLIT_K": rng.choice([1, 2, 4, 8])} if kernel is Kernel.FP8_HOPPER else {}
    return case(kernel, shape, block, rng.choice(OUTPUTS), tile, **keys)


def every_block_and_output():
    """Each kernel on each block and output, M and N ragged, with a K tail; where blocks allow, in half K tiles too."""
    cases = {}
    for i, (kernel, block, out) in enumerate(itertools.product(Kernel, BLOCKS, OUTPUTS)):
        tile_k = max(32, block[1] // (1 + i % 2))
        tiles = 5 if kernel is Kernel.FP8_UNROLLED_X4 else 3  # one is left after an unrolled step
        shape = (17 + 16 * (i % 2), 130, tiles * tile_k - 24)
        keys = {"SWAP_AB": i % 2 == 0, "SPLIT_K": 1 << i % 3} if kernel is Kernel.FP8_HOPPER else {}
        name = f"{kernel}: block {block[0]}×{block[1]} to {out}"
        cases[name] = case(kernel, shape, block, out, (32, 128, tile_k, 1 + i % 2), **keys)
    return cases


def all_cases():
    cases = {
        f"{kernel}: {name}": case(kernel, *situation) for kernel in PLAIN for name, situation in SITUATIONS.items()
    }
    for k in UNROLLED_K:
        for block_k in (64, 128):
            name = f"{Kernel.FP8_UNROLLED_X4}: K={k} in tiles of {block_k}"
            shape = (17, 70, k)
            cases[name] = case(Kernel.FP8_UNROLLED_X4, shape, (128, 128), "float32", (32, 128, block_k, 1))
    for i, (k, block_k, swap, split) in enumerate(HOPPER):
        name = f"{Kernel.FP8_HOPPER}: K={k} in tiles of {block_k}, swap={swap}, split={split}"
        tile = (16, 128, block_k, 8)
        cases[name] = case(
            Kernel.FP8_HOPPER, (1 + 16 * (i % 3), 130, k), (128, 128), OUTPUTS[i % 3], tile, SWAP_AB=swap, SPLIT_K=split
        )
    return cases | every_block_and_output() | {f"random {seed}": random_case(seed) for seed in range(10)}


CASES = all_cases()


@pytest.fixture(scope="module")
def results():
    requests = list(CASES.values())
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("run_interpreted.py")],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(requests), f"stopped at {requests[len(lines)]}:\n{done.stderr[-3000:]}"
    return dict(zip(CASES, lines, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_product(results, name):
    assert results[name]["worst"] <= 1.0, CASES[name]
    # `check` rightly rejects bfloat16 here: the interpreter truncates where hardware rounds.
    assert results[name]["status"] == "ok" or CASES[name]["out"] == "bfloat16"
