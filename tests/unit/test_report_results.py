"""The closing table, progress and plan as data and text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.executor.base import DeviceClock
from blockscale.hardware import H200
from blockscale.problem import Candidate, GemmShape, Kernel, Problem, TileConfig, Trial, TrialStatus, WeightShape
from blockscale.report.closing import closing_text
from blockscale.report.lines import json_line, plain_line
from blockscale.report.plan import Plan, plan_lines
from blockscale.report.progress import Progress, format_seconds, progress_lines
from blockscale.report.results import geometric_mean, outcome_lines, result_table, roofline_share, speed_up
from blockscale.report.table import Column, Table, display_width, render_table
from blockscale.selection import Outcome
from blockscale.tuning.events import (
    FileWritten,
    Note,
    ProblemResult,
    ProblemStarted,
    RunStarted,
    RunSummary,
    TimeSpent,
    TrialFinished,
)
from blockscale.tuning.request import TuneRequest

CONFIG = TileConfig(16, 64, 128, 1, 4, 4, swap_ab=True, split_k=8)
GOLDEN = Path(__file__).parents[1] / "golden" / "closing_table.txt"


def a_result(m=16, engine="sglang", outcome=Outcome.TUNED, time_us=8.9, baseline_us=33.4, config=CONFIG):
    problem = Problem(GemmShape(m, 2112, 7168))
    entry = config.to_entry() if config else None
    return ProblemResult(engine, problem, outcome, entry, time_us, baseline_us, H200.roofline_us(problem), "why", 118)


NO_CANDIDATE = a_result(1024, outcome=Outcome.NO_VALID_CANDIDATE, time_us=None, baseline_us=None, config=None)
KEPT = a_result(256, outcome=Outcome.KEPT, time_us=34.2, baseline_us=34.2, config=TileConfig(64, 128, 128, 32, 4, 3))


def a_summary(*results):
    return RunSummary(700, 12, (Path("configs/sglang/N=2112,K=7168.json"),), results, complete=True)


def test_closing_text_is_the_golden_one():
    text = closing_text(
        a_summary(a_result(), KEPT, NO_CANDIDATE, a_result(1, baseline_us=None)),
        (),
        {"sglang 0.5.23": ["Restart the server."]},
    )
    assert text + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_several_engines_get_a_column_and_approximate_times_a_mark():
    there = a_result(engine="vllm")
    approximate = {("vllm", there.problem)}
    table = result_table([a_result(), there, a_result(64, engine="vllm")], approximate)
    assert table.columns[0].title == "engine"
    assert "≈8.9" not in table.rows[0]
    assert table.rows[1][4] == "≈8.9"
    assert table.rows[2][4] == "8.9", "another problem of the engine was measured on its own kernel"
    assert "approximate: vllm" in closing_text(a_summary(there), approximate, {})


def test_mean_is_geometric_and_leaves_out_rows_without_a_baseline():
    rows = [
        a_result(time_us=10.0, baseline_us=40.0),
        a_result(time_us=10.0, baseline_us=10.0),
        a_result(baseline_us=None),
    ]
    assert "over 2 problems: 2.00×" in outcome_lines(rows)[0]
    assert geometric_mean([]) is None


def test_speed_up_and_roofline_share_need_both_figures():
    assert speed_up(a_result(time_us=10.0, baseline_us=20.0)) == 2.0
    assert speed_up(NO_CANDIDATE) is None
    assert roofline_share(NO_CANDIDATE) is None
    share = roofline_share(a_result())
    assert share is not None
    assert 0.3 < share < 0.5


def test_table_aligns_figures_right_and_leaves_no_trailing_space():
    text = render_table(
        Table((Column("a"), Column("µs", figures=True), Column("c")), (("×", "1.0", ""), ("yy", "10.0", "z")))
    )
    assert text.splitlines() == ["a     µs  c", "──  ────  ─", "×    1.0", "yy  10.0  z"]


@pytest.mark.parametrize(("text", "cells"), [("µs", 2), ("e\u0301", 1), ("模型", 4)])
def test_width_counts_terminal_cells(text, cells):
    assert display_width(text) == cells


def a_clock(*seconds):
    times = iter(seconds)
    return lambda: next(times)


A_TIME = TimeSpent(84.0, 30.0, DeviceClock(6.0, 40.0, 21.0, 17.0, 430.0, 900, 15))


def a_trial(problem, labels=()):
    return Trial(problem, Candidate(Kernel.FP8_HOPPER, CONFIG), TrialStatus.OK, samples_us=(9.0,), labels=labels)


def test_progress_counts_candidates_and_estimates_from_cost_done():
    small, large = Problem(GemmShape(1, 4608, 7168)), Problem(GemmShape(4096, 4608, 7168))
    progress = Progress([small, large], engines=1, clock=a_clock(0.0, 50.0, 50.0))
    progress.update(RunStarted(H200, ("sglang",), 2))
    progress.update(ProblemStarted("sglang", large, 1))
    progress.update(TrialFinished("sglang", a_trial(large), False, 9.0, 34.0))
    view = progress.view()
    assert (view.tried, view.best_us, view.baseline_us, view.done, view.total) == (1, 9.0, 34.0, 0, 2)
    assert view.left_s is None
    progress.update(ProblemResult("sglang", large, Outcome.TUNED, CONFIG.to_entry(), 9.0, 34.0, 3.6, "", 1))
    # The small problem costs 6 ms a candidate, the large one 8.5 ms: 50 s done leave 35 s.
    assert progress.view().left_s == pytest.approx(35.3, rel=0.01)


def test_progress_shows_the_problem_heard_of_last_of_those_under_way():
    small, large = Problem(GemmShape(1, 4608, 7168)), Problem(GemmShape(4096, 4608, 7168))
    progress = Progress([small, large], engines=1, clock=lambda: 0.0)
    for index, problem in enumerate((large, small), 1):
        progress.update(ProblemStarted("sglang", problem, index))
    progress.update(TrialFinished("sglang", a_trial(large), False, 90.0, 340.0))
    progress.update(TrialFinished("sglang", a_trial(small), False, 9.0, 34.0))
    progress.update(TrialFinished("sglang", a_trial(large), False, 80.0, 340.0))
    view = progress.view()
    assert (view.problem, view.tried, view.best_us, view.under_way) == (large, 2, 80.0, 2)
    progress.update(ProblemResult("sglang", large, Outcome.TUNED, CONFIG.to_entry(), 80.0, 340.0, 3.6, "", 2))
    assert (progress.view().under_way, progress.view().done) == (1, 1)


def test_live_lines_name_problem_best_baseline_and_time_left():
    problem = Problem(GemmShape(16, 2112, 7168))
    progress = Progress([problem], engines=1, clock=a_clock(0.0, 1.0, 2.0))
    assert progress_lines(progress.view()) == ["device: preparing"]
    progress.update(RunStarted(H200, ("sglang",), 1))
    progress.update(ProblemStarted("sglang", problem, 1))
    progress.update(TrialFinished("sglang", a_trial(problem, ("approximate",)), False, 9.0, 36.0))
    text = "\n".join(progress_lines(progress.view()))
    for part in (
        "M=16 2112×7168",
        "NVIDIA H200",
        "≈9.0",
        "≈36.0",
        "4.00×",
        "1 candidate tried",
        "0 of 1",
        "1 under way",
    ):
        assert part in text


def test_a_finished_problem_is_one_line_that_says_how_it_ended():
    progress = Progress([], engines=1, clock=lambda: 0.0)
    assert "33.4 → 8.9 µs (3.75×)" in progress.result_line(a_result())
    assert "kept" in progress.result_line(KEPT)
    assert "no valid candidate among 118" in progress.result_line(NO_CANDIDATE)


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")])
def test_seconds_are_readable(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("event", "keys"),
    [
        (RunStarted(H200, ("sglang",), 2), {"event", "device", "engines", "problems", "gpus"}),
        (FileWritten("vllm", Path("x.json"), (1, 16)), {"event", "engine", "path", "keys", "serves"}),
        (Note("mended"), {"event", "text"}),
        (
            a_result(),
            {
                "event",
                "M",
                "N",
                "K",
                "engine",
                "config",
                "time_us",
                "baseline_us",
                "roofline_us",
                "status",
                "reason",
                "screened",
            },
        ),
        (
            A_TIME,
            {
                "event",
                "wall_s",
                "computing_s",
                "start_s",
                "screening_s",
                "finals_s",
                "idle_s",
                "compiling_s",
                "compilations",
                "compile_workers",
                "recorded",
                "gpus",
            },
        ),
        (a_summary(a_result()), {"event", "trials_measured", "trials_reused", "files", "problems", "complete"}),
    ],
)
def test_json_lines_have_fixed_keys(event, keys):
    line = json_line(event)
    assert line is not None
    assert "\n" not in line
    assert set(json.loads(line)) == keys


def test_one_line_says_where_the_time_went():
    assert plain_line(A_TIME) == (
        "Time: 84 s: start 6, compiling 430 CPU s on 15 workers (34% busy), GPU 61 s measuring "
        "(screens 40, finals 21), idle 17 s, search and store 30 s"
    )
    replayed = TimeSpent(2.0, 1.5, DeviceClock(screening_s=40, finals_s=21, compiling_s=430, recorded=True))
    assert plain_line(replayed) == (
        "Time: 2 s; as recorded, GPU 61 s measuring (screens 40, finals 21), compiling 430 CPU s"
    )
    several = replace(A_TIME, device=replace(A_TIME.device, gpus=2), device_name="NVIDIA H200")
    assert "Time of NVIDIA H200: 84 s" in plain_line(several)
    assert "2 GPUs together 61 s measuring (screens 40, finals 21), idle 17 s together" in plain_line(several)
    assert json.loads(json_line(several) or "")["device"] == "NVIDIA H200"


def test_json_tells_notes_from_warnings_and_leaves_single_trials_out():
    assert json.loads(json_line(Note("a")) or "")["event"] == "note"
    assert json.loads(json_line(Note("a", warning=True)) or "")["event"] == "warning"
    assert json_line(TrialFinished("sglang", a_trial(a_result().problem), False, None, None)) is None


def a_plan(**changes):
    request = TuneRequest((WeightShape(2112, 7168),), (1, 4096), (("sglang", Path("out")),), **changes)
    return Plan(request, H200, candidates=100, cpus=10)


def test_plan_says_what_where_and_at_most_how_long():
    text = "\n".join(plan_lines(a_plan()))
    for part in ("NVIDIA H200", "2112×7168", "1 4096", "sglang: out", "2 problems", "100 candidates"):
        assert part in text
    # 200 compiles at 0.45 CPU-seconds on 10 CPUs outlast the measuring.
    assert a_plan().expected_s == pytest.approx(9.0)
    assert a_plan(time_budget_s=3.0).expected_s == 3.0


WORDS = "DeepGEMM outranks Triton where it is installed (SGLANG_ENABLE_JIT_DEEPGEMM=0 turns it off): measure your load."


@pytest.mark.parametrize("width", [66, 80, 100])
def test_the_end_of_a_run_fits_the_terminal(width):
    text = closing_text(a_summary(a_result(), KEPT, NO_CANDIDATE), (), {"sglang 0.5.23": [WORDS]}, width)
    assert all(display_width(line) <= width for line in text.splitlines())
    assert "% of roofline" in text
    assert ("config" in text.splitlines()[0]) == (width >= 97)
    assert " ".join(text.split()).endswith(WORDS)


def test_a_narrow_table_loses_optional_columns_only_the_last_first():
    columns = (Column("aaaa"), Column("bbbb", optional=True), Column("cccc"), Column("dddd", optional=True))
    table = Table(columns, (("1", "2", "3", "4"),))
    titles = [render_table(table, width).splitlines()[0] for width in (None, 22, 21, 15, 2)]
    assert titles == ["aaaa  bbbb  cccc  dddd"] * 2 + ["aaaa  bbbb  cccc", "aaaa  cccc", "aaaa  cccc"]


def test_a_narrow_line_of_a_result_keeps_its_times():
    progress = Progress([Problem(GemmShape(16, 2112, 7168))], 1, lambda: 0.0)
    whole, narrow, narrowest = (progress.result_line(a_result(), width) for width in (None, 85, 60))
    assert whole.endswith("· 118 tried")
    assert whole.startswith(narrow)
    assert narrow.endswith("split8")
    assert narrowest.endswith("33.4 → 8.9 µs (3.75×)")
