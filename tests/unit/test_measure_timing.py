"""How many passes a sample takes, and when a first look is enough."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.measure.timing import Series, TimingPlan, round_orders, set_count, touched_bytes
from blockscale.problem import GemmShape, Problem

PLAN = TimingPlan()
PASS_US = st.floats(min_value=1.0, max_value=1e6)


@given(PASS_US)
def test_samples_fill_their_time_in_whole_passes_and_no_more(pass_us: float) -> None:
    for series, at_least_us in ((PLAN.screening(pass_us), PLAN.sample_us), (PLAN.final_round(pass_us), PLAN.round_us)):
        assert series.passes * pass_us >= at_least_us * (1 - 1e-9)
        assert series.passes == 1 or (series.passes - 1) * pass_us < at_least_us * (1 + 1e-9)


@given(PASS_US)
def test_a_screen_has_as_many_samples_and_a_round_one_whatever_a_pass_takes(pass_us: float) -> None:
    assert PLAN.screening(pass_us).count == PLAN.samples
    assert PLAN.final_round(pass_us).count == 1


@given(PASS_US)
def test_the_gpu_is_kept_busy_while_short_passes_are_queued(pass_us: float) -> None:
    for series in (PLAN.screening(pass_us), PLAN.final_round(pass_us)):
        assert series.ahead * pass_us >= PLAN.ahead_us * (1 - 1e-9) or pass_us >= PLAN.unhurried_us


@pytest.mark.parametrize(
    ("first_us", "limit_us", "expected"),
    [
        (100.0, math.inf, Series(3, ahead=1)),  # so short that the wait for its launch shows
        (100.0, 50.0, Series(3, ahead=1)),
        (1000.0, math.inf, None),
        (1000.0, 1100.0, None),
        (1000.0, 900.0, Series(1, ahead=0)),  # it may have been disturbed
        (9000.0, 900.0, None),
        (9000.0, 8000.0, Series(1, ahead=0)),
    ],
)
def test_what_follows_a_first_look(first_us: float, limit_us: float, expected: Series | None) -> None:
    assert PLAN.first_look() == Series(1, passes=1, ahead=0)
    assert PLAN.second_look(first_us, limit_us) == expected


@given(st.integers(1, 8192), st.integers(1, 32768), st.integers(1, 16384), st.integers(1 << 20, 1 << 28))
def test_a_pass_is_larger_than_twice_the_l2_cache(m: int, n: int, k: int, l2_bytes: int) -> None:
    problem = Problem(GemmShape(m, n, k))
    sets = set_count(problem, l2_bytes)
    assert 1 <= sets <= 256
    assert sets * touched_bytes(problem) > 2 * l2_bytes or sets == 256


def test_each_round_of_the_finals_begins_with_another_candidate() -> None:
    orders = round_orders(3, 7)
    assert [order[0] for order in orders] == [0, 1, 2, 0, 1, 2, 0]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert round_orders(0, 7) == []
