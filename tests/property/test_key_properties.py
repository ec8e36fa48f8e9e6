"""Further keys: nothing moves that may not, and where all choices can be listed none is expected to be better."""

from itertools import combinations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.costmodel import CostModel
from blockscale.engines import engine
from blockscale.hardware import H200
from blockscale.problem import GemmShape, Problem, TileConfig
from blockscale.tuning.between import Ladder
from blockscale.tuning.keys import FurtherKey, KeyFit, KeyRules

SGLANG = engine("sglang", "0.5.23")
DEFAULT = TileConfig(64, 128, 128, 1, 4, 3)
CONFIGS = [
    DEFAULT,
    TileConfig(16, 64, 128, 1, 4, 4),
    TileConfig(32, 64, 128, 1, 4, 4),
    TileConfig(64, 64, 128, 1, 4, 4),
    TileConfig(128, 64, 128, 1, 4, 4),
]


def problem_at(m: int) -> Problem:
    return Problem(GemmShape(m, 4096, 1024))


@st.composite
def ladders(draw: st.DrawFn, keys: tuple[int, ...]) -> Ladder:
    """Times at each key, of the default always, of the others mostly."""
    time_us = st.floats(1, 100)
    times = {m: {c: draw(time_us) for c in CONFIGS if c == DEFAULT or draw(st.integers(0, 3))} for m in keys}
    return Ladder(times, problem_at, CostModel(H200), DEFAULT)


def fastest(ladder: Ladder) -> dict[int, TileConfig | None]:
    return {m: min(table, key=lambda c: (table[c], c)) for m, table in ladder.times.items()}


def fit(ladder: Ladder, forced: frozenset[int] = frozenset(), **rules: float) -> KeyFit:
    return KeyFit(ladder, DEFAULT, lambda m, c: True, forced, KeyRules(**rules))


def served(entries: dict[int, TileConfig], keys: list[FurtherKey], m: int) -> TileConfig:
    everything = dict(sorted({**entries, **{k.M: k.config for k in keys}}.items()))
    return everything[SGLANG.lookup_key(list(everything), m)]


KEYS = (1, 16, 64, 96, 256, 512)


@settings(deadline=None, max_examples=25)
@given(ladders(KEYS), st.integers(0, 6))
def test_what_moves_is_the_default_or_certain_to_be_no_slower_than_it(ladder: Ladder, most: int) -> None:
    entries = fastest(ladder)
    keys = fit(ladder, most=most).further_keys(entries)
    assert len(keys) <= most
    assert not {k.M for k in keys} & set(KEYS)
    assert [k.M for k in keys] == sorted(k.M for k in keys)
    for m in range(1, 513):
        config = served(entries, keys, m)
        if config not in (served(entries, [], m), DEFAULT):
            assert ladder.at_most_us(config, m) <= ladder.at_least_us(DEFAULT, m)


@settings(deadline=None, max_examples=25)
@given(ladders(KEYS))
def test_each_further_key_says_which_sizes_it_serves(ladder: Ladder) -> None:
    entries = fastest(ladder)
    keys = fit(ladder).further_keys(entries)
    everything = sorted({*entries, *(k.M for k in keys)})
    for key in keys:
        assert [m for m in range(1, 513) if SGLANG.lookup_key(everything, m) == key.M] == list(
            range(key.first, key.last + 1)
        )


@settings(deadline=None, max_examples=25)
@given(ladders(KEYS))
def test_fitting_again_changes_nothing(ladder: Ladder) -> None:
    entries = fastest(ladder)
    keys = fit(ladder).further_keys(entries)
    assert fit(ladder, frozenset(k.M for k in keys)).further_keys(entries) == keys


@settings(deadline=None, max_examples=20)
@given(ladders((16, 32)))
def test_no_other_choice_of_keys_is_expected_to_cost_less(ladder: Ladder) -> None:
    entries = fastest(ladder)
    rules = KeyRules()
    # Between 16 and 32 times change after 24 only, so the places for a key are the sizes on both sides of 16 and 24.
    places, ends = (17, 24, 25), [24 if m <= 24 else 31 for m in range(17, 32)]
    expected = {c: dict(zip(range(17, 32), np.log(ladder.expected_us([c], ends)[0]), strict=True)) for c in CONFIGS}

    def cost(keys: dict[int, TileConfig]) -> float:
        everything = dict(sorted({**entries, **keys}.items()))
        total = rules.least_gain * len(keys)
        for m in range(17, 32):
            config = everything[SGLANG.lookup_key(list(everything), m)]
            present = entries[SGLANG.lookup_key([16, 32], m)]
            end = 24 if m <= 24 else 31
            certain = ladder.at_most_us(config, end) <= ladder.at_least_us(DEFAULT, 17 if m <= 24 else 25)
            if config != present and config != DEFAULT and not certain:
                return np.inf
            total += (expected[config][m] + (config != present) * rules.margin_uninformed) / m
        return total

    options = [
        dict(zip(chosen, configs, strict=True))
        for count in range(len(places) + 1)
        for chosen in combinations(places, count)
        for configs in product(CONFIGS, repeat=count)
        if all(ladder.known(c) for c in configs)
    ]
    chosen = {k.M: k.config for k in fit(ladder, contention=1e6).further_keys(entries)}
    assert cost(chosen) <= min(map(cost, options)) + 1e-9
