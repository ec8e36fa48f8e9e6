"""What the benchmark scripts work out from what was measured; the measuring itself needs a GPU."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.hardware import H200
from blockscale.measure.protocol import Measured
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, TrialStatus
from blockscale.shapes import Parallelism, layer_shapes, load_model
from blockscale.tuning.request import STOCK_BATCH_SIZES

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import compare_runs  # noqa: E402
import plots  # noqa: E402
import stock_method  # noqa: E402
import whole_model  # noqa: E402

ENTRY = TileConfig(64, 128, 128, group_m=1, num_stages=4).to_entry()


def run_whole_model(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "whole_model.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_cold_run_is_measured_whole_and_leaves_its_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("2112x7168", "--batch-sizes", "1", "64", "--device", "recorded:h200", "--out", str(out))
    done = run_whole_model(*arguments)
    assert done.returncode == 0, done.stderr
    run = json.loads((out / "run.json").read_text())
    assert run["complete"]
    assert {(row["M"], row["N"], row["K"]) for row in run["problems"]} == {(1, 2112, 7168), (64, 2112, 7168)}
    assert all(row["time_us"] <= row["default_us"] for row in run["problems"])
    assert [file["name"] for file in run["files"]] == [path.name for path in (out / "configs").glob("*.json")]
    assert sum(run["parts_s"].values()) == pytest.approx(run["wall_s"])
    assert sum(whole_model.time_split(run).values()) == pytest.approx(run["wall_s"])
    again = run_whole_model(*arguments)
    assert again.returncode == 2
    assert "not empty" in again.stderr


def test_a_run_is_rehearsed_on_several_gpus(tmp_path: Path) -> None:
    arguments = ["7168x256", "--batch-sizes", "16", "--device", "recorded:h200", "--out", str(tmp_path / "run")]
    assert run_whole_model(*arguments).returncode == 0
    script = [sys.executable, str(BENCHMARKS / "rehearse_gpus.py"), str(tmp_path / "run"), "--gpus", "1", "2"]
    done = subprocess.run(
        [*script, "--compilers", "8", "--json", str(tmp_path / "r.json")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["gpus"] for row in rows] == [1, 2]
    assert all(row["run_s"] >= row["at_work_s"] > 0 for row in rows)


def test_the_job_of_a_model_is_what_the_model_launches() -> None:
    launched = layer_shapes(load_model("deepseek-v3"), Parallelism(8))
    assert set(whole_model.weights_of("deepseek-v3")) == set(launched.weights)


def test_wall_time_is_split_without_rest() -> None:
    parts = whole_model.parts(10.0, {"opening": 11.0, "run": 14.0, "closing": 90.0, "exit": 91.0}, 91.5)
    assert parts == {"starting": 1.0, "opening": 3.0, "run": 76.0, "closing": 1.0, "exit": 0.5}


def stock_job() -> list[GemmShape]:
    return [GemmShape(m, w.N, w.K) for w in whole_model.weights_of("stock") for m in STOCK_BATCH_SIZES]


def compiled(seconds: Sequence[float]) -> list[stock_method.Compiled]:
    return [stock_method.Compiled("", 1, 512, 7168, each) for each in seconds]


def test_the_stock_job_is_extrapolated_by_kernels_and_by_problems() -> None:
    timed = [
        stock_method.Timed("", m, w.N, w.K, 0.01, 1.0) for m in stock_method.BATCH_SIZES for w in stock_method.WEIGHTS
    ]
    found = stock_method.extrapolated(compiled([1.0, 2.0, 3.0]), timed, stock_job(), configs=1280)
    assert found.kernels == 6 * 1280
    assert found.compiling_s == pytest.approx(6 * 1280 * 2.0)
    assert found.compiling_error_s == pytest.approx(6 * 1280 * 1.0 / 3**0.5)
    assert found.timing_s == pytest.approx(13 * 18 * 1280 * 0.01)


@given(st.dictionaries(st.integers(1, 10**9), st.floats(1e-6, 1e3), min_size=1), st.integers(1, 10**9))
def test_an_interpolated_cost_passes_through_the_points_and_never_vanishes(points: dict[int, float], x: int) -> None:
    for at, value in points.items():
        assert stock_method.line(points, at) == pytest.approx(value)
    assert stock_method.line(points, x) > 0


def run_of(config: dict[str, Any], sizes: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    problems = [{"M": m, "N": n, "K": k, "config": config} for m, n, k in sizes]
    return {"engine": "sglang", "engine_version": "0.5.23", "problems": problems}


def test_entries_that_launch_the_same_are_one_choice() -> None:
    run_a, run_b = (
        run_of(ENTRY, [(16, 512, 7168), (1, 512, 7168)]),
        run_of(ENTRY | {"GROUP_SIZE_M": 32}, [(16, 512, 7168)]),
    )
    (pair,) = compare_runs.pairs_of(run_a, run_b, H200)  # one row of tiles: groups mean nothing
    assert pair.a == pair.b
    row = compare_runs.measure(None, pair)
    assert (row.status, row.ratio) == ("equal", 1.0)


class FakeSession:
    def __init__(self, results: Sequence[Measured | None]) -> None:
        self.results = results

    def finals(self, problem: Problem, candidates: Sequence[Candidate]) -> Sequence[Measured | None]:
        return self.results


def pair_of_two() -> compare_runs.Pair:
    configs = [TileConfig(64, n, 128) for n in (64, 128)]
    return compare_runs.Pair(Problem(GemmShape(16, 512, 7168)), *(Candidate(Kernel.FP8, c) for c in configs))


def test_a_pair_is_compared_round_by_round_and_against_itself() -> None:
    # The clock steps down after the first round.
    samples = [(10.0, 20.0, 20.0), (9.0, 18.0, 18.0), (10.0, 20.0, 21.0)]
    session = FakeSession([Measured(TrialStatus.OK, each) for each in samples])
    row = compare_runs.measure(session, pair_of_two())
    assert row.ratio == pytest.approx(10 / 9)
    assert row.noise == pytest.approx(1.0)
    assert "1 measured" in compare_runs.report([row])


def test_a_choice_that_fails_is_named_and_has_no_ratio() -> None:
    session = FakeSession([Measured(TrialStatus.WRONG_RESULT, message="off by 3"), None, None])
    row = compare_runs.measure(session, pair_of_two())
    assert row.ratio is None
    assert "off by 3" in row.status


def test_regret_after_each_trial_keeps_the_last_of_a_run_that_has_ended() -> None:
    outcomes = [
        {"search": "auto", "gaps": [0.21, 0.0]},
        {"search": "auto", "gaps": [0.0, 0.0, 0.0]},
        {"search": "random", "gaps": [0.5]},
        {"search": "exhaustive", "gaps": [0.0] * 9},
    ]
    auto, random = plots.regret_curves(outcomes)
    assert (auto.search, auto.runs, random.search) == ("auto", 2, "random")
    assert auto.mean == pytest.approx((0.1, 0.0, 0.0))
    assert auto.worst == pytest.approx((0.21, 0.0, 0.0))
