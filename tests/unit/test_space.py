"""What the space offers: its sizes, its reasons, and one spelling for each piece of work."""

import random
from dataclasses import replace

import pytest

from blockscale.errors import InputError
from blockscale.hardware import H200, DeviceSpec, Vendor
from blockscale.problem import GemmShape, Problem, QuantFormat, QuantScheme, TileConfig
from blockscale.space import (
    Axis,
    Clause,
    Space,
    build_space,
    canonical,
    combinations,
    cuda_axes,
    hardware_clauses,
    launch_grid,
    rocm_axes,
    shared_memory_bytes,
)

L40 = replace(H200, name="NVIDIA L40", arch="sm_89", compute_units=142, shared_memory_bytes=101_376)
MI300X = DeviceSpec(
    name="AMD Instinct MI300X",
    vendor=Vendor.HIP,
    arch="gfx942",
    compute_units=304,
    shared_memory_bytes=65_536,
    registers_per_unit=131_072,
    max_threads_per_block=1024,
    warp_size=64,
    l2_bytes=4 * 1024 * 1024,
    memory_bytes=192_000_000_000,
)
K_DIVIDES = Clause(
    "BLOCK_SIZE_K divides block_k",
    lambda problem, config: (
        None
        if problem.quant.block_k % config.block_k == 0
        else f"BLOCK_SIZE_K = {config.block_k} does not divide block_k = {problem.quant.block_k}"
    ),
)


def problem(M: int = 4096, N: int = 2112, K: int = 7168, **quant: object) -> Problem:
    return Problem(GemmShape(M, N, K), QuantScheme(**quant))  # type: ignore[arg-type]


def config(**changes: object) -> TileConfig:
    return TileConfig(block_m=64, block_n=128, block_k=128, group_m=32).with_(**changes)


def test_stock_spaces_have_the_sizes_that_people_know() -> None:
    assert len(list(combinations(cuda_axes(problem())))) == 1280
    assert len(list(combinations(cuda_axes(problem(block_k=32))))) == 1920
    assert len(list(combinations(cuda_axes(problem(format=QuantFormat.INT8, block_k=32))))) == 1280
    assert len(list(combinations(rocm_axes()))) == 800


def test_on_an_h200_all_but_the_32_that_exceed_shared_memory_are_legal() -> None:
    p = problem()
    space = build_space(p, H200, hopper=False)
    illegal = [c for c in combinations(space.axes) if space.reason(c) is not None]
    assert len(illegal) == 32
    assert illegal == [
        c for c in combinations(space.axes) if c.num_stages * (c.block_m + c.block_n) * c.block_k > 232_448
    ]
    # With more rows of tiles than any group holds every spelling is work of its own.
    assert len(build_space(problem(M=64 * 257), H200, hopper=False)) == 1248


def test_rocm_filtered_by_block_k_leaves_600() -> None:
    p = problem(M=32 * 257 * 16)
    space = Space(p, MI300X, rocm_axes(), (K_DIVIDES,))
    assert len([c for c in combinations(space.axes) if space.reason(c) is None]) == 600
    assert all(c.waves_per_eu == 0 and c.num_stages == 2 for c in build_space(p, MI300X, hopper=False))


def test_the_hopper_keys_multiply_the_space_and_their_neutral_values_are_the_stock_configs() -> None:
    p = problem()
    stock, hopper = build_space(p, H200, hopper=False), build_space(p, H200, hopper=True)
    assert len(hopper) == 10 * len(stock)
    assert [c for c in hopper if not c.swap_ab and c.split_k == 1] == list(stock)


def test_stages_that_an_ada_gpu_holds_are_not_judged_by_hopper_rules() -> None:
    # Where operands pass through registers the last stage needs no buffer.
    c = config(block_m=128, block_n=128, num_stages=4)
    assert shared_memory_bytes(problem().quant, c, L40) == 3 * 256 * 128
    assert shared_memory_bytes(problem().quant, c, H200) == 4 * 256 * 128
    space = build_space(problem(), L40, hopper=False)
    assert space.reason(c) is None
    assert "131072 bytes of shared memory" in str(space.reason(c.with_(num_stages=5)))


def test_int8_on_data_centre_blackwell_is_not_judged_by_its_fp8_instruction() -> None:
    b300 = replace(H200, name="NVIDIA B300", arch="sm_103")
    c = config(block_m=128, block_n=128, num_stages=4)
    assert shared_memory_bytes(problem().quant, c, b300) == 4 * 256 * 128
    assert shared_memory_bytes(problem(format=QuantFormat.INT8).quant, c, b300) == 3 * 256 * 128


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_m": 48}, "BLOCK_SIZE_M = 48"),
        ({"num_warps": 3}, "num_warps = 3"),
        ({"num_warps": 64}, "2048 threads"),
        ({"block_k": 16}, "BLOCK_SIZE_K = 16 is below 32"),
        ({"block_n": 8}, "below 16×16"),
        ({"block_m": 512, "block_n": 256, "block_k": 32, "num_stages": 2}, "131072 floats"),
        ({"block_m": 256, "block_n": 256, "num_stages": 5}, "327680 bytes of shared memory exceed the 232448"),
        ({"split_k": 64}, "SPLIT_K = 64 leaves splits idle: K = 7168 has 56 tiles"),
    ],
)
def test_an_illegal_config_comes_with_its_reason(changes: dict[str, object], words: str) -> None:
    assert words in str(build_space(problem(), H200, hopper=True).reason(config(**changes)))


def test_the_engines_default_is_legal_on_every_device() -> None:
    for spec in (H200, L40, MI300X):
        assert build_space(problem(), spec, hopper=False).reason(config(num_stages=2)) is None


def test_an_empty_space_names_the_rule_that_emptied_it() -> None:
    with pytest.raises(InputError, match=r"BLOCK_SIZE_K divides block_k.*does not divide block_k = 32") as error:
        build_space(problem(format=QuantFormat.INT8, block_k=32), H200, hopper=False, clauses=[K_DIVIDES])
    assert "int8" in str(error.value)
    assert "NVIDIA H200" in str(error.value)
    assert "Choose" in str(error.value)


def test_group_size_is_spelled_once_for_each_order() -> None:
    one_row, few_rows, many_rows = problem(M=64), problem(M=640), problem(M=64 * 100)
    assert canonical(one_row, config()).group_m == 1
    assert canonical(problem(N=128), config()).group_m == 1
    assert {canonical(few_rows, config(group_m=g)).group_m for g in (10, 16, 32, 64, 100)} == {16}
    assert canonical(few_rows, config(group_m=8)).group_m == 8
    assert canonical(many_rows, config(group_m=64)).group_m == 64
    assert {canonical(many_rows, config(group_m=g)).group_m for g in (100, 128, 1000)} == {128}


def test_the_launch_covers_ragged_edges() -> None:
    launched = launch_grid(problem(M=65, N=2112), config(split_k=4))
    assert (launched.tiles_m, launched.tiles_n, launched.splits, launched.blocks) == (2, 17, 4, 136)


def test_an_axis_steps_to_the_values_beside_one_that_it_lacks() -> None:
    axis = Axis("group_m", (1, 16, 32, 64))
    assert axis.steps(16) == (1, 32)
    assert axis.steps(8) == (1, 16)
    assert axis.steps(1) == (16,)
    assert axis.steps(128) == (64,)


def test_neighbours_step_on_every_axis_and_trade_tile_sides() -> None:
    start = config(group_m=16, num_warps=4)
    around = build_space(problem(), H200, hopper=True).neighbours(start)
    for changes in (
        {"block_m": 32},
        {"block_n": 256},
        {"num_warps": 8},
        {"num_stages": 4},
        {"swap_ab": True},
        {"split_k": 2},
        {"block_m": 128, "block_n": 64},
        {"block_n": 64, "num_stages": 4},
    ):
        assert start.with_(**changes) in around, changes
    assert start not in around


def test_a_sample_covers_every_value_of_every_axis() -> None:
    space = build_space(problem(M=64 * 257), H200, hopper=True)
    drawn = space.sample(random.Random(0), 80)
    assert len(set(drawn)) == 80
    for axis in space.axes:
        assert {getattr(c, axis.name) for c in drawn} == set(axis.values)


def test_a_sample_larger_than_the_space_is_the_space() -> None:
    space = build_space(problem(), H200, hopper=False)
    assert sorted(space.sample(random.Random(0), 10_000)) == sorted(space)


def test_hardware_clauses_have_distinct_names() -> None:
    names = [clause.name for clause in hardware_clauses(H200)]
    assert len(set(names)) == len(names)
