"""What a run relies on in every search: never ask twice, end, repeat exactly, cope with failures, find good configs."""

import gzip
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files

import pytest

from blockscale.errors import InputError
from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, TileConfig
from blockscale.search import DEFAULT_TRIALS, StrategyName, make_strategy
from blockscale.search.estimate import estimate_us
from blockscale.space import Clause, Space, build_space

DEFAULT = TileConfig(block_m=64, block_n=128, block_k=128, group_m=32, num_warps=4, num_stages=3)
NAMES: list[StrategyName] = ["auto", "exhaustive", "random"]
Clock = Callable[[TileConfig], float | None]


@pytest.fixture(scope="module")
def space() -> Space:
    return build_space(Problem(GemmShape(1024, 2112, 7168)), H200, hopper=False)


def run(
    name: StrategyName,
    space: Space,
    clock: Clock,
    *,
    at_once: int = 16,
    trials: int | None = None,
    seed: int = 0,
    priors: tuple[TileConfig, ...] = (DEFAULT,),
) -> dict[TileConfig, float | None]:
    """Every config asked, in order, with its time; checks the contract on the way."""
    strategy = make_strategy(name, space, priors, trials, seed)
    outcomes: dict[TileConfig, float | None] = {}
    while batch := strategy.ask(at_once):
        assert len(batch) <= at_once
        for config in batch:
            assert config not in outcomes, "asked twice"
            assert space.reason(config) is None
            assert space.canonical(config) == config
            outcomes[config] = clock(config)
            strategy.tell(config, outcomes[config])
    assert strategy.ask(at_once) == []
    return outcomes


def bowl(optimum: TileConfig) -> Clock:
    """A landscape without local minima: every step towards the optimum, on any axis, is faster."""

    def clock(config: TileConfig) -> float:
        time = 10.0
        for name in ("block_m", "block_n", "block_k", "num_warps", "group_m", "split_k"):
            time += abs(math.log2(getattr(config, name) / getattr(optimum, name)))
        return time + abs(config.num_stages - optimum.num_stages) + (config.swap_ab != optimum.swap_ab)

    return clock


def best(outcomes: dict[TileConfig, float | None]) -> TileConfig:
    timed = {config: time for config, time in outcomes.items() if time is not None}
    return min(timed, key=lambda config: timed[config])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_a_search_ends_within_its_trials_and_starts_with_the_priors(
    name: StrategyName, at_once: int, space: Space
) -> None:
    outcomes = run(name, space, bowl(DEFAULT), at_once=at_once, trials=50)
    assert len(outcomes) <= 50
    assert next(iter(outcomes)) == space.canonical(DEFAULT)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_asks_the_same_and_the_batch_size_changes_nothing(name: StrategyName, space: Space) -> None:
    clock = bowl(DEFAULT.with_(block_m=128, num_stages=5))
    first = list(run(name, space, clock, trials=90, seed=3))
    assert list(run(name, space, clock, trials=90, seed=3)) == first
    assert list(run(name, space, clock, trials=90, seed=3, at_once=5)) == first


def test_other_seeds_draw_other_configs(space: Space) -> None:
    clock = bowl(DEFAULT)
    assert list(run("random", space, clock, trials=30, seed=1)) != list(run("random", space, clock, trials=30, seed=2))


@pytest.mark.parametrize("name", ["exhaustive", "random"])
def test_without_a_bound_the_whole_space_is_tried_once(name: StrategyName, space: Space) -> None:
    bound = None if name == "exhaustive" else len(space)
    assert set(run(name, space, bowl(DEFAULT), trials=bound)) == set(space)


@pytest.mark.parametrize("name", NAMES)
def test_a_search_survives_a_device_where_nothing_runs(name: StrategyName, space: Space) -> None:
    outcomes = run(name, space, lambda config: None, trials=100)
    assert 0 < len(outcomes) <= 100


def test_failures_do_not_keep_the_default_search_from_a_lone_valid_corner(space: Space) -> None:
    chance = random.Random(0)
    failing = {config for config in space if chance.random() < 0.5}
    optimum = next(c for c in space if c not in failing and c.block_m == 128 and c.block_n == 64 and c.num_stages == 4)
    clock = bowl(optimum)
    outcomes = run("auto", space, lambda config: None if config in failing else clock(config))
    reached = outcomes[best(outcomes)]
    assert reached is not None
    assert reached <= 11.0  # at most one step away


@pytest.mark.parametrize(
    "optimum",
    [
        DEFAULT.with_(group_m=16),
        DEFAULT.with_(block_m=256, block_n=32, num_warps=8, num_stages=4, group_m=1),
        DEFAULT.with_(block_m=16, block_n=256, block_k=64, num_stages=5, group_m=64),
    ],
    ids=str,
)
def test_the_default_search_walks_to_the_bottom_of_a_bowl(optimum: TileConfig, space: Space) -> None:
    assert best(run("auto", space, bowl(optimum))) == optimum


def test_the_default_search_asks_no_more_than_its_published_bound() -> None:
    space = build_space(Problem(GemmShape(4096, 2112, 7168)), H200, hopper=True)
    # A landscape that keeps improving with every trial never meets the patience.
    times = (1000 * 0.99**i for i in itertools.count())
    bound = DEFAULT_TRIALS["auto"]
    assert bound is not None
    assert len(run("auto", space, lambda config: next(times))) == bound


@pytest.mark.parametrize("name", NAMES)
def test_priors_count_as_trials_and_illegal_ones_are_left_out(name: StrategyName, space: Space) -> None:
    too_large = DEFAULT.with_(block_m=256, block_n=256, num_stages=5)
    off_axis = DEFAULT.with_(group_m=8)
    asked = list(run(name, space, bowl(DEFAULT), trials=2, priors=(too_large, off_axis, off_axis, DEFAULT)))
    assert asked == [off_axis, space.canonical(DEFAULT)]


def test_a_space_smaller_than_the_trials_is_tried_whole() -> None:
    only = Clause("one tile", lambda problem, c: None if c.block_m == 64 and c.block_n == 64 else "another tile")
    space = build_space(Problem(GemmShape(16, 576, 512)), H200, hopper=False, clauses=[only])
    assert len(space) < 20
    for name in NAMES:
        assert set(run(name, space, bowl(DEFAULT), priors=())) == set(space)


@pytest.mark.parametrize(("name", "trials", "words"), [("tpe", None, "'tpe' is unknown"), ("auto", 0, "trials = 0")])
def test_a_wrong_request_says_what_is_possible(name: str, trials: int | None, words: str, space: Space) -> None:
    with pytest.raises(InputError, match=words):
        make_strategy(name, space, [], trials, 0)  # type: ignore[arg-type]


def test_the_estimate_prefers_splits_where_few_tiles_leave_units_idle() -> None:
    few, many = Problem(GemmShape(16, 2112, 7168)), Problem(GemmShape(4096, 24576, 1536))
    config = TileConfig(block_m=16, block_n=64, block_k=128)
    large = DEFAULT.with_(block_m=64)
    assert estimate_us(few, config.with_(split_k=8), H200) < estimate_us(few, config, H200)
    assert estimate_us(many, large.with_(split_k=8), H200) > estimate_us(many, large, H200)


def test_a_device_without_known_peaks_is_searched_all_the_same() -> None:
    unknown = replace(H200, name="NVIDIA NEXT", arch="sm_120", shared_memory_bytes=101_376, compute_units=70)
    space = build_space(Problem(GemmShape(64, 2112, 7168)), unknown, hopper=False)
    assert len(run("auto", space, bowl(DEFAULT.with_(block_m=32)))) > 30


def recorded(shape: GemmShape) -> dict[TileConfig, float]:
    table = {}
    with gzip.open(str(files("blockscale") / "data" / "h200.jsonl.gz"), "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if (row.get("M"), row.get("N"), row.get("K")) == (shape.M, shape.N, shape.K) and "time_us" in row:
                table[TileConfig.from_entry(row["config"])] = row["time_us"]
    return table


@pytest.mark.parametrize("shape", [GemmShape(16, 2112, 7168), GemmShape(1, 24576, 1536), GemmShape(4096, 2112, 7168)])
def test_on_a_recorded_gpu_the_default_search_ends_within_two_percent_of_the_best(shape: GemmShape) -> None:
    table = recorded(shape)
    space = build_space(Problem(shape), H200, hopper=True)
    outcomes = run("auto", space, table.get)
    assert table[best(outcomes)] <= 1.02 * min(table.values())
