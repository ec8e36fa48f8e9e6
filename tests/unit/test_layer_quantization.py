"""Which layers are quantised in blocks, in every spelling of a config, and what is said of models that are not."""

from typing import Any

import pytest

from blockscale.engines import engine
from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme
from blockscale.shapes import EngineVersion, Model, ModelShapes, Parallelism, layer_shapes

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}
BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SGLANG, VLLM = engine("sglang"), engine("vllm")


def listed(declared: Any, at: EngineVersion | None = None, *, assume: bool = False, **fields: Any) -> ModelShapes:
    config = DENSE | fields | ({} if declared is None else {"quantization_config": declared})
    return layer_shapes(Model("m", config), Parallelism(1), at, assume_block_quantised=assume)


def counts(shapes: ModelShapes) -> dict[str, int]:
    return {each.layer: each.count for each in shapes.shapes}


ALL = {"qkv_proj": 4, "o_proj": 4, "mlp.gate_up_proj": 4, "mlp.down_proj": 4}


def of_group(**changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    return {"targets": ["Linear"], "weights": weights | changes}


def compressed(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": named} | fields


# --- spellings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "scheme"),
    [
        (BLOCK, QuantScheme()),
        ({"quant_method": "fp8", "weight_block_size": [64, 32]}, QuantScheme(QuantFormat.FP8, 64, 32)),
        ({"quant_method": "blockwise_int8", "weight_block_size": [128, 128]}, QuantScheme(QuantFormat.INT8)),
        (compressed(of_group()), QuantScheme()),
        (compressed(of_group(block_structure="128x64")), QuantScheme(QuantFormat.FP8, 128, 64)),
        (compressed(of_group(), format="naive-quantized"), QuantScheme()),
        (compressed(of_group(type="int")), QuantScheme(QuantFormat.INT8)),
        (compressed(of_group(strategy="BLOCK") | {"input_activations": {"dynamic": True}}), QuantScheme()),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, QuantScheme()),
        ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, QuantScheme()),
    ],
)
def test_every_spelling_of_blocks_is_understood(declared: dict[str, Any], scheme: QuantScheme) -> None:
    shapes = listed(declared)
    assert shapes.quant == scheme
    assert counts(shapes) == ALL


def test_the_declaration_may_be_nested_or_have_its_older_name() -> None:
    nested = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": DENSE | {"quantization_config": BLOCK},
    }
    assert counts(layer_shapes(Model("m", nested), Parallelism(1))) == ALL
    assert counts(listed(None, compression_config=compressed(of_group()))) == ALL


def test_scales_that_are_powers_of_two_are_noted() -> None:
    assert any("powers of two" in note for note in listed(BLOCK | {"scale_fmt": "ue8m0"}).notes)
    narrow = listed({"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"})
    assert any("MXFP8" in note for note in narrow.notes)
    assert listed(BLOCK).notes == ()


# --- not in blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (None, ("not quantised (bfloat16)",)),
        ({}, ("not quantised",)),
        ({"quant_method": "gptq", "bits": 4}, ("gptq", "4 bits")),
        ({"quant_method": "awq", "bits": 4}, ("awq",)),
        ({"quant_method": "fp8"}, ("fp8", "one scale a tensor or row")),
        ({"quant_method": "mxfp4"}, ("mxfp4",)),
        ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, ("mxfp8",)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("NVFP4",)),
        (compressed(of_group(strategy="channel")), ("compressed-tensors", "8-bit float a channel")),
        (compressed(of_group(strategy="group", num_bits=4, type="int")), ("4-bit int a group",)),
        (compressed(of_group(num_bits=4)), ("4-bit float",)),
        (compressed(of_group() | {"input_activations": None}), ("8-bit float a block, weights only",)),
    ],
)
def test_what_is_not_in_blocks_is_said_to_be_so_with_what_it_is(declared: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="no block-scaled GEMM runs") as refusal:
        listed(declared)
    for word in (*words, "--quantization fp8-block", "--N and --K"):
        assert word in str(refusal.value)
    assumed = listed(declared, assume=True)
    assert assumed.quant == QuantScheme()
    assert any("assumed" in note for note in assumed.notes)
    assert counts(assumed) == ALL


def test_nothing_is_assumed_where_blocks_are_declared() -> None:
    declared = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    assert listed(declared, assume=True) == listed(declared)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("fp8", "no object"),
        (BLOCK | {"activation_scheme": "static"}, "activation_scheme"),
        (BLOCK | {"modules_to_not_convert": [1]}, "no list of names"),
        (compressed(of_group(), ignore=["re:("]), "no regular expression"),
        (compressed(of_group(), of_group(block_structure=[64, 64])), "128×128 and 64×64"),
    ],
)
def test_a_malformed_declaration_is_refused(declared: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        listed(declared)


@pytest.mark.parametrize(
    "block",
    ["²x²", "9" * 5000 + "x1", "x", "128", "128x128x128", "-1x1", True, {"a": 1}, [0.5, 1], [128], "wide x tall"],
)
def test_a_quantisation_block_that_is_none_is_refused(block: Any) -> None:
    for declared in (compressed(of_group(block_structure=block)), {"weight_block_size": block}):
        with pytest.raises(InputError, match="no pair of positive integers"):
            listed(declared)


# --- layers that stay unquantised ------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["modules_to_not_convert", "ignored_layers"])
@pytest.mark.parametrize("prefix", ["model.", "", "model.language_model.", "language_model.model."])
def test_layers_are_counted_one_by_one(field: str, prefix: str) -> None:
    kept = [f"{prefix}layers.{index}.self_attn.o_proj" for index in (0, 3, 77)]
    shapes = listed(BLOCK | {field: ["lm_head", *kept]})
    assert counts(shapes) == ALL | {"o_proj": 2}
    assert any("o_proj is left out in 2 of 4 layers" in note for note in shapes.notes)


def test_a_layer_with_nothing_left_is_not_listed_and_a_note_says_so() -> None:
    shapes = listed(BLOCK | {"modules_to_not_convert": ["mlp.down_proj"]})
    assert "mlp.down_proj" not in counts(shapes)
    assert any("mlp.down_proj is left out in all layers" in note for note in shapes.notes)


def test_names_are_parts_of_a_path_for_sglang_and_whole_names_for_vllm() -> None:
    declared = BLOCK | {"modules_to_not_convert": ["o_proj", "model.layers.1.mlp"]}
    left = {"qkv_proj": 4, "mlp.gate_up_proj": 3, "mlp.down_proj": 3}
    assert counts(listed(declared)) == counts(listed(declared, SGLANG)) == left
    assert counts(listed(declared, VLLM)) == ALL


def test_a_name_that_only_begins_alike_is_another_module() -> None:
    names = ["model.layers.0.mlp.gate", "model.layers.0.self_attn.q", "model.layers.1", "visual.layers.2.mlp.down_proj"]
    kept = counts(listed(BLOCK | {"modules_to_not_convert": [names[0], names[1], names[3]]}, VLLM))
    assert kept == ALL
    assert counts(listed(BLOCK | {"modules_to_not_convert": names}))["o_proj"] == 3
    assert counts(listed(BLOCK | {"modules_to_not_convert": ["mtp.layers.0.self_attn.o_proj"]})) == ALL


@pytest.mark.parametrize("names", [["q_proj", "k_proj", "v_proj"], ["qkv_proj"]])
def test_a_fused_layer_is_unquantised_where_it_or_all_its_parts_are(names: list[str]) -> None:
    kept = [f"model.layers.{index}.self_attn.{name}" for index in (0, 1) for name in names]
    assert counts(listed(BLOCK | {"modules_to_not_convert": kept})) == ALL | {"qkv_proj": 2}


@pytest.mark.parametrize("at", [None, SGLANG, VLLM])
def test_a_fused_layer_of_two_precisions_is_refused_and_the_others_are_listed(at: EngineVersion | None) -> None:
    shapes = listed(BLOCK | {"modules_to_not_convert": ["model.layers.2.mlp.up_proj"]}, at)
    (refused,) = shapes.refused
    assert refused.layer == "mlp.gate_up_proj"
    assert "layers.2.mlp.up_proj" in refused.reason
    assert refused.tp_sizes_that_work == ()
    assert counts(shapes).keys() == ALL.keys() - {"mlp.gate_up_proj"}


@pytest.mark.parametrize(
    ("ignore", "left"),
    [
        (["lm_head"], ALL),
        (["re:.*down_proj"], {name: 4 for name in ALL if name != "mlp.down_proj"}),
        (["re:model.layers.[01].mlp"], ALL | {"mlp.gate_up_proj": 2, "mlp.down_proj": 2}),
        (["model.layers.3.mlp.down_proj", "mlp.down_proj"], ALL | {"mlp.down_proj": 3}),
    ],
)
def test_compressed_tensors_ignores_whole_names_and_regular_expressions(
    ignore: list[str], left: dict[str, int]
) -> None:
    assert counts(listed(compressed(of_group(), ignore=ignore))) == left


def test_groups_of_another_strategy_take_their_targets_out() -> None:
    channel = of_group(strategy="channel") | {"targets": ["re:.*self_attn.*"]}
    only_mlp = {"mlp.gate_up_proj": 4, "mlp.down_proj": 4}
    assert counts(listed(compressed(of_group(), channel))) == only_mlp
    of_mlp = of_group() | {"targets": ["re:.*mlp.*"]}
    assert counts(listed(compressed(of_mlp, of_group(strategy="channel")))) == only_mlp


ATTENTION = {"qkv_proj": 4, "o_proj": 4}


@pytest.mark.parametrize(
    ("targets", "left"),
    [
        (["re:.*self_attn.(q|k|v|o)_proj$"], ATTENTION),  # none of them matches the fused name
        ([f"model.layers.{i}.self_attn.{name}_proj" for i in (0, 1) for name in "qkv"], {"qkv_proj": 2}),
        (["re:.*self_attn.qkv_proj$", "re:.*o_proj$"], ATTENTION),
    ],
)
@pytest.mark.parametrize("at", [None, SGLANG, VLLM])
def test_targets_name_the_parts_of_a_fused_layer_or_itself(
    targets: list[str], left: dict[str, int], at: EngineVersion | None
) -> None:
    assert counts(listed(compressed(of_group() | {"targets": targets}), at)) == left


@pytest.mark.parametrize("others", [{"targets": ["re:.*[qk]_proj$"]}, {"targets": ["re:.*self_attn.*"]}])
def test_targets_that_leave_a_part_out_are_a_mix(others: dict[str, Any]) -> None:
    shapes = listed(compressed(of_group() | others, ignore=["re:.*self_attn.k_proj", "re:.*mlp.*"]))
    assert [refused.layer for refused in shapes.refused] == ["qkv_proj"]


def test_wildcards_of_modelopt() -> None:
    declared = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "ignore": ["model.layers.*.mlp*", "lm_head"]}
    assert counts(listed(declared)) == {"qkv_proj": 4, "o_proj": 4}
