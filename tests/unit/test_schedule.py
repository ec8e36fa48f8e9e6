import math

import pytest

from blockscale.errors import InputError
from blockscale.problem import GemmShape, Problem, QuantScheme
from blockscale.tuning.budget import Budget
from blockscale.tuning.request import STOCK_BATCH_SIZES, check_sizes, distinct_batch_sizes
from blockscale.tuning.schedule import split_evenly


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 7, 8, 18, 25])
def test_batch_sizes_are_spread_evenly_by_count(gpus):
    split = split_evenly(STOCK_BATCH_SIZES, gpus, seed=0)
    counts = [len(part) for part in split]
    assert len(split) == gpus
    assert max(counts) - min(counts) <= 1
    assert sorted(m for part in split for m in part) == list(STOCK_BATCH_SIZES)


def test_the_shuffle_is_seeded_and_leaves_the_callers_list_alone():
    sizes = list(STOCK_BATCH_SIZES)
    assert split_evenly(sizes, 4, seed=3) == split_evenly(sizes, 4, seed=3)
    assert split_evenly(sizes, 4, seed=3) != split_evenly(sizes, 4, seed=4)
    assert sizes == list(STOCK_BATCH_SIZES)


def test_shuffling_does_not_give_one_gpu_all_large_sizes():
    largest = {sum(max(p) >= 1024 for p in [part]) for part in split_evenly(STOCK_BATCH_SIZES, 2, seed=0)}
    assert largest == {1}


def test_splitting_over_no_gpu_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        split_evenly([1], 0, seed=0)


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
