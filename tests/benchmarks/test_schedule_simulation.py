"""The scheduling simulation and the costs that it runs on."""

import pytest
import schedule_simulation
from problem_costs import ProblemCost, derived, load, save

from blockscale.problem import GemmShape


@pytest.fixture(scope="module")
def jobs():
    return {costs.job: costs for costs in load(schedule_simulation.COSTS)}


def test_a_queue_over_8_gpus_is_95_percent_efficient_for_deepseek_v3(jobs):
    costs = jobs["deepseek-v3"]
    assert len(costs.problems) == 8 * 18
    found = schedule_simulation.simulate(costs, 8)
    assert found.queued_efficiency >= 0.95
    assert found.queued_s < min(found.contiguous_s, found.shuffled_s)
    assert found.chains_s <= found.tree_s


@pytest.mark.parametrize("gpus", [1, 3, 64])
def test_no_schedule_beats_its_bound_and_one_gpu_makes_all_equal(jobs, gpus):
    for costs in jobs.values():
        found = schedule_simulation.simulate(costs, gpus)
        spans = [found.contiguous_s, found.shuffled_s, found.queued_s, found.tree_s, found.chains_s]
        assert min(spans) >= found.bound_s * (1 - 1e-9)
        assert min(found.tree_s, found.chains_s) >= found.tree_bound_s * (1 - 1e-9)
        if gpus == 1:
            assert spans == [pytest.approx(found.bound_s)] * len(spans)


def test_the_report_says_from_where_on_problems_would_have_to_be_split(jobs):
    assert schedule_simulation.split_from([1.0, 1.0, 2.0]) == 3
    costs = jobs["stock"]
    text = schedule_simulation.report(costs, [schedule_simulation.simulate(costs, 2)])
    assert "From 20 GPUs on" in text


def test_derived_costs_add_up_to_the_runs_seconds(tmp_path):
    known = {
        shape: ProblemCost(shape.N, shape.K, shape.M, shape.N / 100, 1.0, 10, 5)
        for shape in (GemmShape(1, 100, 64), GemmShape(1, 300, 64))
    }
    rows = [{"M": 1, "N": 100, "K": 64, "screened": 20}, {"M": 1, "N": 200, "K": 64, "screened": 10}]
    found = derived({"problems": rows, "time": {"screening_s": 8.0, "finals_s": 3.0}}, known)
    assert [cost.screening_s for cost in found.values()] == [pytest.approx(4.0), pytest.approx(4.0)]
    assert sum(cost.finals_s for cost in found.values()) == pytest.approx(3.0)


def test_saved_costs_are_read_back(tmp_path, jobs):
    path = tmp_path / "costs.json"
    save(path, "NVIDIA H200", list(jobs.values()))
    assert {costs.job: costs for costs in load(path)} == jobs
