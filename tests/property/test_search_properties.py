"""What a run relies on in the default search, whatever the landscape, the failures, the priors and the knowledge."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from blockscale.costmodel import ConfigArrays, CostModel, analytic_us, embedded_portfolio
from blockscale.hardware import H200, DeviceSpec, Vendor
from blockscale.problem import GemmShape, Problem, QuantScheme, TileConfig
from blockscale.search import DEFAULT_TRIALS, Knowledge, make_strategy
from blockscale.space import Space, build_space

MI300X = DeviceSpec("AMD Instinct MI300X", Vendor.HIP, "gfx942", 304, 65_536, 131_072, 1024, 64, 4 << 20, 192 << 30)
PROBLEMS = [
    Problem(GemmShape(1, 2112, 7168)),
    Problem(GemmShape(300, 576, 1000)),
    Problem(GemmShape(4096, 4608, 7168), QuantScheme(block_k=64)),
]
Clock = Callable[[TileConfig], float | None]


@cache
def space_of(problem: Problem, spec: DeviceSpec) -> Space:
    return build_space(problem, spec, hopper=spec is H200)


@cache
def model_of(spec: DeviceSpec, informed: bool) -> CostModel:
    return CostModel(spec, embedded_portfolio() if informed else None)


@cache
def expected_us(problem: Problem, config: TileConfig, spec: DeviceSpec) -> float:
    return float(analytic_us(problem, ConfigArrays.of([config], problem.quant, spec), spec)[0])


@dataclass(frozen=True)
class Case:
    """A search and the GPU that it runs on: the clock's times off by up to a factor, and a share that fails."""

    problem: Problem
    spec: DeviceSpec
    informed: bool
    priors: int
    known: int
    off: float
    failing: float
    seed: int

    @property
    def space(self) -> Space:
        return space_of(self.problem, self.spec)

    def clock(self, config: TileConfig) -> float | None:
        chance = random.Random(f"{self.seed} {config}")
        if chance.random() < self.failing:
            return None
        return expected_us(self.problem, config, self.spec) * self.off ** chance.uniform(-1, 1)

    def knowledge(self) -> list[Knowledge]:
        """Of other problems: times of a few configs each, some of which are not legal on this one."""
        found = []
        for problem in [p for p in PROBLEMS if p != self.problem][: self.known]:
            drawn = space_of(problem, self.spec).sample(random.Random(self.seed), 30)
            times = {config: expected_us(problem, config, self.spec) for config in drawn}
            found.append(Knowledge(problem, times))
        return found

    def some_priors(self) -> list[TileConfig]:
        """Spelled in any way, legal or not."""
        chance = random.Random(self.seed)
        return [
            TileConfig(
                chance.choice((8, 16, 64, 256)), chance.choice((32, 256)), chance.choice((64, 128, 512)), group_m=7
            )
            for _ in range(self.priors)
        ]


cases = st.builds(
    Case,
    problem=st.sampled_from(PROBLEMS),
    spec=st.sampled_from([H200, MI300X]),
    informed=st.booleans(),
    priors=st.integers(0, 3),
    known=st.integers(0, 2),
    off=st.sampled_from([1.0, 1.3, 5.0]),
    failing=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    seed=st.integers(0, 1000),
)


def asked(
    case: Case,
    at_once: Iterable[int],
    *,
    trials: int | None = None,
    knowledge: list[Knowledge] | None = None,
) -> list[TileConfig]:
    """Every config that a fresh search asks for, in order, when asked for so many at a time, over and over."""
    knowledge = case.knowledge() if knowledge is None else knowledge
    model = model_of(case.spec, case.informed and case.spec is H200)
    search = make_strategy("auto", case.space, case.some_priors(), trials, case.seed, knowledge, model)
    found: list[TileConfig] = []
    sizes = list(at_once)
    while batch := search.ask(sizes[len(found) % len(sizes)]):
        assert len(batch) <= max(sizes)
        for config in batch:
            search.tell(config, case.clock(config))
        found += batch
    return found


@given(cases, st.integers(1, 80))
def test_no_config_is_asked_twice_and_each_is_legal_and_canonical_and_within_the_bound(case, trials):
    found = asked(case, [16], trials=trials)
    assert len(set(found)) == len(found) <= trials
    for config in found:
        assert case.space.reason(config) is None
        assert case.space.canonical(config) == config
    legal = [case.space.canonical(c) for c in case.some_priors() if case.space.reason(c) is None]
    assert found[: len(set(legal))] == list(dict.fromkeys(legal))[:trials]


@given(cases, st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_the_same_is_asked_however_many_are_asked_for_at_once(case, at_once):
    whole = asked(case, [10_000])
    assert whole == asked(case, at_once)
    assert len(whole) <= DEFAULT_TRIALS["auto"]


@given(cases, st.randoms(use_true_random=False))
def test_the_same_knowledge_leads_to_the_same_asks_in_whatever_order_it_was_found(case, chance):
    def shuffled(known: Knowledge) -> Knowledge:
        times = list(known.times.items())
        chance.shuffle(times)
        return Knowledge(known.problem, dict(times))

    again = [shuffled(known) for known in case.knowledge()]
    assert asked(case, [16], knowledge=again) == asked(case, [16])


@given(cases, st.integers(1, 40))
def test_a_smaller_bound_asks_the_beginning_of_what_a_larger_one_does(case, trials):
    assert asked(case, [16], trials=trials) == asked(case, [16])[:trials]
