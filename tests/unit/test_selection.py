import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.problem import Candidate, GemmShape, Kernel, Phase, Problem, TileConfig, Trial, TrialStatus
from blockscale.selection import Outcome, SelectionRules, finalists, levelled, select, standard_error_us

PROBLEM = Problem(GemmShape(16, 2112, 7168))
SIMPLE = Candidate(Kernel.FP8, TileConfig(64, 64, 128))
SPLIT = Candidate(Kernel.FP8_HOPPER, TileConfig(16, 64, 128, swap_ab=True, split_k=8))
DEFAULT = Candidate(Kernel.FP8, TileConfig(64, 128, 128, group_m=32))


def final(candidate: Candidate, *samples: float, status: TrialStatus = TrialStatus.OK) -> Trial:
    return Trial(PROBLEM, candidate, status, Phase.FINAL, samples)


def test_the_faster_config_wins_and_beats_the_baseline():
    chosen = select([final(SPLIT, 9.0, 9.0, 9.1), final(DEFAULT, 33.0, 33.1, 33.2)], DEFAULT)
    assert (chosen.outcome, chosen.winner) == (Outcome.TUNED, SPLIT)
    assert (chosen.time_us, chosen.baseline_us) == pytest.approx((9.0, 33.1), rel=0.01)


def test_a_tie_within_noise_goes_to_the_simpler_config():
    split, simple = final(SPLIT, 9.00, 9.10, 9.20), final(SIMPLE, 9.25, 9.05, 9.15)
    assert select([split, simple, final(DEFAULT, 33, 33, 33)], DEFAULT).winner == SIMPLE


def test_a_difference_beyond_noise_is_no_tie():
    chosen = select([final(SPLIT, 9.0, 9.0, 9.0), final(SIMPLE, 9.05, 9.05, 9.05), final(DEFAULT, 33, 33, 33)], DEFAULT)
    assert chosen.winner == SPLIT


def test_a_noisy_device_never_trades_more_than_one_per_cent_for_simplicity():
    noisy = [final(SPLIT, 5, 9, 13), final(SIMPLE, 6, 10, 14), final(DEFAULT, 33, 33, 33)]
    assert select(noisy, DEFAULT).winner == SPLIT


def test_what_does_not_beat_the_baseline_is_not_written():
    chosen = select([final(SIMPLE, 33.0, 33.1, 33.2), final(DEFAULT, 33.05, 33.1, 33.15)], DEFAULT)
    assert (chosen.outcome, chosen.winner) == (Outcome.KEPT, DEFAULT)
    assert chosen.time_us == chosen.baseline_us


def test_overwrite_skips_the_comparison_with_the_baseline():
    trials = [final(SIMPLE, 33.0, 33.1, 33.2), final(DEFAULT, 33.05, 33.1, 33.15)]
    assert select(trials, DEFAULT, overwrite=True).winner == SIMPLE


def test_a_baseline_that_fails_is_replaced_by_whatever_is_right():
    chosen = select([final(SIMPLE, 40.0), final(DEFAULT, status=TrialStatus.WRONG_RESULT)], DEFAULT)
    assert (chosen.outcome, chosen.winner, chosen.baseline_us) == (Outcome.TUNED, SIMPLE, None)


def test_without_a_valid_candidate_there_is_no_winner():
    chosen = select([final(DEFAULT, status=TrialStatus.TIMEOUT)], DEFAULT)
    assert (chosen.outcome, chosen.winner, chosen.time_us) == (Outcome.NO_VALID_CANDIDATE, None, None)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_choice_does_not_depend_on_the_order_of_trials(order):
    trials = [final(SPLIT, 9.0, 9.1), final(SIMPLE, 9.0, 9.1), final(DEFAULT, 33, 34)]
    assert select([trials[i] for i in order], DEFAULT).winner == SIMPLE


def screened_at(*times_us: float) -> list[Trial]:
    return [final(Candidate(Kernel.FP8, TileConfig(16 << i, 64, 128)), us) for i, us in enumerate(times_us)]


def test_finalists_are_the_baselines_that_ran_and_the_fastest_others():
    screened = screened_at(10.2, 10.0, 10.1, 10.25)
    failed = final(SPLIT, status=TrialStatus.COMPILE_ERROR)
    got = finalists([*screened, failed, final(DEFAULT, 33.0)], [DEFAULT, SPLIT], SelectionRules(finalists=2))
    assert got == [DEFAULT, screened[1].candidate, screened[2].candidate]


def test_what_cannot_be_the_fastest_whatever_the_noise_is_no_finalist():
    rules = SelectionRules()
    limit_us = 10.0 * (1 + rules.contention)
    screened = screened_at(10.0, limit_us - 0.01, limit_us + 0.01, 2 * limit_us)
    got = finalists([*screened, final(DEFAULT, 33.0)], [DEFAULT], rules)
    assert got == [DEFAULT, screened[0].candidate, screened[1].candidate]


def test_a_baseline_far_ahead_meets_no_finalist_that_could_not_beat_it():
    assert finalists([*screened_at(33.0, 34.0), final(DEFAULT, 9.0)], [DEFAULT], SelectionRules()) == [DEFAULT]


def test_a_slow_time_that_its_like_make_unlikely_is_looked_at_again():
    first, near, far, other, failed = screened_at(10.0, 12.0, 12.0, 12.0, 12.0)
    failed = final(failed.candidate, status=TrialStatus.TIMEOUT)
    expected_us = {near.candidate: 10.2, far.candidate: 11.0, other.candidate: 10.1, failed.candidate: 9.0}
    got = finalists([first, near, far, other, failed, final(DEFAULT, 33.0)], [DEFAULT], SelectionRules(), expected_us)
    assert got == [DEFAULT, first.candidate, other.candidate, near.candidate]


@given(st.lists(st.tuples(st.floats(10, 11), st.floats(9, 12)), min_size=1, max_size=8))
def test_doubts_add_a_few_finalists_and_take_none_away(times):
    screened = screened_at(*(us for us, _ in times))
    expected_us = {trial.candidate: expected for trial, (_, expected) in zip(screened, times, strict=True)}
    rules = SelectionRules(finalists=3)
    certain = finalists(screened, [DEFAULT], rules)
    assert finalists(screened, [DEFAULT], rules, expected_us)[: len(certain)] == certain
    added = finalists(screened, [DEFAULT], rules, expected_us)[len(certain) :]
    limit_us = (1 + rules.contention) * min(us for us, _ in times)
    assert len(added) <= rules.doubted
    assert all(expected_us[c] <= limit_us for c in added)


def test_standard_error_of_one_two_and_many_samples():
    assert standard_error_us([5.0]) == 0.0
    assert standard_error_us([9.0, 11.0]) == pytest.approx(1.253 * (2 / 1.128) / 2**0.5)
    assert standard_error_us([10.0, 10.0, 10.0, 50.0]) == 0.0  # one outlier does not make a config noisy


def test_a_clock_that_drops_midway_does_not_decide():
    # As seen on an H200: all versions run at one clock for half of the rounds and 10% slower for the rest, and the step
    # comes between two candidates of one round.
    fast = final(SPLIT, 41.0, 41.1, 41.0, 45.1, 45.2, 45.1, 45.1)
    slow = final(SIMPLE, 41.9, 42.0, 41.9, 42.0, 46.1, 46.0, 46.1)
    base = final(DEFAULT, 43.0, 43.1, 43.0, 47.2, 47.3, 47.2, 47.3)
    assert fast.time_us > slow.time_us, "plain medians would choose the slower one"
    assert select([fast, slow, base], DEFAULT).winner == SPLIT


def test_levelling_takes_out_what_all_had_in_common_and_nothing_else():
    steady = [final(SPLIT, 9.0, 9.0, 9.0), final(SIMPLE, 10.0, 10.0, 10.0)]
    assert levelled(steady) == steady
    drifting = [final(SPLIT, 9.0, 9.9, 9.0), final(SIMPLE, 10.0, 11.0, 10.0)]
    assert [t.samples_us for t in levelled(drifting)] == [pytest.approx((9.0,) * 3), pytest.approx((10.0,) * 3)]


def test_a_minimum_and_a_maximum_are_no_rounds():
    recorded = [final(SPLIT, 9.0, 9.5), final(SIMPLE, 10.0, 10.1)]
    assert levelled(recorded) == recorded
