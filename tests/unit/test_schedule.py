import math
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import InputError
from blockscale.problem import GemmShape, Problem, QuantScheme
from blockscale.tuning.budget import Budget
from blockscale.tuning.request import STOCK_BATCH_SIZES, check_sizes, distinct_batch_sizes
from blockscale.tuning.schedule import contiguous, lower_bound_s, queued, remaining_s, shuffled

SPLITS = {"contiguous": contiguous, "shuffled": partial(shuffled, seed=0)}


@pytest.mark.parametrize("split", SPLITS)
@given(st.lists(st.integers(), unique=True, max_size=30), st.integers(1, 40))
def test_static_splits_hand_out_every_item_once_and_evenly_by_count(split, items, workers):
    before = list(items)
    parts = SPLITS[split](items, workers)
    assert len(parts) == workers
    assert sorted(item for part in parts for item in part) == sorted(items)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert items == before


def test_a_contiguous_split_keeps_the_order():
    assert contiguous(STOCK_BATCH_SIZES, 4)[3] == [1024, 1536, 2048, 3072, 4096]


def test_the_shuffle_is_seeded():
    assert shuffled(STOCK_BATCH_SIZES, 4, 3) == shuffled(STOCK_BATCH_SIZES, 4, 3)
    assert shuffled(STOCK_BATCH_SIZES, 4, 3) != shuffled(STOCK_BATCH_SIZES, 4, 4)


@pytest.mark.parametrize("split", [*SPLITS.values(), queued, lower_bound_s])
def test_splitting_over_no_gpu_is_refused(split):
    with pytest.raises(ValueError, match="at least one"):
        split([1], 0)


def test_the_longest_is_taken_first_by_whoever_is_free():
    schedule = queued([1.0, 5.0, 3.0, 2.0], 2)
    assert schedule.by_worker == ((1, 0), (2, 3))
    assert schedule.end_s == (6.0, 5.0, 3.0, 5.0)
    assert schedule.makespan_s == 6.0


def test_what_an_item_really_takes_decides_who_is_free_next():
    assert queued([3.0, 2.0, 1.0, 1.0], 2, [1.0, 9.0, 1.0, 1.0]).by_worker == ((0, 2, 3), (1,))


def test_an_item_waits_for_those_it_comes_after():
    schedule = queued([1.0, 9.0, 2.0], 2, after=[(), (0,), ()])
    assert schedule.end_s == (1.0 + 0.0, 1.0 + 9.0, 2.0)
    with pytest.raises(ValueError, match="circle"):
        queued([1.0, 1.0], 1, after=[(1,), (0,)])


def test_what_holds_up_a_long_chain_goes_first_where_chains_count():
    expected_s, after = [3.0, 1.0, 1.0, 9.0], [(), (), (1,), (2,)]
    assert remaining_s(expected_s, after) == [3.0, 11.0, 10.0, 9.0]
    assert queued(expected_s, 1, after=after).by_worker == ((0, 1, 2, 3),)
    assert queued(remaining_s(expected_s, after), 1, expected_s, after).by_worker == ((1, 2, 3, 0),)


costs = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=25)


@given(costs, st.integers(1, 9), st.data())
def test_a_queue_hands_out_every_item_once_and_keeps_within_its_bounds(items, workers, data):
    expected, real = [e for e, _ in items], [r for _, r in items]
    after = None
    if data.draw(st.booleans()):
        after = [data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(len(items))]
    schedule = queued(expected, workers, real, after)
    assert sorted(i for part in schedule.by_worker for i in part) == list(range(len(items)))
    bound = lower_bound_s(real, workers, after)
    assert schedule.makespan_s >= bound * (1 - 1e-9)
    assert schedule.makespan_s <= 2 * bound * (1 + 1e-9), "Graham's bound of list schedules"
    for part in schedule.by_worker:
        for first, second in pairwise(part):
            assert schedule.end_s[second] >= schedule.end_s[first] + real[second] - 1e-9
    for item, before in enumerate(after or []):
        assert all(schedule.end_s[item] >= schedule.end_s[i] + real[item] - 1e-9 for i in before)


def test_repeated_batch_sizes_are_tuned_once_and_said():
    sizes, notes = distinct_batch_sizes([16, 1, 16, 4096])
    assert sizes == (1, 16, 4096)
    assert len(notes) == 1
    assert "16" in notes[0]


def problem(m: int) -> Problem:
    return Problem(GemmShape(m, 2112, 7168))


def test_without_a_budget_nothing_stops_a_search():
    (allowance,) = Budget(None, [problem(1)]).wave([problem(1)])
    allowance.spend(1e9)
    assert allowance.left_for_screening


def test_a_budget_is_shared_by_cost_and_what_is_left_over_goes_to_later_waves():
    large, small, last = problem(65_536), problem(1), problem(2)
    budget = Budget(100.0, [large, small, last])
    first, second = budget.wave([large, small])
    first.spend(30.0)
    second.spend(20.0)
    assert first.left_for_screening
    assert not second.left_for_screening, "it is cheap, so its share is small"
    (third,) = budget.wave([last])
    third.spend(39.0)
    assert third.left_for_screening, "the last wave may use all that the first left over"
    third.spend(2.0)
    assert not third.left_for_screening


def test_an_overdrawn_budget_leaves_nothing():
    budget = Budget(1.0, [problem(4096), problem(1)])
    (first,) = budget.wave([problem(4096)])
    first.spend(math.pi)
    (second,) = budget.wave([problem(1)])
    assert not second.left_for_screening


@pytest.mark.parametrize(
    ("shape", "said"),
    [((4_610_048, 4096, 256), "M·N"), ((300_000, 64, 8192), "M·K"), ((1, 65536, 65536), "N·K")],
)
def test_sizes_beyond_32_bit_offsets_are_refused(shape, said):
    with pytest.raises(InputError, match=said):
        check_sizes([Problem(GemmShape(*shape))], QuantScheme())


@pytest.mark.parametrize("block", [(16, 128), (128, 100), (512, 128)])
def test_quantisation_blocks_that_no_kernel_supports_are_refused(block):
    with pytest.raises(InputError, match="--block-"):
        check_sizes([], QuantScheme(block_n=block[0], block_k=block[1]))
