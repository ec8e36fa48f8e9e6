"""What follows from times at tuned batch sizes for the sizes between them."""

import math

import pytest

from blockscale.costmodel import CostModel
from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, TileConfig
from blockscale.tuning.between import SAME_TILES, Ladder

DEFAULT = TileConfig(64, 128, 128, 1, 4, 3)
NARROW = TileConfig(16, 64, 128, 1, 4, 4)
WIDE = TileConfig(128, 64, 128, 1, 4, 4)


def ladder(times: dict[int, dict[TileConfig, float]]) -> Ladder:
    return Ladder(times, lambda m: Problem(GemmShape(m, 4096, 1024)), CostModel(H200), DEFAULT)


TIMES = {
    32: {DEFAULT: 10.0, NARROW: 6.0, WIDE: 12.0},
    64: {DEFAULT: 10.5, NARROW: 8.0},
    128: {DEFAULT: 14.0, NARROW: 13.0, WIDE: 12.5},
}


@pytest.mark.parametrize("m", TIMES)
def test_at_a_tuned_size_the_expected_time_is_the_known_one(m: int) -> None:
    configs = list(TIMES[m])
    expected = ladder(TIMES).expected_us(configs, [m])[:, 0]
    assert list(expected) == pytest.approx([TIMES[m][c] for c in configs])


def test_between_two_sizes_the_expected_time_is_between_the_known_ones() -> None:
    expected = ladder(TIMES).expected_us([NARROW], [33, 40, 48, 63])[0]
    assert all(6.0 <= time_us <= 8.0 for time_us in expected)
    assert list(expected) == sorted(expected)


def test_nothing_is_expected_of_a_config_that_was_never_tried() -> None:
    assert math.isnan(ladder(TIMES).expected_us([NARROW.with_(num_stages=2)], [48])[0, 0])


@pytest.mark.parametrize(
    ("config", "m", "at_most_us"),
    [
        (NARROW, 48, 8.0),  # as at 64
        (NARROW, 129, math.inf),  # a tile more than was ever tried
        (NARROW, 8, math.inf),  # half a tile: time may fall as M grows
        (WIDE, 96, 12.5),
        (WIDE, 60, math.inf),
        (DEFAULT, 65, 14.0),
        (DEFAULT, 33, 10.5),
    ],
)
def test_a_config_takes_no_longer_than_at_a_larger_size(config: TileConfig, m: int, at_most_us: float) -> None:
    assert ladder(TIMES).at_most_us(config, m) == at_most_us


def test_within_one_tile_a_larger_size_takes_little_longer() -> None:
    tried = {32: {DEFAULT: 10.0, NARROW: 6.0}, 96: {DEFAULT: 13.0, WIDE: 12.0}}
    assert ladder(tried).at_most_us(WIDE, 128) == pytest.approx(12.0 * SAME_TILES)
    assert ladder(tried).at_most_us(NARROW, 40) == math.inf


@pytest.mark.parametrize(
    ("config", "m", "at_least_us"),
    [
        (DEFAULT, 96, 14.0 / SAME_TILES),  # two tiles, as at 128
        (DEFAULT, 200, 14.0),
        (DEFAULT, 8, 10.5 / SAME_TILES),
        (WIDE, 40, 12.5 / SAME_TILES),  # a quarter of a tile at 32 says nothing
    ],
)
def test_a_config_takes_no_less_than_at_a_smaller_size(config: TileConfig, m: int, at_least_us: float) -> None:
    assert ladder(TIMES).at_least_us(config, m) == pytest.approx(at_least_us)


def test_a_spelling_that_launches_the_same_blocks_has_the_same_time() -> None:
    # One row of tiles up to M = 64, so GROUP_SIZE_M means nothing there; at 128 it is another launch.
    assert ladder(TIMES).known(DEFAULT.with_(group_m=64)) == {32: 10.0, 64: 10.5}
