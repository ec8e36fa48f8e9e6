"""The Gaussian process over configs: formulas against what they must give, and against plain numerics."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, TileConfig
from blockscale.search.surrogate import Observations, Surrogate, SurrogateSettings, coordinates, expected_improvement
from blockscale.space import build_space

SETTINGS = SurrogateSettings()
AXES = build_space(Problem(GemmShape(1024, 2112, 7168)), H200, hopper=True).axes
CONFIG = TileConfig(64, 128, 128, group_m=16, num_warps=4, num_stages=3)
CONFIGS = [
    CONFIG,
    CONFIG.with_(num_stages=4),
    CONFIG.with_(block_n=64),
    CONFIG.with_(block_m=128, num_warps=8),
    CONFIG.with_(block_m=16, block_n=32, split_k=8, swap_ab=True),
]
PLACES = coordinates(CONFIGS, AXES, SETTINGS)
ERRORS = np.array([0.3, 0.25, -0.1, 0.0, -0.4])


def surrogate_of(alike: float = 1.0) -> Surrogate:
    """Over two problems, which are so much alike."""
    return Surrogate(np.array([[1.0, alike], [alike, 1.0]]), 0.2, SETTINGS.confidence, SETTINGS)


def observed(indices: list[int], problem: int = 0) -> Observations:
    return Observations(PLACES[indices], ERRORS[indices], np.full(len(indices), problem))


def test_where_a_config_was_measured_its_error_is_known() -> None:
    prediction = surrogate_of().predict(observed([0, 1, 2, 3, 4]), PLACES)
    assert prediction.mean == pytest.approx(ERRORS, abs=2 * SETTINGS.noise)
    assert np.sqrt(prediction.variance) == pytest.approx(np.full(5, SETTINGS.noise), rel=0.5)


def test_before_any_measurement_nothing_is_known() -> None:
    prediction = surrogate_of().predict(observed([]), PLACES)
    assert not prediction.mean.any()
    assert prediction.variance == pytest.approx(np.full(5, 0.2**2 + SETTINGS.offset**2))


@pytest.mark.parametrize("field", ["block_m", "block_n", "block_k", "num_stages", "group_m", "split_k"])
def test_the_further_from_a_measured_config_the_less_is_known(field: str) -> None:
    axis = next(axis for axis in AXES if axis.name == field)
    configs = [CONFIG.with_(**{field: value}) for value in axis.values]
    prediction = surrogate_of().predict(
        Observations(coordinates(configs[:1], AXES, SETTINGS), ERRORS[:1], np.zeros(1, dtype=np.int64)),
        coordinates(configs, AXES, SETTINGS),
    )
    assert (np.diff(prediction.variance) > 0).all()
    assert (np.diff(prediction.mean) < 0).all(), "the error that was found counts less and less"


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("before", [[], [0], [0, 2, 3]])
def test_supposing_a_measurement_narrows_as_making_it_does(index: int, before: list[int]) -> None:
    surrogate = surrogate_of()
    prediction = surrogate.predict(observed(before), PLACES)
    as_expected = Observations(
        PLACES[[*before, index]],
        np.append(ERRORS[before], prediction.mean[index]),
        np.zeros(len(before) + 1, dtype=np.int64),
    )
    made = surrogate.predict(as_expected, PLACES)
    prediction.suppose_measured(index)
    assert prediction.mean == pytest.approx(made.mean)
    assert prediction.variance / prediction.surprise == pytest.approx(made.variance / made.surprise)


def test_supposing_two_narrows_as_making_both_does() -> None:
    surrogate = surrogate_of()
    prediction = surrogate.predict(observed([0]), PLACES)
    prediction.suppose_measured(2)
    prediction.suppose_measured(4)
    made = surrogate.predict(observed([0, 2, 4]), PLACES)
    assert prediction.variance / prediction.surprise == pytest.approx(made.variance / made.surprise)


def test_what_an_alike_problem_showed_shifts_the_mean_and_an_unlike_one_less() -> None:
    # Its offset is its own: only the difference between two of its configs says something.
    of_other = Observations(PLACES[[0, 4]], np.array([0.3, -0.3]), np.ones(2, dtype=np.int64))
    alike, unlike, foreign = (surrogate_of(a).predict(of_other, PLACES) for a in (0.8, 0.3, 0.0))
    assert alike.mean[0] > unlike.mean[0] > 0 > unlike.mean[4] > alike.mean[4]
    assert (alike.variance[[0, 4]] < unlike.variance[[0, 4]]).all()
    assert not foreign.mean.any()


def test_a_whole_problem_that_is_off_says_nothing_of_another() -> None:
    slow_all_over = Observations(PLACES, np.full(5, 0.7), np.ones(5, dtype=np.int64))
    assert np.abs(surrogate_of(0.8).predict(slow_all_over, PLACES).mean).max() < 0.1


def test_results_that_surprise_the_model_widen_what_it_holds_possible() -> None:
    errors = 0.15 * np.array([1, -1, 1, -1, 1])
    calm, wild = (
        surrogate_of().predict(Observations(PLACES, scale * errors, np.zeros(5, dtype=np.int64)), PLACES)
        for scale in (0.1, 10.0)
    )
    assert calm.surprise < 1 < wild.surprise
    assert (wild.variance > calm.variance).all()


@pytest.mark.parametrize("index", range(5))
def test_what_others_say_of_a_result_is_what_is_predicted_without_it(index: int) -> None:
    others = [i for i in range(5) if i != index]
    beside = observed([2, 0], problem=1)

    def with_known(own: Observations) -> Observations:
        return Observations(*(np.concatenate(pair) for pair in zip(*map(_columns, (beside, own)), strict=True)))

    above, deviation = surrogate_of(0.7).left_out(with_known(observed([*others, index])))
    prediction = surrogate_of(0.7).predict(with_known(observed(others)), PLACES[[index]])
    assert len(above) == len(deviation) == 5, "only the problem searched is asked about"
    assert above[-1] == pytest.approx(ERRORS[index] - prediction.mean[0])
    alone = prediction.variance[0] / prediction.surprise + SETTINGS.noise**2
    surprise = surrogate_of(0.7).predict(with_known(observed([*others, index])), PLACES).surprise
    assert deviation[-1] == pytest.approx(math.sqrt(alone * surprise))


def _columns(each: Observations) -> tuple[np.ndarray, ...]:
    return each.places, each.errors, each.problems


def test_places_are_steps_along_the_axes_in_units_of_their_reach() -> None:
    lengths = replace(SETTINGS, axis_reach={axis.name: 1.0 for axis in AXES})
    by_name = [axis.name for axis in AXES]

    def place(config: TileConfig) -> dict[str, float]:
        return dict(zip(by_name, coordinates([config], AXES, lengths)[0], strict=True))

    assert place(CONFIG) | {"block_m": 3.0} == place(CONFIG.with_(block_m=128))
    off_axis = place(CONFIG.with_(group_m=8))["group_m"]
    assert place(CONFIG.with_(group_m=1))["group_m"] < off_axis < place(CONFIG)["group_m"]
    doubled = replace(lengths, axis_reach=dict.fromkeys(by_name, 2.0))
    assert coordinates(CONFIGS, AXES, doubled) == pytest.approx(coordinates(CONFIGS, AXES, lengths) / 2)


@given(st.floats(-3, 3), st.floats(0.01, 2), st.floats(-3, 3))
def test_expected_improvement_is_the_mean_of_what_lies_below_the_best(mean: float, deviation: float, best: float):
    values = mean + deviation * np.linspace(-9, 9, 20_001)
    density = np.exp(-(((values - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    integral = (np.maximum(best - values, 0.0) * density).sum() * (values[1] - values[0])
    (gain,) = expected_improvement(np.array([mean]), np.array([deviation**2]), best)
    assert gain == pytest.approx(integral, abs=1e-5 * deviation)


def test_of_two_equal_means_the_less_certain_promises_more_and_certainty_promises_the_difference() -> None:
    certain, uncertain, worse = expected_improvement(np.array([-0.1, -0.1, 0.1]), np.array([0.0, 0.04, 0.0]), 0.0)
    assert certain == pytest.approx(0.1)
    assert uncertain > certain
    assert worse == 0.0
