"""Batch sizes between keys and ratios by round, against what the engine's own lookup and plain arithmetic say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.engines import engine
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, Trial, TrialStatus
from blockscale.tuning.comparison.batch_sizes import between_keys, key_ranges
from blockscale.tuning.comparison.rounds import median_ratio, ratio

SGLANG = engine("sglang", "0.5.23")
KEYS = st.lists(st.integers(1, 300), min_size=1, max_size=8, unique=True)
TIMES = st.floats(0.5, 5e4)


@given(KEYS)
def test_ranges_are_what_the_lookup_serves_whatever_the_order_of_the_file(keys: list[int]) -> None:
    served = {m: r.key for r in key_ranges(SGLANG, keys) for m in range(r.first, r.last + 1)}
    assert served == {m: SGLANG.lookup_key(keys, m) for m in range(1, max(keys) + 1)}


@given(KEYS, st.sampled_from([16, 32, 64, 128]))
def test_between_keys_are_both_sides_of_each_switch_and_no_key(keys: list[int], tile: int) -> None:
    found = between_keys(SGLANG, dict.fromkeys(keys, tile))
    switches = {
        m
        for lower in range(1, max(keys))
        if SGLANG.lookup_key(keys, lower) != SGLANG.lookup_key(keys, lower + 1)
        for m in (lower, lower + 1)
    }
    assert switches - set(keys) <= found
    assert not found & set(keys)
    assert all(1 <= m <= max(keys) for m in found)
    assert all(m in (1, *switches) or m % tile in (0, 1) for m in found)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=9), st.floats(0.2, 5.0))
def test_a_clock_that_changes_between_rounds_changes_no_ratio(rounds: list[tuple[float, float]], factor: float) -> None:
    ours, theirs = zip(*rounds, strict=True)
    slowed = [(a * factor, b * factor) if i % 2 else (a, b) for i, (a, b) in enumerate(rounds)]
    assert median_ratio(*zip(*slowed, strict=True)) == pytest.approx(median_ratio(ours, theirs))


@given(st.lists(TIMES, min_size=1, max_size=7), st.lists(TIMES, min_size=1, max_size=7), st.booleans())
def test_a_difference_is_never_seen_both_ways(ours: list[float], theirs: list[float], interleaved: bool) -> None:
    problem, config = Problem(GemmShape(16, 512, 7168)), TileConfig(64, 128, 128)
    a, b = (
        Trial(problem, Candidate(Kernel.FP8, config), TrialStatus.OK, samples_us=tuple(us)) for us in (ours, theirs)
    )
    forth, back = ratio(a, b, interleaved=interleaved), ratio(b, a, interleaved=interleaved)
    assert forth is not None
    assert back is not None
    assert not (forth.above and forth.below)
    assert not (forth.above and back.above)
