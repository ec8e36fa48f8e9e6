"""What problems learn from: a fixed order in which every job stands after its sources."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from blockscale.problem import GemmShape, Problem, WeightShape
from blockscale.tuning.plan import depths, in_order, levels, ranks, sources
from blockscale.tuning.request import STOCK_BATCH_SIZES

batch_sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=24, unique=True)
weights = st.lists(
    st.builds(WeightShape, st.integers(1, 64).map(lambda n: 128 * n), st.integers(1, 64).map(lambda k: 128 * k)),
    min_size=1,
    max_size=9,
    unique=True,
)


def jobs_of(some_weights, sizes, engines=("sglang", "vllm")):
    return [
        (name, problem)
        for w in some_weights
        for problem in in_order([Problem(GemmShape(m, w.N, w.K)) for m in sizes])
        for name in engines
    ]


@given(weights, batch_sizes, st.booleans())
def test_every_source_stands_before_its_job_and_once(some_weights, sizes, across):
    jobs = jobs_of(some_weights, sizes)
    found = sources(jobs, across_weights=across)
    assert len(found) == len(jobs)
    for i, above in enumerate(found):
        assert all(j < i for j in above)
        assert len(set(above)) == len(above)
    depth = depths(found)
    assert all(depth[j] < depth[i] for i, above in enumerate(found) for j in above)


@given(weights, batch_sizes)
def test_a_job_learns_from_all_earlier_levels_of_its_weight_the_nearest_first(some_weights, sizes):
    jobs = jobs_of(some_weights, sizes, engines=("sglang",))
    level = levels(sizes)
    for (_, problem), above in zip(jobs, sources(jobs, across_weights=True), strict=True):
        own = [jobs[i][1].shape.M for i in above if jobs[i][1].shape.weight == problem.shape.weight]
        m = problem.shape.M
        assert set(own) == {size for size in sizes if level[size] < level[m]}
        assert own == sorted(own, key=lambda size: (abs(math.log2(size) - math.log2(m)), size))


@given(weights, batch_sizes)
def test_other_weights_teach_at_the_same_batch_size_and_are_few(some_weights, sizes):
    jobs = jobs_of(some_weights, sizes)
    for (name, problem), above in zip(jobs, sources(jobs, across_weights=True), strict=True):
        others = [jobs[i] for i in above if jobs[i][1].shape.weight != problem.shape.weight]
        assert len(others) <= 3
        assert all(other == name and p.shape.M == problem.shape.M for other, p in others)
        if problem.shape.weight != some_weights[0]:
            assert others


@given(weights, batch_sizes)
def test_without_teaching_across_weights_every_weight_begins_at_once(some_weights, sizes):
    jobs = jobs_of(some_weights, sizes, engines=("sglang",))
    found = sources(jobs, across_weights=False)
    begin = [jobs[i][1].shape for i, above in enumerate(found) if not above]
    assert list(dict.fromkeys(shape.weight for shape in begin)) == some_weights
    assert all(jobs[j][1].shape.weight == jobs[i][1].shape.weight for i, above in enumerate(found) for j in above)


@given(batch_sizes)
def test_each_level_is_spread_over_the_gaps(sizes):
    level = levels(sizes)
    assert set(level) == set(sizes)
    assert level[min(sizes)] == level[max(sizes)] == 0
    assert 1 <= list(level.values()).count(0) <= 3
    for depth in range(1, max(level.values()) + 1):
        known = sorted(m for m in level if level[m] < depth)
        for low, high in pairwise(known):
            between = [m for m in level if low < m < high]
            now = [m for m in between if level[m] == depth]
            assert 1 <= len(now) <= 3 if between else not now


def test_the_stock_batch_sizes_take_three_levels():
    level = levels(STOCK_BATCH_SIZES)
    at = {n: sorted(m for m in level if level[m] == n) for n in set(level.values())}
    assert at == {0: [1, 64, 4096], 1: [2, 8, 24, 128, 512, 1536], 2: [4, 16, 32, 48, 96, 256, 1024, 2048, 3072]}


@given(weights, batch_sizes, st.booleans())
def test_ranks_are_places_and_what_holds_up_most_goes_first(some_weights, sizes, across):
    jobs = jobs_of(some_weights, sizes)
    found = sources(jobs, across_weights=across)
    rank = ranks([problem for _, problem in jobs], found)
    assert sorted(rank) == list(range(len(jobs)))
    assert all(rank[j] < rank[i] for i, above in enumerate(found) for j in above)


def test_a_later_engine_learns_first_from_the_same_problem():
    jobs = jobs_of([WeightShape(2112, 7168)], (1, 16, 64))
    found = sources(jobs, across_weights=True)
    for i, (name, problem) in enumerate(jobs):
        if name == "vllm":
            assert jobs[found[i][0]] == ("sglang", problem)
        else:
            assert all(jobs[j][0] == "sglang" for j in found[i])
