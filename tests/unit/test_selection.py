import pytest

from blockscale.problem import Candidate, GemmShape, Kernel, Phase, Problem, TileConfig, Trial, TrialStatus
from blockscale.selection import Outcome, SelectionRules, finalists, select, standard_error_us

PROBLEM = Problem(GemmShape(16, 2112, 7168))
SIMPLE = Candidate(Kernel.FP8, TileConfig(64, 64, 128))
SPLIT = Candidate(Kernel.FP8_HOPPER, TileConfig(16, 64, 128, swap_ab=True, split_k=8))
DEFAULT = Candidate(Kernel.FP8, TileConfig(64, 128, 128, group_m=32))


def final(candidate: Candidate, *samples: float, status: TrialStatus = TrialStatus.OK) -> Trial:
    return Trial(PROBLEM, candidate, status, Phase.FINAL, samples)


def test_the_faster_config_wins_and_beats_the_baseline():
    chosen = select([final(SPLIT, 9.0, 9.0, 9.1), final(DEFAULT, 33.0, 33.1, 33.2)], DEFAULT)
    assert (chosen.outcome, chosen.winner) == (Outcome.TUNED, SPLIT)
    assert (chosen.time_us, chosen.baseline_us) == (9.0, 33.1)


def test_a_tie_within_noise_goes_to_the_simpler_config():
    chosen = select(
        [final(SPLIT, 9.00, 9.10, 9.20), final(SIMPLE, 9.05, 9.15, 9.25), final(DEFAULT, 33, 33, 33)], DEFAULT
    )
    assert chosen.winner == SIMPLE


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


def test_finalists_are_the_baselines_that_ran_and_the_fastest_others():
    screened = [final(Candidate(Kernel.FP8, TileConfig(16 << i, 64, 128)), 10.0 + i) for i in range(4)]
    failed = final(SPLIT, status=TrialStatus.COMPILE_ERROR)
    got = finalists([*screened, failed, final(DEFAULT, 33.0)], [DEFAULT, SPLIT], SelectionRules(finalists=2))
    assert got == [DEFAULT, screened[0].candidate, screened[1].candidate]


def test_standard_error_of_one_two_and_many_samples():
    assert standard_error_us([5.0]) == 0.0
    assert standard_error_us([9.0, 11.0]) == pytest.approx(1.253 * (2 / 1.128) / 2**0.5)
    assert standard_error_us([10.0, 10.0, 10.0, 50.0]) == 0.0  # one outlier does not make a config noisy
