"""What recordings teach holds on weights that were never recorded. Growing the trees takes scikit-learn."""

import math
from collections.abc import Sequence

import pytest
from teaching import Table, learnt, recorded_tables

from blockscale.costmodel import CostModel, Portfolio
from blockscale.hardware import H200
from blockscale.problem import GemmShape, Kernel, Problem, TileConfig, WeightShape
from blockscale.recording import embedded, load_recording
from blockscale.search import Knowledge, make_strategy

DEFAULT = TileConfig(block_m=64, block_n=128, block_k=128, group_m=32, num_warps=4, num_stages=3)
UNSEEN = (WeightShape(2112, 7168), WeightShape(24576, 1536), WeightShape(3072, 1536))


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    """SGLang's tables of the recorded H200."""
    return [t for t in recorded_tables([load_recording(embedded("h200"))]) if t.kernel is Kernel.FP8]


@pytest.fixture(scope="module")
def model(tables) -> CostModel:
    """What is learnt from all weights but three."""
    return CostModel(H200, learnt(H200, tables, without=UNSEEN))


def search(space, clock, model: CostModel, knowledge: Sequence[Knowledge] = ()) -> dict[TileConfig, float]:
    """All that the default search asks, with its times."""
    strategy = make_strategy("auto", space, [DEFAULT], None, 0, knowledge, model)
    times: dict[TileConfig, float] = {}
    while batch := strategy.ask(16):
        for config in batch:
            times[config] = clock(config)
            strategy.tell(config, times[config])
    return times


def test_nothing_of_the_weights_left_out_is_in_a_portfolio(tables) -> None:
    few = [t for t in tables if t.problem.shape.M == 64]
    portfolio = learnt(H200, few, without=[WeightShape(2112, 7168)])
    weights = {source.problem.shape.weight for source in portfolio.sources}
    assert weights == {t.problem.shape.weight for t in few} - {WeightShape(2112, 7168)}
    assert list(portfolio.forests) == [Kernel.FP8]


def test_a_portfolio_is_the_same_when_learnt_again_and_when_loaded(tables, tmp_path) -> None:
    few = [t for t in tables if t.problem.shape.M == 64]
    for name in "ab":
        learnt(H200, few).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    Portfolio.load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "shape", [GemmShape(16, 2112, 7168), GemmShape(1, 24576, 1536), GemmShape(4096, 2112, 7168)], ids=str
)
def test_on_a_weight_never_recorded_the_default_search_ends_at_the_best_of_a_known_gpu(shape, model, recorded) -> None:
    table = recorded(Problem(shape))
    times = search(table.space(), table.times.__getitem__, model)
    assert min(times.values()) <= 1.02 * table.best_us
    assert len(times) < 40


def test_batch_sizes_that_learn_from_each_other_take_fewer_trials_and_end_as_well(model, recorded) -> None:
    alone = taught = 0
    for weight in (WeightShape(2112, 7168), WeightShape(3072, 1536)):
        known: list[Knowledge] = []
        for m in (64, 1, 4096, 16, 1024):
            table = recorded(Problem(GemmShape(m, weight.N, weight.K)))
            alone += len(search(table.space(), table.times.__getitem__, model))
            nearest = sorted(known, key=lambda other: abs(math.log2(other.problem.shape.M / m)))
            times = search(table.space(), table.times.__getitem__, model, nearest)
            taught += len(times)
            assert min(times.values()) <= 1.02 * table.best_us
            known.append(Knowledge(table.problem, times))
    assert taught < alone
