"""Laws of the space that hold for any problem and device."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, QuantScheme, TileConfig
from blockscale.space import build_space, canonical, launch_grid

problems = st.builds(
    lambda m, n, k, block_k: Problem(GemmShape(m, n, k), QuantScheme(block_k=block_k)),
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.sampled_from([32, 64, 128]),
)
devices = st.builds(
    lambda arch, shared, units: replace(H200, arch=arch, shared_memory_bytes=shared, compute_units=units),
    st.sampled_from(["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]),
    st.sampled_from([65_536, 101_376, 166_912, 232_448]),
    st.integers(20, 200),
)
configs = st.builds(
    TileConfig,
    block_m=st.sampled_from([16, 32, 64, 128, 256]),
    block_n=st.sampled_from([16, 32, 64, 128, 256]),
    block_k=st.sampled_from([32, 64, 128]),
    group_m=st.one_of(st.sampled_from([1, 4, 8, 16, 32, 64]), st.integers(1, 200)),
)


def tile_order(problem: Problem, config: TileConfig) -> list[tuple[int, int]]:
    """The tiles in the order of program ids, as the kernels' grouped mapping gives them."""
    grid = launch_grid(problem, config)
    order = []
    for pid in range(grid.tiles_m * grid.tiles_n):
        group, within = divmod(pid, config.group_m * grid.tiles_n)
        first = group * config.group_m
        height = min(grid.tiles_m - first, config.group_m)
        order.append((first + within % height, within // height))
    return order


@given(m=st.integers(1, 700), n=st.integers(1, 700), config=configs)
def test_the_canonical_form_launches_the_same_tiles_in_the_same_order(m: int, n: int, config: TileConfig) -> None:
    problem = Problem(GemmShape(m, n, 256))
    assert tile_order(problem, canonical(problem, config)) == tile_order(problem, config)


@given(m=st.integers(1, 700), n=st.integers(1, 700), config=configs, other=st.sampled_from([1, 16, 32, 64]))
def test_two_stock_spellings_of_one_order_have_one_canonical_form(
    m: int, n: int, config: TileConfig, other: int
) -> None:
    problem = Problem(GemmShape(m, n, 256))
    changed = config.with_(group_m=other)
    if tile_order(problem, config) == tile_order(problem, changed):
        assert canonical(problem, config) == canonical(problem, changed)


@given(problem=problems, config=configs)
def test_canonical_is_idempotent(problem: Problem, config: TileConfig) -> None:
    once = canonical(problem, config)
    assert canonical(problem, once) == once


@settings(max_examples=settings.default.max_examples // 4)
@given(problem=problems, spec=devices, seed=st.integers(0, 1000))
def test_whatever_a_space_gives_is_legal_canonical_and_distinct(problem: Problem, spec: object, seed: int) -> None:
    space = build_space(problem, spec, hopper=False)  # type: ignore[arg-type]
    everything = list(space)
    assert len(everything) == len(space) == len(set(everything))
    drawn = space.sample(random.Random(seed), 40)
    assert len(drawn) == len(set(drawn)) == min(40, len(everything))
    assert set(drawn) <= set(everything)
    for config in everything:
        assert all(clause.check(problem, config) is None for clause in space.clauses)
        assert space.canonical(config) == config


@settings(max_examples=settings.default.max_examples // 4)
@given(problem=problems, spec=devices, seed=st.integers(0, 1000))
def test_neighbours_are_legal_canonical_and_lead_back(problem: Problem, spec: object, seed: int) -> None:
    space = build_space(problem, spec, hopper=True)  # type: ignore[arg-type]
    (start,) = space.sample(random.Random(seed), 1)
    tile_axes = [axis for axis in space.axes if axis.name != "group_m"]
    for neighbour in space.neighbours(start):
        assert space.reason(neighbour) is None
        assert space.canonical(neighbour) == neighbour
        assert all(getattr(neighbour, axis.name) in axis.values for axis in tile_axes)
        # A step that changes the number of tile rows may change what GROUP_SIZE_M means; the tile is regained.
        back = {c.with_(group_m=1) for c in space.neighbours(neighbour)}
        assert start.with_(group_m=1) in back or neighbour.with_(group_m=1) == start.with_(group_m=1)
