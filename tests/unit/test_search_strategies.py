"""What a run relies on in every search: never ask twice, end, repeat exactly, cope with failures, find good configs."""

import gc
import itertools
import math
import random
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from blockscale.costmodel import ConfigArrays, CostModel, analytic_us, embedded_portfolio
from blockscale.errors import InputError
from blockscale.hardware import H200
from blockscale.problem import GemmShape, Kernel, Problem, TileConfig
from blockscale.search import DEFAULT_TRIALS, Knowledge, StrategyName, make_strategy
from blockscale.space import Clause, Space, build_space, shared_memory_bytes

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
    knowledge: Sequence[Knowledge] = (),
    cost_model: CostModel | None = None,
) -> dict[TileConfig, float | None]:
    """Every config asked, in order, with its time; checks the contract on the way."""
    strategy = make_strategy(name, space, priors, trials, seed, knowledge, cost_model)
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


def steps(a: TileConfig, b: TileConfig) -> float:
    """Between two configs, over all axes."""
    doublings = ("block_m", "block_n", "block_k", "num_warps", "group_m", "split_k")
    apart = sum(abs(math.log2(getattr(a, name) / getattr(b, name))) for name in doublings)
    return apart + abs(a.num_stages - b.num_stages) + (a.swap_ab != b.swap_ab)


def bowl(optimum: TileConfig) -> Clock:
    """A landscape without local minima: every step towards the optimum, on any axis, is faster."""
    return lambda config: 10.0 + steps(config, optimum)


FAVOURITES = [
    DEFAULT.with_(group_m=16),
    DEFAULT.with_(block_m=256, block_n=32, num_warps=8, num_stages=4, group_m=1),
    DEFAULT.with_(block_m=32, block_n=256, num_warps=8, num_stages=4, group_m=16),
    DEFAULT.with_(block_m=64, block_n=64, block_k=64, num_warps=8, num_stages=5, group_m=64),
]


def unlike_the_expected(space: Space, favourite: TileConfig) -> Clock:
    """A GPU whose times grow by 10% with each step away from a config that the analytic clock thinks little of."""
    configs = list(space)
    arrays = ConfigArrays.of(configs, space.problem.quant, space.spec)
    clock = dict(zip(configs, map(float, analytic_us(space.problem, arrays, space.spec)), strict=True))
    return lambda config: clock[config] * 1.1 ** steps(config, favourite)


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


def test_failures_do_not_keep_the_default_search_from_the_best_that_runs(space: Space) -> None:
    chance = random.Random(0)
    clock = unlike_the_expected(space, FAVOURITES[0])
    failing = {config for config in space if chance.random() < 0.5} | {min(space, key=clock)}
    outcomes = run("auto", space, lambda config: None if config in failing else clock(config))
    assert clock(best(outcomes)) <= 1.05 * min(clock(config) for config in space if config not in failing)


@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("favourite", FAVOURITES, ids=str)
def test_the_default_search_finds_what_nothing_expected(favourite: TileConfig, informed: bool, space: Space) -> None:
    clock = unlike_the_expected(space, favourite)
    model = CostModel(H200, embedded_portfolio() if informed else None)
    expected = min(space, key=lambda config: float(model.expected_log_us(space.problem, [config])[0]))
    fastest_us = min(map(clock, space))
    assert clock(expected) > 1.08 * fastest_us, "what was expected would not do"
    # What was learnt from recordings is trusted more than the clock alone, so one that misleads costs more.
    assert clock(best(run("auto", space, clock, cost_model=model))) <= (1.12 if informed else 1.05) * fastest_us


@pytest.mark.parametrize("shape", [(64, 2112, 7168), (512, 2112, 7168), (4096, 4608, 7168)])
def test_a_slow_reading_that_others_make_unlikely_is_doubted(shape: tuple[int, int, int], recorded) -> None:
    table = recorded(Problem(GemmShape(*shape)))
    cost_model = CostModel(H200, embedded_portfolio(), Kernel.FP8_HOPPER)
    found = run("auto", table.space(), table.times.get, cost_model=cost_model)
    best = min(found, key=table.times.__getitem__)
    strategy = make_strategy("auto", table.space(), [DEFAULT], None, 0, (), cost_model)
    times = {}
    while batch := strategy.ask(16):
        for config in batch:
            times[config] = table.times[config] * (1.15 if config == best else 1.0)
            strategy.tell(config, times[config])
    doubted = strategy.doubted()
    assert doubted[best] == pytest.approx(table.times[best], rel=0.04)
    assert doubted.keys() <= times.keys()
    assert all(expected_us < times[config] for config, expected_us in doubted.items())
    assert len(doubted) < len(times) / 3


@pytest.mark.parametrize("name", NAMES)
def test_a_search_without_results_doubts_none(name: StrategyName, space: Space) -> None:
    strategy = make_strategy(name, space, [DEFAULT], 3, 0)
    for config in strategy.ask(16):
        strategy.tell(config, None)
    assert not strategy.doubted()


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


def test_a_run_of_many_problems_does_not_keep_all_that_its_searches_looked_at() -> None:
    spaces = [build_space(Problem(GemmShape(1024, n, 7168)), H200, hopper=True) for n in range(2048, 2560, 128)]
    model = CostModel(H200)  # blind: it looks at the whole space
    run("auto", spaces[0], bowl(DEFAULT), trials=10, cost_model=model)
    tracemalloc.start()
    try:
        for each in spaces[1:]:
            list(each)  # what a space itself holds is not the question
        before = tracemalloc.get_traced_memory()[0]
        for each in spaces[1:]:
            run("auto", each, bowl(DEFAULT), trials=10, cost_model=model)
        gc.collect()
        kept_bytes = (tracemalloc.get_traced_memory()[0] - before) / len(spaces[1:])
    finally:
        tracemalloc.stop()
    assert kept_bytes < 20 * len(spaces[0])


def test_a_device_without_known_peaks_is_searched_all_the_same() -> None:
    unknown = replace(H200, name="NVIDIA NEXT", arch="sm_120", shared_memory_bytes=101_376, compute_units=70)
    space = build_space(Problem(GemmShape(64, 2112, 7168)), unknown, hopper=False)
    clock = unlike_the_expected(space, DEFAULT.with_(block_m=32))
    assert clock(best(run("auto", space, clock))) <= 1.05 * min(map(clock, space))


# Decoding, where splits count, and prefill; one shape is as narrow as a head, one as wide as experts.
SHAPES = [GemmShape(16, 2112, 7168), GemmShape(1, 24576, 1536), GemmShape(4096, 2112, 7168)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_a_gpu_never_seen_the_default_search_ends_near_the_best(shape, recorded) -> None:
    """As large as an Ada's shared memory; nothing recorded, no peaks known: the clock alone, and it is off."""
    limit = 101_376
    unseen = replace(H200, name="NVIDIA NEXT", shared_memory_bytes=limit)
    problem = Problem(shape)
    table = recorded(problem).within(lambda config: shared_memory_bytes(problem.quant, config, H200) <= limit)
    outcomes = run("auto", table.space(unseen), table.times.get)
    assert table.times[best(outcomes)] <= 1.03 * table.best_us
