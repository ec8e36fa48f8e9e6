"""Layer shapes by tensor-parallel size: what each GPU holds, and what engines refuse, on small invented models."""

from typing import Any

import pytest

from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme
from blockscale.shapes import PRESETS, ModelShapes, layer_shapes

BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "quantization_config": BLOCK_FP8,
}


def table(shapes: ModelShapes) -> dict[str, tuple[int, int, str, int]]:
    return {shape.layer: (shape.N, shape.K, shape.split, shape.count) for shape in shapes.shapes}


def test_a_dense_model_on_one_gpu() -> None:
    assert table(layer_shapes(DENSE, 1)) == {
        "qkv_proj": (4096, 1024, "N", 28),
        "o_proj": (1024, 2048, "K", 28),
        "mlp.gate_up_proj": (6144, 1024, "N", 28),
        "mlp.down_proj": (1024, 3072, "K", 28),
    }


def test_kv_heads_are_repeated_beyond_their_number() -> None:
    widths = {tp: table(layer_shapes(DENSE, tp))["qkv_proj"][0] for tp in (1, 2, 4, 8, 16)}
    assert widths == {1: 4096, 2: 2048, 4: 1024, 8: 512, 16: 384}


def test_a_share_that_is_no_whole_block_is_refused_with_the_number_and_the_way_out() -> None:
    shapes = layer_shapes(DENSE, 16)
    assert list(table(shapes)) == ["qkv_proj", "o_proj"]
    up, down = shapes.refused
    assert (up.layer, up.tp_sizes_that_work) == ("mlp.gate_up_proj", (1, 2, 4, 8))
    assert "3072/16 = 192" in up.reason
    assert "block_n = 128" in up.reason
    assert "3072/16 = 192" in down.reason
    assert "block_k = 128" in down.reason
    assert "TP sizes that work: 1, 2, 4, 8." in str(up)


def test_heads_that_do_not_divide_are_refused() -> None:
    shapes = layer_shapes({**DENSE, "num_attention_heads": 24, "num_key_value_heads": 4}, 16)
    assert [each.layer for each in shapes.refused] == ["qkv_proj", "o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
    assert "24 q heads" in shapes.refused[0].reason
    assert shapes.refused[0].tp_sizes_that_work == (1, 2, 4, 8, 12, 24)


def test_a_width_that_does_not_divide_is_refused() -> None:
    shapes = layer_shapes({**DENSE, "intermediate_size": 3200}, 3)
    assert any("3200 does not divide over 3 GPUs" in each.reason for each in shapes.refused)


def test_one_gpu_may_hold_a_ragged_last_part_but_no_ragged_gate() -> None:
    shapes = layer_shapes({**DENSE, "intermediate_size": 3100, "hidden_size": 1000}, 1)
    assert [each.layer for each in shapes.refused] == ["mlp.gate_up_proj"]
    assert "3100/1 = 3100" in shapes.refused[0].reason
    assert shapes.refused[0].tp_sizes_that_work == ()
    assert "none up to 64" in str(shapes.refused[0])


def test_smaller_blocks_allow_more_gpus() -> None:
    config = {**DENSE, "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}}
    shapes = layer_shapes(config, 16)
    assert shapes.quant == QuantScheme(QuantFormat.FP8, 64, 32)
    assert shapes.refused == ()


def test_the_like_of_llama_and_nested_text_models() -> None:
    llama = {key: value for key, value in DENSE.items() if key not in ("head_dim", "num_key_value_heads")}
    llama["architectures"] = ["LlamaForCausalLM"]
    assert table(layer_shapes(llama, 1))["qkv_proj"] == (3 * 1024, 1024, "N", 28)
    nested = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": DENSE}
    assert layer_shapes(nested, 2).shapes == layer_shapes(DENSE, 2).shapes


def test_experts_are_left_to_the_moe_tuner() -> None:
    moe = {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 64}
    shapes = layer_shapes(moe, 2)
    assert list(table(shapes)) == ["qkv_proj", "o_proj"]
    assert any("MoE tuner" in note for note in shapes.notes)
    some_dense = layer_shapes({**moe, "mlp_only_layers": [0, 3], "decoder_sparse_step": 1}, 2)
    assert table(some_dense)["mlp.down_proj"] == (1024, 1536, "K", 2)
    every_second = layer_shapes({**moe, "decoder_sparse_step": 2}, 2)
    assert table(every_second)["mlp.down_proj"] == (1024, 1536, "K", 14)


V3 = PRESETS["deepseek-v3"]


def test_deepseek_v3_at_tp_8() -> None:
    shapes = layer_shapes(V3, 8)
    assert table(shapes) == {
        "fused_qkv_a_proj": (2112, 7168, "replicated", 61),
        "q_b_proj": (3072, 1536, "N", 61),
        "kv_b_proj": (4096, 512, "N", 61),
        "o_proj": (7168, 2048, "K", 61),
        "dense mlp (first 3 layers).gate_up_proj": (4608, 7168, "N", 3),
        "dense mlp (first 3 layers).down_proj": (7168, 2304, "K", 3),
        "shared_experts.gate_up_proj": (512, 7168, "N", 58),
        "shared_experts.down_proj": (7168, 256, "K", 58),
    }
    assert len(shapes.weights) == 8
    assert shapes.refused == ()


def test_no_shape_that_no_layer_has() -> None:
    stock_only = {(12288, 7168), (24576, 7168), (1536, 7168), (576, 7168)}
    for tp_size in (1, 2, 4, 8, 16):
        assert not stock_only & {(each.N, each.K) for each in layer_shapes(V3, tp_size).shapes}


def test_deepseek_v3_on_32_gpus_names_what_is_refused() -> None:
    shapes = layer_shapes(V3, 32)
    reasons = {each.layer: each.reason for each in shapes.refused}
    assert "18432/32 = 576" in reasons["dense mlp (first 3 layers).down_proj"]
    assert "2048/32 = 64" in reasons["shared_experts.gate_up_proj"]
    assert {each.tp_sizes_that_work for each in shapes.refused} == {(1, 2, 4, 8, 16)}
    assert (768, 1536) in {(each.N, each.K) for each in shapes.shapes}


def test_engines_name_the_fused_projection_differently() -> None:
    assert "fused_qkv_a_proj_with_mqa" in table(layer_shapes(V3, 8, "sglang"))
    assert "fused_qkv_a_proj" in table(layer_shapes(V3, 8, "vllm"))


def test_kimi_and_models_without_a_query_bottleneck() -> None:
    kimi = layer_shapes({**V3, "num_attention_heads": 64, "first_k_dense_replace": 1}, 8)
    assert table(kimi)["q_b_proj"][:2] == (1536, 1536)
    assert table(kimi)["dense mlp (first 1 layers).down_proj"][3] == 1
    direct = layer_shapes({**V3, "q_lora_rank": None}, 8)
    assert table(direct)["q_proj"] == (3072, 7168, "N", 61)
    assert table(direct)["kv_a_proj_with_mqa"] == (576, 7168, "replicated", 61)


def test_model_type_decides_where_no_architecture_is_named() -> None:
    config = {key: value for key, value in V3.items() if key != "architectures"}
    assert layer_shapes(config, 8).shapes == layer_shapes(V3, 8).shapes


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "llama"}, "MambaForCausalLM"),
        ({"model_type": "mamba"}, "mamba"),
        ({}, "without a name"),
    ],
)
def test_an_unknown_architecture_is_named_with_the_way_out(config: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match="--N and --K") as caught:
        layer_shapes(config, 8)
    assert named in str(caught.value)


@pytest.mark.parametrize("tp_size", [0, -1, True, 2.0, "8"])
def test_a_tp_size_is_a_positive_integer(tp_size: Any) -> None:
    with pytest.raises(InputError, match="--tp-size"):
        layer_shapes(DENSE, tp_size)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", "1024"), ("hidden_size", None), ("num_attention_heads", 0), ("intermediate_size", 3072.0)],
)
def test_fields_of_a_wrong_type_are_named(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        layer_shapes({**DENSE, field: value}, 1)


def test_quantisation_is_read_or_assumed_with_a_note() -> None:
    silent = {key: value for key, value in DENSE.items() if key != "quantization_config"}
    shapes = layer_shapes(silent, 1)
    assert shapes.quant == QuantScheme()
    assert "assumed" in shapes.notes[0]
    assert layer_shapes(DENSE, 1).notes == ()
    int8 = {**DENSE, "quantization_config": {"quant_method": "blockwise_int8", "weight_block_size": [128, 128]}}
    assert layer_shapes(int8, 1).quant.format is QuantFormat.INT8


@pytest.mark.parametrize("structure", [[128, 64], "128x64"])
def test_compressed_tensors_blocks(structure: Any) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": structure}
    declared = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    assert layer_shapes({**DENSE, "quantization_config": declared}, 1).quant == QuantScheme(QuantFormat.FP8, 128, 64)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "fp8"}, "not in blocks"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "pair of positive integers"),
        ({"quant_method": "fp8", "weight_block_size": "wide x tall"}, "pair of positive integers"),
        ("fp8", "no object"),
    ],
)
def test_other_quantisation_is_refused(declared: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        layer_shapes({**DENSE, "quantization_config": declared}, 1)


def test_dense_layers_among_experts_are_counted_as_engines_do() -> None:
    moe = {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 10, "decoder_sparse_step": 3}
    for named in ([], [0, 2], [2, 5, 8], [2, 2, 99, -1]):
        counts = {s.layer: s.count for s in layer_shapes({**moe, "mlp_only_layers": named}, 1).shapes}
        expected = sum(layer in named or (layer + 1) % 3 != 0 for layer in range(10))
        assert counts["mlp.down_proj"] == expected


def test_a_number_of_layers_beyond_reason_costs_no_time() -> None:
    moe = {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 10**15, "mlp_only_layers": [3]}
    assert {s.layer: s.count for s in layer_shapes(moe, 1).shapes}["mlp.down_proj"] == 1


@pytest.mark.parametrize(
    "block", ["²x²", "9" * 5000 + "x1", "x", "128", "128x128x128", "-1x1", True, {"a": 1}, [0.5, 1]]
)
def test_a_quantisation_block_that_is_none_is_refused(block: Any) -> None:
    weights = {"strategy": "block", "block_structure": block}
    for declared in ({"config_groups": {"g": {"weights": weights}}}, {"weight_block_size": block}):
        with pytest.raises(InputError, match="no pair of positive integers"):
            layer_shapes({**DENSE, "quantization_config": declared}, 1)
