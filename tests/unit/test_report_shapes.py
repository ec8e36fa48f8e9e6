"""The listing of a model's shapes as table and JSON."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.cli.main import main
from blockscale.problem import QuantFormat, QuantScheme, WeightShape
from blockscale.report.shapes import (
    SHARE_BATCH_SIZES,
    heading,
    launch_bytes,
    launches_json,
    launches_table,
    listings_json,
    note_lines,
    shapes_table,
    shares,
)
from blockscale.shapes import PRESETS, LayerShape, ModelShapes, Parallelism, RefusedLayer

GOLDEN = Path(__file__).parents[1] / "golden"
QKV = LayerShape("qkv_proj", 1280, 5120, "N", 64)
OUT = LayerShape("o_proj", 5120, 1024, "K", 64, note="after attention")
REFUSED = RefusedLayer("mlp.down_proj", "input: 25600/16 = 1600 is no multiple of block_k = 128", (1, 2, 4, 8))


def a_listing(*shapes, refused=(), parallelism=None, unverified=None, notes=()):
    return ModelShapes("some", parallelism or Parallelism(8), QuantScheme(), shapes, refused, notes, unverified)


def listed(capsys, *arguments):
    code = main(["shapes", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("form", ["txt", "json"])
def test_deepseek_v3_at_tp_8_is_the_golden_listing(form, capsys):
    given = ["deepseek-v3", "--tp-size", "8", "--engine", "sglang", "--engine-version", "0.5.23"]
    code, out, err = listed(capsys, *given, *(["--json"] if form == "json" else []))
    assert (code, err) == (0, "")
    golden = (GOLDEN / f"shapes_deepseek_v3_tp8.{form}").read_text(encoding="utf-8")
    if form == "json":
        assert json.loads(out) == json.loads(golden)
    else:
        assert out == golden


def test_bytes_are_operands_scales_and_output():
    assert launch_bytes(WeightShape(2112, 7168), QuantScheme(), 16) == (
        2112 * 7168 + 16 * 7168 + 4 * (17 * 56 + 16 * 56) + 2 * 16 * 2112
    )


SIZES = st.integers(1, 40000)


@given(st.lists(st.builds(LayerShape, st.just("x"), SIZES, SIZES, st.just("N"), st.integers(1, 100)), max_size=6))
def test_shares_are_parts_of_one_whole(layers):
    found = shares(a_listing(*layers))
    assert len(found) == len(layers)
    for parts in ([s.flops for s in found], *([s.bytes_moved[m] for s in found] for m in SHARE_BATCH_SIZES)):
        assert all(0 < part <= 1 for part in parts)
        assert sum(parts) == pytest.approx(1.0 if layers else 0.0)


def test_a_layer_twice_as_frequent_has_twice_the_share():
    often, once = shares(a_listing(LayerShape("a", 512, 512, "N", 2), LayerShape("b", 512, 512, "N", 1)))
    assert often.flops == pytest.approx(2 * once.flops)
    assert often.bytes_moved[16] == pytest.approx(2 * once.bytes_moved[16])


def test_the_heading_says_how_the_model_is_spread_and_what_is_unverified():
    text = heading(
        a_listing(QKV, parallelism=Parallelism(8, 4, True), unverified="no source was found"), "sglang 0.5.23"
    )
    first, second = text.splitlines()
    for part in ("some", "size 8", "expert-parallel size 4", "attention", "fp8", "128×128", "sglang 0.5.23"):
        assert part in first
    assert second == "UNVERIFIED: no source was found"
    assert "UNVERIFIED" not in heading(a_listing(QKV), None)
    assert "128×128 (ASSUMED" in heading(a_listing(QKV), None, assumed=True)


def test_a_note_names_its_layers_once():
    twice = LayerShape("q_proj", 1, 1, "N", 1, note="after attention")
    assert note_lines(a_listing(OUT, QKV, twice, notes=("of all",))) == ["o_proj, q_proj: after attention", "of all"]


def test_json_rows_name_model_and_tp_size_however_many_there_are():
    two = [a_listing(QKV, OUT), a_listing(QKV, refused=(REFUSED,), parallelism=Parallelism(16), unverified="why")]
    found = listings_json([(each, None) for each in two], {"vllm": "0.33.0"})
    assert set(found) == {"listings", "shapes", "refused"}
    assert [(r["model"], r["tp_size"], r["layer"]) for r in found["shapes"]] == [
        ("some", 8, "qkv_proj"),
        ("some", 8, "o_proj"),
        ("some", 16, "qkv_proj"),
    ]
    assert {"N", "K", "split", "count", "note", "flops_share", "bytes_share"} < set(found["shapes"][0])
    assert found["refused"] == [
        {
            "model": "some",
            "tp_size": 16,
            "layer": "mlp.down_proj",
            "reason": REFUSED.reason,
            "tp_sizes_that_work": [1, 2, 4, 8],
        }
    ]
    assert [listing["unverified"] for listing in found["listings"]] == [None, "why"]
    assert found["listings"][0]["engines"] == {"vllm": "0.33.0"}
    assert set(listings_json([(two[0], None)])) == set(found), "one model reads the same way"


def test_a_listing_without_any_layer_has_a_table_too():
    assert shapes_table(a_listing()).rows == ()
    assert listings_json([(a_listing(), None)])["shapes"] == []


LAUNCHES = {WeightShape(2112, 7168): {16: 30, 1: 30}, WeightShape(7168, 2048): {1: 20}, WeightShape(512, 7168): {}}


def test_launches_of_a_log_are_counted_by_batch_size_and_shared_out():
    rows = launches_table(LAUNCHES).rows
    assert rows[0] == ("2112", "7168", "75.0%", "1 (30), 16 (30)")
    assert rows[2] == ("512", "7168", "–", "–"), "the log names no M for it"
    found = launches_json(LAUNCHES, QuantScheme(QuantFormat.INT8), ["vllm"], ["a note"])
    assert found["shapes"][0]["launches"] == {"1": 30, "16": 30}
    assert found["shapes"][1]["launches_share"] == 0.25
    assert found["shapes"][2]["launches_share"] is None
    assert found["listings"][0]["quantization"]["format"] == "int8"
    assert found["listings"][0]["engines"] == {"vllm": None}
    assert launches_json({}, None, (), ())["listings"][0]["quantization"] is None


def test_a_refused_layer_is_named_on_stderr_and_the_rest_is_listed(capsys):
    code, out, err = listed(capsys, "deepseek-v3", "--tp-size", "32")
    assert code == 2
    assert "q_b_proj" in out
    assert "gate_up_proj" not in out
    lines = err.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("blockscale: error: ") for line in lines)
    for part in ("gate_up_proj", "18432/32 = 576", "block_n = 128", "TP sizes that work: 1, 2, 4, 8, 16."):
        assert part in lines[0]


def test_several_models_and_tp_sizes_are_listed_one_after_the_other(capsys):
    code, out, err = listed(capsys, "--tp-size", "8", "32", "deepseek-v3")
    assert code == 2
    assert [line for line in out.splitlines() if line.startswith("deepseek-v3 at")] == [
        f"deepseek-v3 at tensor-parallel size {tp}, fp8 in blocks of 128×128" for tp in (8, 32)
    ]
    assert "11 distinct shapes" in out
    assert all("deepseek-v3 at tensor-parallel size 32: " in line for line in err.splitlines())


UNQUANTISED = {key: value for key, value in PRESETS["deepseek-v3"].items() if key != "quantization_config"}


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (None, "not quantised (bfloat16)"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "fp8"}, "fp8"),
    ],
)
def test_a_model_without_block_quantisation_is_said_to_be_so_and_listed_as_if_it_were(declared, said, tmp_path, capsys):
    path = tmp_path / "plain.json"
    path.write_text(json.dumps({**UNQUANTISED, "torch_dtype": "bfloat16", "quantization_config": declared}))
    code, out, err = listed(capsys, str(path), "--tp-size", "8", "--json")
    assert code == 2
    assert err.count("\n") == 1
    for part in ("plain", said, "--quantization fp8-block"):
        assert part in err
    found = json.loads(out)
    assert found["listings"][0]["quantization_refused"] in err
    whole = json.loads(listed(capsys, "deepseek-v3", "--tp-size", "8", "--json")[1])
    assert [(r["N"], r["K"]) for r in found["shapes"]] == [(r["N"], r["K"]) for r in whole["shapes"]]
    assert listed(capsys, str(path), "--tp-size", "8")[1].startswith("plain at tensor-parallel size 8, fp8 in blocks")
    code, out, err = listed(capsys, str(path), "--tp-size", "8", "--json", "--quantization", "fp8-block")
    assert (code, err) == (0, "")
    assert json.loads(out)["listings"][0]["quantization_refused"] is None
    assert main(["tune", str(path), "--device", "recorded:h200", "--yes"]) == 2
    assert said in capsys.readouterr().err


def test_what_cannot_be_listed_of_several_models_is_named(tmp_path, capsys):
    (tmp_path / "new.json").write_text('{"architectures": ["NewForCausalLM"]}')
    code, _, err = listed(capsys, "deepseek-v3", str(tmp_path / "new.json"))
    assert code == 2
    assert err.startswith("blockscale: error: new: the model is not quantised")


def test_two_models_of_one_name_are_told_apart(tmp_path, capsys):
    paths = [tmp_path / folder / "fp8" for folder in ("small", "large")]
    for path, layers in zip(paths, (4, 8), strict=True):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(PRESETS["deepseek-v3"] | {"num_hidden_layers": layers}))
    _, out, _ = listed(capsys, *map(str, paths), "--json")
    rows = json.loads(out)["shapes"]
    assert {(r["model"], r["count"]) for r in rows if r["layer"] == "o_proj"} == {
        (str(paths[0]), 4),
        (str(paths[1]), 8),
    }


def test_models_of_one_family_share_shapes(published_data, capsys):
    models = [str(published_data / "models" / f"deepseek-ai--DeepSeek-V3{minor}.json") for minor in ("", ".2")]
    code, out, _ = listed(capsys, *models, "--tp-size", "8", "--json")
    assert code == 0
    rows = json.loads(out)["shapes"]
    by_model = {name: {(r["N"], r["K"]) for r in rows if r["model"] == name} for name in {r["model"] for r in rows}}
    v3, v32 = sorted(by_model, key=len)
    assert by_model[v32] - by_model[v3] == {(8192, 1536)}
    assert by_model[v3] < by_model[v32]
