"""What is expected of configs before they are measured: the analytic clock, and what recorded devices correct of it."""

import gzip
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockscale.costmodel import (
    FEATURES,
    ConfigArrays,
    CostModel,
    Forest,
    Portfolio,
    Source,
    analytic_us,
    distance,
    embedded_portfolio,
    features,
    must_spill,
    portfolio_for,
)
from blockscale.costmodel.portfolio import KEPT_WITHIN
from blockscale.errors import InputError
from blockscale.hardware import H200, DeviceSpec, Vendor
from blockscale.problem import (
    GemmShape,
    Kernel,
    OutDtype,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
)
from blockscale.space import build_space

GOLDEN = Path(__file__).parents[1] / "golden" / "portfolio.json"
PROBLEM = Problem(GemmShape(256, 2112, 7168))
PLAIN = TileConfig(64, 128, 128, group_m=16, num_warps=4, num_stages=3)
FAST, GOOD, FAIR, SLOW = PLAIN, PLAIN.with_(num_stages=4), PLAIN.with_(block_n=64), PLAIN.with_(block_m=128)
TABLE = {FAIR: 11.0, FAST: 10.0, SLOW: 10.001 * KEPT_WITHIN, GOOD: 10.5}
# One tree: with four stages and more a config takes half as long as the clock says, with few rows a tile a bit less.
STAGES, BLOCK_M = FEATURES.index("num_stages"), FEATURES.index("block_m")
FOREST = Forest.of(FEATURES, 0.1, [[[STAGES, 3.5, 1, 4], [BLOCK_M, 6.5, 2, 3], [-0.01], [0.0], [math.log(0.5)]]])
H100 = replace(H200, name="NVIDIA H100 80GB HBM3")
MI300X = DeviceSpec("AMD Instinct MI300X", Vendor.HIP, "gfx942", 304, 65_536, 131_072, 1024, 64, 4 << 20, 192 << 30)
B200 = replace(H200, name="NVIDIA B200", arch="sm_100", compute_units=148)


def portfolio_of(*tables: tuple[Problem, dict[TileConfig, float]], kernel: Kernel = Kernel.FP8) -> Portfolio:
    return Portfolio.learn(H200, {(kernel, problem): table for problem, table in tables})


def clock_us(problem: Problem, *configs: TileConfig) -> np.ndarray:
    return analytic_us(problem, ConfigArrays.of(configs, problem.quant, H200), H200)


def test_the_clock_prefers_splits_where_few_tiles_leave_units_idle() -> None:
    few, many = Problem(GemmShape(16, 2112, 7168)), Problem(GemmShape(4096, 24576, 1536))
    small, large = TileConfig(block_m=16, block_n=64, block_k=128), PLAIN
    whole_us, split_us = clock_us(few, small, small.with_(split_k=8))
    assert split_us < whole_us
    whole_us, split_us = clock_us(many, large, large.with_(split_k=8))
    assert split_us > whole_us


def test_the_clock_knows_the_roofline_and_that_spilling_is_slow() -> None:
    problem = Problem(GemmShape(4096, 4096, 7168))
    configs = list(build_space(problem, H200, hopper=True))
    times_us = clock_us(problem, *configs)
    assert times_us.min() > 0.9 * H200.roofline_us(problem)
    spills = np.array([must_spill(config, H200) for config in configs])
    assert times_us[spills].min() > 1.5 * times_us.min()


def test_without_a_portfolio_the_clock_alone_is_expected() -> None:
    model = CostModel(H200)
    assert not model.is_informed
    assert model.expected_log_us(PROBLEM, list(TABLE)) == pytest.approx(np.log(clock_us(PROBLEM, *TABLE)))
    assert model.known_good(PROBLEM) == []


def test_a_portfolio_keeps_the_good_part_of_a_table() -> None:
    (source,) = portfolio_of((PROBLEM, TABLE)).sources
    assert source == Source(Kernel.FP8, PROBLEM, {FAIR: 11.0, FAST: 10.0, GOOD: 10.5})
    assert source.best_us == 10.0


def test_a_saved_portfolio_is_the_same_when_loaded_and_has_the_same_bytes(tmp_path: Path) -> None:
    other = Problem(GemmShape(16, 512, 1024), QuantScheme(QuantFormat.INT8, 64, 64), OutDtype.FLOAT16)
    split = TileConfig(16, 64, 64, swap_ab=True, split_k=4)
    learnt = portfolio_of((PROBLEM, TABLE), (other, {split: 3.141})).with_forests({Kernel.INT8: FOREST})
    learnt.save(tmp_path / "a.json.gz")
    loaded = Portfolio.load(tmp_path / "a.json.gz")
    assert (loaded.spec, loaded.sources) == (learnt.spec, learnt.sources)
    assert loaded.forests[Kernel.INT8].to_fields() == FOREST.to_fields()
    loaded.save(tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_what_only_amd_compilers_take_is_kept(tmp_path: Path) -> None:
    waves = {PLAIN.with_(waves_per_eu=0, num_stages=2): 10.0, PLAIN.with_(num_stages=2): 11.0}
    Portfolio.learn(MI300X, {(Kernel.FP8, PROBLEM): waves}).save(tmp_path / "amd.json.gz")
    loaded = Portfolio.load(tmp_path / "amd.json.gz")
    assert loaded.spec == MI300X
    assert loaded.sources == (Source(Kernel.FP8, PROBLEM, waves),)


def test_the_format_of_a_portfolio_is_the_one_that_shipped(tmp_path: Path) -> None:
    packed = tmp_path / "golden.json.gz"
    packed.write_bytes(gzip.compress(GOLDEN.read_bytes().rstrip()))
    loaded = Portfolio.load(packed)
    assert loaded.spec == H200
    assert loaded.sources == (
        Source(Kernel.FP8, PROBLEM, {FAST: 10.0, GOOD: 15.5, PLAIN.with_(swap_ab=True, split_k=4): 12.125}),
        Source(
            Kernel.INT8,
            Problem(GemmShape(1024, 512, 1024), QuantScheme(QuantFormat.INT8, 64, 64), OutDtype.FLOAT16),
            {TileConfig(64, 64, 64, group_m=16, num_warps=8, num_stages=2): 7.25},
        ),
    )
    rows = np.zeros((2, len(FEATURES)))
    rows[1, STAGES] = 4.0
    assert loaded.forests[Kernel.FP8].predict(rows) == pytest.approx([-0.0001457, -0.2624457], abs=1e-6)
    loaded.save(packed)
    assert gzip.decompress(packed.read_bytes()) == GOLDEN.read_bytes().rstrip()


def test_a_device_is_served_by_the_portfolio_of_its_architecture() -> None:
    assert portfolio_for(H200) is embedded_portfolio()
    assert portfolio_for(H100) is embedded_portfolio()
    assert portfolio_for(B200) is None
    of_b200 = Portfolio(B200, portfolio_of((PROBLEM, TABLE)).sources)
    assert portfolio_for(B200, [embedded_portfolio(), of_b200]) is of_b200
    assert portfolio_for(B200, [Portfolio(B200, ())]) is None, "an empty one teaches nothing"


def test_a_forest_says_how_far_off_the_clock_is() -> None:
    model = CostModel(H200, portfolio_of((PROBLEM, TABLE)).with_forests({Kernel.FP8: FOREST}))
    assert model.is_informed
    corrected = np.log(clock_us(PROBLEM, FAST, GOOD, SLOW)) + 0.1 + np.array([-0.01, math.log(0.5), 0.0])
    assert model.expected_log_us(PROBLEM, [FAST, GOOD, SLOW]) == pytest.approx(corrected, abs=1e-4)


def test_sources_without_a_forest_correct_nothing() -> None:
    model = CostModel(H200, portfolio_of((PROBLEM, TABLE)))
    assert not model.is_informed
    assert model.known_good(PROBLEM)
    assert model.expected_log_us(PROBLEM, list(TABLE)) == pytest.approx(np.log(clock_us(PROBLEM, *TABLE)))


def test_a_forest_adds_a_leaf_of_every_tree() -> None:
    trees = [[[0, 1.0, 1, 2], [10.0], [1, 5.0, 3, 4], [20.0], [30.0]], [[7.0]]]
    forest = Forest.of(("a", "b"), 0.5, trees)
    rows = np.array([[1.0, 9.0], [1.1, 5.0], [2.0, 5.1]])
    assert forest.predict(rows).tolist() == [17.5, 27.5, 37.5]
    assert forest.predict(np.zeros((0, 2))).tolist() == []
    many = np.tile(rows, (500, 1))
    assert forest.predict(many).tolist() == [17.5, 27.5, 37.5] * 500
    again = Forest.from_fields(forest.to_fields(), ("a", "b"))
    assert again.to_fields() == forest.to_fields() == {"features": ["a", "b"], "base": 0.5, "trees": trees}


def test_a_forest_grown_over_other_features_is_refused() -> None:
    with pytest.raises(InputError, match="make it anew"):
        Forest.from_fields(FOREST.to_fields(), FEATURES[::-1])


def test_features_are_one_row_a_config_and_finite_whatever_the_sizes() -> None:
    for shape in (GemmShape(1, 2112, 7168), GemmShape(4096, 24576, 1536), GemmShape(7, 96, 130)):
        problem = Problem(shape)
        configs = list(build_space(problem, H200, hopper=True))[::100]
        arrays = ConfigArrays.of(configs, problem.quant, H200)
        rows = features(problem, arrays, H200, analytic_us(problem, arrays, H200))
        assert rows.shape == (len(configs), len(FEATURES))
        assert np.isfinite(rows).all()


def test_distance_of_problems_grows_with_every_doubling() -> None:
    near, far = Problem(GemmShape(512, 2112, 7168)), Problem(GemmShape(4096, 512, 7168))
    assert distance(PROBLEM, PROBLEM) == 0 < distance(PROBLEM, near) < distance(PROBLEM, far) == distance(far, PROBLEM)


def test_what_did_well_elsewhere_is_known_in_the_spelling_of_the_problem() -> None:
    model = CostModel(H200, portfolio_of((PROBLEM, TABLE)))
    assert model.known_good(PROBLEM) == [FAIR, FAST, GOOD]
    one_row = Problem(GemmShape(16, 2112, 7168))
    assert FAST.with_(group_m=1) in model.known_good(one_row), "with one row of tiles GROUP_SIZE_M changes nothing"


@pytest.mark.parametrize(
    ("asked", "recorded_kernel", "informed"),
    [
        (Kernel.FP8, Kernel.FP8, True),
        (Kernel.FP8_MASKED, Kernel.FP8, True),
        (Kernel.FP8_UNROLLED_X4, Kernel.FP8, True),
        (Kernel.INT8, Kernel.FP8_MASKED, True),
        (Kernel.FP8, Kernel.INT8, False),
    ],
)
def test_a_kernel_that_was_never_recorded_learns_from_one_akin(asked, recorded_kernel, informed) -> None:
    portfolio = Portfolio(H200, (), {recorded_kernel: FOREST})
    assert CostModel(H200, portfolio, asked).is_informed is informed


def test_a_kernel_that_was_recorded_learns_from_its_own() -> None:
    likes_three = Forest.of(FEATURES, 0.0, [[[STAGES, 3.5, 1, 2], [0.0], [5.0]]])
    portfolio = Portfolio(H200, (), {Kernel.FP8_MASKED: likes_three, Kernel.FP8: FOREST})
    for kernel, winner in ((Kernel.FP8_MASKED, 0), (Kernel.FP8, 1)):
        assert CostModel(H200, portfolio, kernel).expected_log_us(PROBLEM, [FAST, GOOD]).argmin() == winner


def test_expectations_do_not_depend_on_what_was_asked_before() -> None:
    configs = list(build_space(PROBLEM, H200, hopper=True))[::50]
    at_once = CostModel(H200, embedded_portfolio()).expected_log_us(PROBLEM, configs)
    model = CostModel(H200, embedded_portfolio())
    one_by_one = [float(model.expected_log_us(PROBLEM, [config])[0]) for config in reversed(configs)]
    assert at_once == pytest.approx(one_by_one[::-1], abs=1e-12)


def test_what_was_forgotten_is_expected_again() -> None:
    model = CostModel(H200, portfolio_of((PROBLEM, TABLE)))
    configs = [FAST, GOOD, FAIR, SLOW]
    first = model.expected_log_us(PROBLEM, configs)
    model.forget(PROBLEM, but=[GOOD, FAST.with_(num_warps=8)])
    assert model.expected_log_us(PROBLEM, configs) == pytest.approx(first, abs=1e-12)


def test_what_was_learnt_makes_the_first_guess_better(recorded) -> None:
    problems = [Problem(GemmShape(m, n, k)) for n, k in ((2112, 7168), (24576, 1536)) for m in (1, 16, 64, 256, 4096)]
    regrets: dict[bool, list[float]] = {False: [], True: []}
    for problem in problems:
        table = recorded(problem)
        configs = list(table.times)
        for informed in regrets:
            model = CostModel(H200, embedded_portfolio() if informed else None)
            guess = configs[int(model.expected_log_us(problem, configs).argmin())]
            regrets[informed].append(math.log(table.times[guess] / table.best_us))
    assert statistics.fmean(regrets[True]) < 0.4 * statistics.fmean(regrets[False])
    assert math.exp(statistics.fmean(regrets[True])) < 1.05
