"""Layer shapes by tensor-parallel size: what each GPU holds, and what engines refuse, on small invented models."""

from typing import Any

import pytest

from blockscale.engines import engine
from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme
from blockscale.shapes import PRESETS, Model, ModelShapes, Parallelism, layer_shapes

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


def listed(config: dict[str, Any], tp_size: int) -> ModelShapes:
    return layer_shapes(Model("invented", config), Parallelism(tp_size))


def table(shapes: ModelShapes) -> dict[str, tuple[int, int, str, int]]:
    return {shape.layer: (shape.N, shape.K, shape.split, shape.count) for shape in shapes.shapes}


def test_a_dense_model_on_one_gpu() -> None:
    assert table(listed(DENSE, 1)) == {
        "qkv_proj": (4096, 1024, "N", 28),
        "o_proj": (1024, 2048, "K", 28),
        "mlp.gate_up_proj": (6144, 1024, "N", 28),
        "mlp.down_proj": (1024, 3072, "K", 28),
    }


def test_kv_heads_are_repeated_beyond_their_number() -> None:
    widths = {tp: table(listed(DENSE, tp))["qkv_proj"][0] for tp in (1, 2, 4, 8, 16)}
    assert widths == {1: 4096, 2: 2048, 4: 1024, 8: 512, 16: 384}


def test_a_share_that_is_no_whole_block_is_refused_with_the_number_and_the_way_out() -> None:
    shapes = listed(DENSE, 16)
    assert list(table(shapes)) == ["qkv_proj", "o_proj"]
    up, down = shapes.refused
    assert (up.layer, up.tp_sizes_that_work) == ("mlp.gate_up_proj", (1, 2, 4, 8))
    assert "3072/16 = 192" in up.reason
    assert "block_n = 128" in up.reason
    assert "3072/16 = 192" in down.reason
    assert "block_k = 128" in down.reason
    assert "TP sizes that work: 1, 2, 4, 8." in str(up)


def test_heads_that_do_not_divide_are_refused() -> None:
    shapes = listed({**DENSE, "num_attention_heads": 24, "num_key_value_heads": 4}, 16)
    assert [each.layer for each in shapes.refused] == ["qkv_proj", "o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
    assert "24 q heads" in shapes.refused[0].reason
    assert shapes.refused[0].tp_sizes_that_work == (1, 2, 4, 8, 12, 24)


def test_a_width_that_does_not_divide_is_refused() -> None:
    shapes = listed({**DENSE, "intermediate_size": 3200}, 3)
    assert any("3200 does not divide over 3 GPUs" in each.reason for each in shapes.refused)


def test_one_gpu_may_hold_a_ragged_last_part_but_no_ragged_gate() -> None:
    shapes = listed({**DENSE, "intermediate_size": 3100, "hidden_size": 1000}, 1)
    assert [each.layer for each in shapes.refused] == ["mlp.gate_up_proj"]
    assert "gate: 3100 is no multiple" in shapes.refused[0].reason
    assert shapes.refused[0].tp_sizes_that_work == ()
    assert "none up to 64" in str(shapes.refused[0])


def test_smaller_blocks_allow_more_gpus() -> None:
    config = {**DENSE, "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}}
    shapes = listed(config, 16)
    assert shapes.quant == QuantScheme(QuantFormat.FP8, 64, 32)
    assert shapes.refused == ()


def test_the_like_of_llama_and_nested_text_models() -> None:
    llama = {key: value for key, value in DENSE.items() if key not in ("head_dim", "num_key_value_heads")}
    llama["architectures"] = ["LlamaForCausalLM"]
    assert table(listed(llama, 1))["qkv_proj"] == (3 * 1024, 1024, "N", 28)
    nested = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": DENSE}
    assert listed(nested, 2).shapes == listed(DENSE, 2).shapes


def test_experts_are_left_to_the_moe_tuner() -> None:
    moe = {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 64}
    shapes = listed(moe, 2)
    assert list(table(shapes)) == ["qkv_proj", "o_proj"]
    assert any("MoE tuner" in note for note in shapes.notes)
    some_dense = listed({**moe, "mlp_only_layers": [0, 3], "decoder_sparse_step": 1}, 2)
    assert table(some_dense)["mlp.down_proj"] == (1024, 1536, "K", 2)
    every_second = listed({**moe, "decoder_sparse_step": 2}, 2)
    assert table(every_second)["mlp.down_proj"] == (1024, 1536, "K", 14)


V3 = PRESETS["deepseek-v3"]


def test_deepseek_v3_at_tp_8() -> None:
    shapes = listed(V3, 8)
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
        assert not stock_only & {(each.N, each.K) for each in listed(V3, tp_size).shapes}


def test_deepseek_v3_on_32_gpus_names_what_is_refused() -> None:
    shapes = listed(V3, 32)
    reasons = {each.layer: each.reason for each in shapes.refused}
    assert "18432/32 = 576" in reasons["dense mlp (first 3 layers).down_proj"]
    assert "2048/32 = 64" in reasons["shared_experts.gate_up_proj"]
    assert {each.tp_sizes_that_work for each in shapes.refused} == {(1, 2, 4, 8, 16)}
    assert (768, 1536) in {(each.N, each.K) for each in shapes.shapes}


def test_kimi_and_models_without_a_query_bottleneck() -> None:
    kimi = listed({**V3, "num_attention_heads": 64, "first_k_dense_replace": 1}, 8)
    assert table(kimi)["q_b_proj"][:2] == (1536, 1536)
    assert table(kimi)["dense mlp (first 1 layers).down_proj"][3] == 1
    direct = listed({**V3, "q_lora_rank": None}, 8)
    assert table(direct)["q_proj"] == (3072, 7168, "N", 61)
    assert table(direct)["kv_a_proj_with_mqa"] == (576, 7168, "replicated", 61)


def test_model_type_decides_where_no_architecture_is_named() -> None:
    config = {key: value for key, value in V3.items() if key != "architectures"}
    assert listed(config, 8).shapes == listed(V3, 8).shapes


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "llama"}, "MambaForCausalLM"),
        ({"model_type": "mamba"}, "mamba"),
        ({}, "unnamed"),
    ],
)
def test_an_unknown_architecture_is_named_with_the_way_out(config: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match="--N and --K") as caught:
        listed({**config, "quantization_config": BLOCK_FP8}, 8)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", "1024"), ("hidden_size", None), ("num_attention_heads", 0), ("intermediate_size", 3072.0)],
)
def test_fields_of_a_wrong_type_are_named(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        listed({**DENSE, field: value}, 1)


def test_dense_layers_among_experts_are_counted_as_engines_do() -> None:
    moe = {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 10, "decoder_sparse_step": 3}
    for named in ([], [0, 2], [2, 5, 8], [2, 2, 99, -1]):
        counts = {s.layer: s.count for s in listed({**moe, "mlp_only_layers": named}, 1).shapes}
        expected = sum(layer in named or (layer + 1) % 3 != 0 for layer in range(10))
        assert counts["mlp.down_proj"] == expected
    without = listed({**moe, "num_experts": 0}, 1)
    assert {each.layer: each.count for each in without.shapes}["mlp.down_proj"] == 10
    assert not without.notes


def test_a_number_of_layers_beyond_reason_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="num_hidden_layers = 1000000000000000"):
        listed({**DENSE, "num_hidden_layers": 10**15}, 1)


def test_of_stacked_projections_that_are_not_cut_only_the_last_may_end_raggedly() -> None:
    shapes = listed(PRESETS["deepseek-v3"] | {"q_lora_rank": 960}, 1)
    (refused,) = shapes.refused
    assert str(refused) == (
        "fused_qkv_a_proj: q_a: 960 is no multiple of block_n = 128. TP sizes that work: none up to 64."
    )
    ragged = Model("m", PRESETS["deepseek-v3"] | {"q_lora_rank": 960})
    unfused = layer_shapes(ragged, Parallelism(1), engine("vllm", "0.9.0"))
    assert ("q_a_proj", 960) in [(each.layer, each.N) for each in unfused.shapes]


def test_sizes_that_work_divide_the_heads_of_keys_and_values_too() -> None:
    config = {**DENSE, "num_attention_heads": 24, "num_key_value_heads": 4, "hidden_size": 3072}
    shapes = listed(config, 5)
    refused = {each.layer: each.tp_sizes_that_work for each in shapes.refused}
    assert 3 not in refused["o_proj"]
    for layer, sizes in refused.items():
        for size in sizes:
            at_size = listed(config, size)
            assert layer in [each.layer for each in at_size.shapes]
            assert not [each for each in at_size.refused if "engines refuse the model" in each.reason]
