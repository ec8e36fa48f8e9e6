"""What each weight of a run is for, as table, JSON and in the closing text."""

import json
from pathlib import Path

import pytest

from blockscale.problem import WeightShape
from blockscale.report.closing import closing_text
from blockscale.report.lines import json_line
from blockscale.report.weights import DevicePlan, PlannedWeight, Use, weights_table
from blockscale.tuning.events import FileWritten, RunSummary

BOTH = ("sglang", "vllm")
FUSED, OUT, QUERY = WeightShape(2112, 7168), WeightShape(7168, 2048), WeightShape(1536, 7168)


def use(engine, *layers, model="V3", tp_size=8):
    return Use(engine, model, tp_size, layers, 61)


def titles(plan):
    return [column.title for column in weights_table(plan).columns]


def test_columns_that_say_nothing_are_left_out():
    plain = DevicePlan("NVIDIA H200", (16,), (PlannedWeight(FUSED, ("sglang",)),))
    assert titles(plain) == ["shape (N×K)"]
    assert not plain.says_more_than_sizes
    used = DevicePlan("NVIDIA H200", (16,), (PlannedWeight(FUSED, ("sglang",), (use("sglang", "a"),)),))
    assert titles(used) == ["shape (N×K)", "model", "TP", "layers", "per model"]
    assert used.says_more_than_sizes


def test_engines_that_agree_share_a_row_and_others_are_named():
    weights = (
        PlannedWeight(FUSED, BOTH, (use("sglang", "a_with_mqa"), use("vllm", "a"))),
        PlannedWeight(OUT, BOTH, (use("sglang", "o"), use("vllm", "o"), use("sglang", "o", tp_size=4))),
        PlannedWeight(QUERY, ("vllm",), (use("vllm", "q_a"),), {"vllm": True}),
    )
    plan = DevicePlan("NVIDIA H200", (16,), weights)
    assert titles(plan)[-2:] == ["only for", "shipped by"]
    assert [row[:4] for row in weights_table(plan).rows] == [
        ("2112×7168", "V3", "8", "a_with_mqa (sglang)"),
        ("", "V3", "8", "a (vllm)"),
        ("7168×2048", "V3", "8", "o"),
        ("", "V3", "4", "o"),
        ("1536×7168", "V3", "8", "q_a"),
    ]
    assert [row[-2:] for row in weights_table(plan).rows if row[0]] == [("", "–"), ("", "–"), ("vllm", "vllm")]


def test_launches_are_shown_as_shares():
    weights = (PlannedWeight(FUSED, ("vllm",), launches=30), PlannedWeight(OUT, ("vllm",), launches=10))
    plan = DevicePlan("NVIDIA H200", (1, 16), weights)
    assert weights_table(plan).rows == (("2112×7168", "75.0%"), ("7168×2048", "25.0%"))
    event = json.loads(json_line(plan) or "")
    assert event["event"] == "plan"
    assert event["batch_sizes"] == [1, 16]
    assert [w["launches_share"] for w in event["weights"]] == [0.75, 0.25]


def test_the_plan_event_tells_unknown_from_not_shipped():
    plan = DevicePlan("NVIDIA H200", (16,), (PlannedWeight(FUSED, BOTH, (use("vllm", "a"),), {"sglang": False}),))
    (weight,) = json.loads(json_line(plan) or "")["weights"]
    assert weight == {
        "N": 2112,
        "K": 7168,
        "engines": ["sglang", "vllm"],
        "shipped": {"sglang": False, "vllm": None},
        "launches": None,
        "launches_share": None,
        "serves": [{"engine": "vllm", "model": "V3", "tp_size": 8, "layers": ["a"], "count": 61}],
    }


@pytest.mark.parametrize("width", [None, 60])
def test_a_file_is_followed_by_what_it_serves(width):
    path = Path("out/N=7168,K=2048.json")
    uses = [use("vllm", "shared_experts.down_proj", "o_proj"), use("vllm", "o_proj", model="V3.2", tp_size=16)]
    text = closing_text(RunSummary(1, 0, (path,), (), complete=True), (), {}, width, {path: uses})
    after = " ".join(text.split("Files\n")[1].split())
    assert after == (f"{path} serves V3 TP 8: shared_experts.down_proj, o_proj serves V3.2 TP 16: o_proj")
    event = json.loads(json_line(FileWritten("vllm", path, (16,)), {path: uses}) or "")
    assert [(u["model"], u["tp_size"]) for u in event["serves"]] == [("V3", 8), ("V3.2", 16)]
