"""Arguments to weights, engines and folders; the question before a run on a GPU."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.cli import inputs, listings, question, tune
from blockscale.cli.folders import nothing_left_behind, output_folders
from blockscale.engines import InstalledEngine, engine
from blockscale.errors import InputError
from blockscale.executor.replay import ReplayDevice
from blockscale.hardware import H200
from blockscale.problem import QuantFormat, QuantScheme, WeightShape
from blockscale.recording import embedded, load_recording
from blockscale.report.weights import DevicePlan, PlannedWeight, Use
from blockscale.shapes import LayerShape, ModelShapes
from blockscale.tuning.groups import Group
from blockscale.tuning.request import TuneRequest

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "head_dim": 128,
}


def a_model(folder: Path, name: str, block: int = 128, **fields: object) -> str:
    quantised = {"quant_method": "fp8", "weight_block_size": [block, block]}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": quantised, **fields}))
    return str(path)


def arguments(*given: str) -> argparse.Namespace:
    return tune.build_parser().parse(list(given))


def test_without_model_and_sizes_the_preset_is_tuned():
    found = inputs.read_inputs(arguments())
    assert WeightShape(2112, 7168) in found.weights
    assert WeightShape(12288, 7168) not in found.weights
    assert found.quant == QuantScheme()


def test_models_are_merged_and_shared_shapes_appear_once(tmp_path):
    a, b = a_model(tmp_path, "a"), a_model(tmp_path, "b", intermediate_size=8192)
    alone = [inputs.read_inputs(arguments(m, "-tp", "2")).weights for m in (a, b)]
    both = inputs.read_inputs(arguments(a, b, "-tp", "2")).weights
    assert set(both) == set(alone[0]) | set(alone[1])
    assert len(both) == len(set(both)) < len(alone[0]) + len(alone[1])


def test_the_block_comes_from_the_model_unless_given(tmp_path):
    model = a_model(tmp_path, "a", block=64)
    assert inputs.read_inputs(arguments(model)).quant == QuantScheme(block_n=64, block_k=64)
    found = inputs.read_inputs(arguments(model, "--block-n", "128", "--block-k", "128", "--input-type", "int8"))
    assert found.quant == QuantScheme(QuantFormat.INT8, 128, 128)
    assert any("64×64" in warning and "not found" in warning for warning in found.warnings)


def test_models_in_different_blocks_are_refused(tmp_path):
    a, b = a_model(tmp_path, "a"), a_model(tmp_path, "b", block=64)
    with pytest.raises(InputError, match=r"128×128.*64×64"):
        inputs.read_inputs(arguments(a, b))


def test_a_tp_size_that_does_not_divide_names_layer_number_rule_and_way_out(tmp_path):
    with pytest.raises(InputError) as refusal:
        inputs.read_inputs(arguments(a_model(tmp_path, "a", intermediate_size=18432), "-tp", "32"))
    for part in ("--tp-size 32", "gate_up_proj", "18432/32 = 576", "128", "1, 2, 4", "blockscale shapes"):
        assert part in str(refusal.value)


def test_every_model_is_tuned_at_every_tp_size_and_each_weight_says_what_it_serves(tmp_path):
    a, b = a_model(tmp_path, "a"), a_model(tmp_path, "b", intermediate_size=8192)
    found = inputs.read_inputs(arguments(a, b, a, "-tp", "2", "4", "2", "--engine", "sglang"))
    assert {(u.model, u.tp_size) for uses in found.uses.values() for u in uses} == {
        (m, t) for m in "ab" for t in (2, 4)
    }
    assert found.uses[WeightShape(3072, 4096)] == (
        Use("sglang", "a", 2, ("qkv_proj",), 32),
        Use("sglang", "b", 2, ("qkv_proj",), 32),
    )
    alone = [inputs.read_inputs(arguments(m, "-tp", t)).weights for m in (a, b) for t in "24"]
    assert set(found.weights) == {weight for weights in alone for weight in weights}


def shapes_by_engine(model, parallelism, engine, **options):
    """A model of which engines launch different weights, as where only one of them fuses two projections."""
    widths = {"sglang": {"fused": 2112}, "vllm": {"q_a": 1536, "kv_a": 576}}[engine.name]
    layers = [LayerShape(name, n, 7168, "replicated", 3) for name, n in {**widths, "o": 7168}.items()]
    return ModelShapes("some", parallelism, QuantScheme(), tuple(layers), ())


def test_a_weight_that_only_one_engine_launches_is_tuned_for_that_one(monkeypatch):
    monkeypatch.setattr(listings, "layer_shapes", shapes_by_engine)
    found = inputs.read_inputs(arguments("deepseek-v3", "--engine", "sglang", "--engine", "vllm"))
    assert [w.N for w in found.weights] == [2112, 7168, 1536, 576]
    sglang, vllm = found.engines
    assert [w.N for w in found.weights_for([vllm])] == [7168, 1536, 576]
    assert found.launched_by(WeightShape(2112, 7168), [sglang, vllm]) == ("sglang",)
    plan = found.plan([sglang, vllm], "NVIDIA H200", (16,))
    assert {w.weight.N: w.engines for w in plan.weights}[576] == ("vllm",)
    request = TuneRequest(found.weights, (16,), (), not_launched=(("sglang", WeightShape(576, 7168)),))
    assert [w.N for w in request.weights_of("sglang")] == [2112, 7168, 1536]
    assert (
        {p.shape.N for p in request.problems("vllm")}
        == {2112, 7168, 1536, 576}
        == {p.shape.N for p in request.problems()}
    )


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ([], {"sglang": (1, False, False, False), "vllm": (1, False, False, False)}),
        (["--ep-size", "4", "--dp-attention"], {"sglang": (4, True, False, False), "vllm": (4, True, False, False)}),
        (["--quantization", "fp8-block"], {"sglang": (1, False, True, False), "vllm": (1, False, True, False)}),
        (["--shared-experts-fusion"], {"sglang": (1, False, False, True), "vllm": (1, False, False, False)}),
    ],
)
def test_how_a_model_is_served_reaches_the_rules(given, asked, monkeypatch):
    heard = {}

    def shapes(model, parallelism, engine, *, assume_block_quantised, shared_experts_in_moe):
        heard[engine.name] = (
            parallelism.ep_size,
            parallelism.dp_attention,
            assume_block_quantised,
            shared_experts_in_moe,
        )
        return shapes_by_engine(model, parallelism, engine)

    monkeypatch.setattr(listings, "layer_shapes", shapes)
    inputs.read_inputs(arguments("deepseek-v3", *given, "--engine", "sglang", "--engine", "vllm"))
    assert heard == asked


def test_a_note_names_its_model_where_it_is_not_of_all(monkeypatch, tmp_path):
    notes = {"a": ("of both", "of a alone"), "b": ("of both",)}

    def shapes(model, parallelism, engine, **options):
        return replace(shapes_by_engine(model, parallelism, engine), name=model.name, notes=notes[model.name])

    monkeypatch.setattr(listings, "layer_shapes", shapes)
    found = inputs.read_inputs(arguments(a_model(tmp_path, "a"), a_model(tmp_path, "b"), "--engine", "vllm"))
    assert found.notes == ("of both", "a: of a alone")


def test_unverified_layers_are_warned_of(monkeypatch):
    def shapes(model, parallelism, engine, **options):
        return replace(shapes_by_engine(model, parallelism, engine), unverified="read from its checkpoint")

    monkeypatch.setattr(listings, "layer_shapes", shapes)
    found = inputs.read_inputs(arguments("deepseek-v3", "--engine", "sglang", "--engine", "vllm"))
    assert found.warnings == ("the layers of some are unverified: read from its checkpoint",)


def test_the_plan_says_what_an_installed_engine_ships(monkeypatch, tmp_path):
    there = {"sglang": InstalledEngine("sglang", "0.5.23", tmp_path)}
    monkeypatch.setattr(inputs.Engine, "installed", classmethod(lambda cls: there.get(cls.name)))
    (tmp_path / engine("sglang").file_name(WeightShape(2112, 7168), QuantScheme(), "NVIDIA H200")).write_text("{}")
    found = inputs.read_inputs(arguments("deepseek-v3", "-tp", "8", "--engine", "sglang", "--engine", "vllm"))
    shipped = {w.weight: w.shipped for w in found.plan(found.engines, "NVIDIA H200", (16,)).weights}
    assert shipped[WeightShape(2112, 7168)] == {"sglang": True}
    assert shipped[WeightShape(3072, 1536)] == {"sglang": False}


def test_engines_default_to_those_installed_else_sglang(monkeypatch):
    monkeypatch.setattr(inputs, "installed_engines", lambda: ())
    assert [e.name for e in inputs.chosen_engines(arguments())] == ["sglang"]
    monkeypatch.setattr(inputs, "installed_engines", lambda: (InstalledEngine("vllm", "0.33.0", None),))
    assert [e.name for e in inputs.chosen_engines(arguments())] == ["vllm"]
    given = inputs.chosen_engines(arguments("--engine", "sglang", "--engine", "sglang", "--engine-version", "0.5.10"))
    assert [(e.name, e.version) for e in given] == [("sglang", "0.5.10")]


def test_an_engine_that_cannot_use_the_files_is_refused_if_named_and_left_out_if_not():
    engines = inputs.chosen_engines(arguments("--engine", "sglang", "--engine", "vllm"))
    int8 = QuantScheme(QuantFormat.INT8)
    usable, notes = inputs.usable_engines(engines, int8, H200, explicit=False)
    assert [e.name for e in usable] == ["sglang"]
    assert "vllm" in notes[0]
    with pytest.raises(InputError):
        inputs.usable_engines(engines, int8, H200, explicit=True)
    ampere = replace(H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80")
    with pytest.raises(InputError, match="FP8"):
        inputs.usable_engines(engines, QuantScheme(), ampere, explicit=False)


def test_one_engine_writes_into_the_folder_itself_several_into_one_each():
    assert output_folders(None, ["sglang"]) == (("sglang", Path("configs/sglang")),)
    assert output_folders(Path("out"), ["vllm"]) == (("vllm", Path("out")),)
    assert output_folders(Path("out"), ["sglang", "vllm"])[1] == ("vllm", Path("out/vllm"))


def test_only_a_refusal_removes_folders_and_only_empty_new_ones(tmp_path):
    def make(error: Exception) -> None:
        with nothing_left_behind([tmp_path / "a" / "b"]):
            (tmp_path / "a" / "b").mkdir(parents=True)
            raise error

    with pytest.raises(InputError):
        make(InputError("x"))
    assert not (tmp_path / "a").exists()
    with pytest.raises(RuntimeError):
        make(RuntimeError("x"))
    assert (tmp_path / "a" / "b").exists()
    with pytest.raises(InputError), nothing_left_behind([tmp_path / "a" / "b" / "c"]):
        raise InputError("x")
    assert (tmp_path / "a" / "b").exists()


@pytest.mark.parametrize("answer", ["", "y", "YES "])
def test_yes_or_enter_starts_after_the_plan_was_shown(answer, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    question.confirmed(*a_group())
    shown = capsys.readouterr().out
    for part in ("2112×7168", "2 × NVIDIA H200", "fused_qkv_a_proj", "Work         2 problems"):
        assert part in shown


@pytest.mark.parametrize("answer", ["n", "what?"])
def test_anything_else_starts_nothing(answer, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    with pytest.raises(InputError, match="nothing was changed"):
        question.confirmed(*a_group())


def a_group() -> tuple[list[Group], list[DevicePlan]]:
    weight = WeightShape(2112, 7168)
    request = TuneRequest((weight,), (1, 16), (("sglang", Path("out")),))
    use = Use("sglang", "deepseek-v3", 8, ("fused_qkv_a_proj_with_mqa",), 61)
    plan = DevicePlan("NVIDIA H200", (1, 16), (PlannedWeight(weight, ("sglang",), (use,)),))
    return [Group(request, (engine("sglang"),), ReplayDevice(load_recording(embedded("h200")), gpus=2))], [plan]
