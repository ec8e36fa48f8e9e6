"""What engines, their versions, expert parallelism and DP attention change about a model's layers."""

from typing import Any

import pytest

from blockscale.engines import engine
from blockscale.errors import InputError
from blockscale.shapes import PRESETS, EngineVersion, Model, ModelShapes, Parallelism, layer_shapes

V3 = PRESETS["deepseek-v3"]
V32 = V3 | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
}
V4 = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "compress_ratios": [0, 4, 128, 4, 4],
    "quantization_config": V3["quantization_config"],
}
SGLANG, VLLM = engine("sglang", "main"), engine("vllm", "main")


def listed(
    config: dict[str, Any], spread: Parallelism, at: EngineVersion | None = None, *, folded: bool = False
) -> ModelShapes:
    return layer_shapes(Model("m", config), spread, at, shared_experts_in_moe=folded)


ON_4 = Parallelism(4)


def sizes(shapes: ModelShapes) -> dict[str, tuple[int, int]]:
    return {each.layer: (each.N, each.K) for each in shapes.shapes}


# --- engines and their versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "fused"),
    [
        ("sglang", "0.4.5.post3", None),
        ("sglang", "0.4.6", "fused_qkv_a_proj_with_mqa"),
        ("sglang", "0.5.23", "fused_qkv_a_proj_with_mqa"),
        ("vllm", "0.9.2", None),
        ("vllm", "0.10.0", "fused_qkv_a_proj"),
        ("vllm", "0.33.0", "fused_qkv_a_proj"),
    ],
)
def test_a_projections_are_one_gemm_since_a_version(name: str, version: str, fused: str | None) -> None:
    got = sizes(listed(V3, Parallelism(8), engine(name, version)))
    apart = {"q_a_proj": (1536, 7168), "kv_a_proj_with_mqa": (576, 7168)}
    expected = {fused: (2112, 7168)} if fused else apart
    assert {layer: size for layer, size in got.items() if "_a_proj" in layer} == expected


@pytest.mark.parametrize(
    ("at", "interleaved", "quantised"),
    [
        (None, False, False),
        (SGLANG, False, True),
        (SGLANG, True, False),
        (engine("sglang", "0.5.14"), True, True),
        (VLLM, False, False),
        (engine("vllm", "0.19.1"), False, True),
        (engine("vllm", "0.20.0"), False, False),
    ],
)
def test_the_indexers_keys_are_quantised_where_the_engine_leaves_them_so(
    at: EngineVersion | None, interleaved: bool, quantised: bool
) -> None:
    got = sizes(listed(V32 | {"indexer_rope_interleave": interleaved}, Parallelism(8), at))
    assert got["indexer.wq_b"] == (8192, 1536)
    assert got.get("indexer.wk") == ((128, 7168) if quantised else None)


def test_the_first_projection_of_v4_has_a_name_in_each_engine() -> None:
    assert sizes(listed(V4, Parallelism(2), SGLANG))["wqkv_a"] == (1536, 4096)
    assert sizes(listed(V4, Parallelism(2), VLLM))["fused_wqa_wkv"] == (1536, 4096)


QWEN35 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 8,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "quantization_config": V3["quantization_config"],
}


def test_gates_of_delta_nets_run_in_blocks_on_vllm_alone_unless_kept_unquantised() -> None:
    layer = "linear_attn.in_proj_ba"
    assert sizes(listed(QWEN35, Parallelism(4), VLLM))[layer] == (24, 5120)
    assert sizes(listed(QWEN35, Parallelism(4)))[layer] == (24, 5120)
    on_sglang = listed(QWEN35, Parallelism(4), SGLANG)
    assert layer not in sizes(on_sglang)
    assert any(layer in note for note in on_sglang.notes)
    root = "model.language_model.layers"
    kept = [f"{root}.{i}.linear_attn.in_proj_{part}" for i in range(8) for part in "ba"]
    quant = V3["quantization_config"] | {"modules_to_not_convert": kept}
    assert layer not in sizes(listed(QWEN35 | {"quantization_config": quant}, Parallelism(4), VLLM))


def test_full_attention_is_where_the_config_says() -> None:
    text = QWEN35["text_config"] | {"layer_types": ["full_attention"] * 3 + ["linear_attention"] * 5}
    shapes = listed(QWEN35 | {"text_config": text}, Parallelism(1))
    counts = {each.layer: each.count for each in shapes.shapes}
    assert (counts["qkv_proj"], counts["linear_attn.out_proj"]) == (3, 5)


# --- layers with an indexer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 8),
        ({"index_topk_freq": 4}, 3),  # layers 0, 1 and 5
        ({"index_topk_freq": 4, "index_skip_topk_offset": 4}, 5),  # layers 0 to 3 and 7
        ({"index_topk_pattern": "FSSFSSFF"}, 4),
        ({"indexer_types": ["full", "shared", "shared", "full"]}, 6),
    ],
)
def test_layers_that_reuse_chosen_tokens_have_no_indexer(fields: dict[str, Any], count: int) -> None:
    shapes = listed(V32 | {"num_hidden_layers": 8} | fields, Parallelism(1))
    assert {each.layer: each.count for each in shapes.shapes}["indexer.wq_b"] == count


def test_v4_has_an_indexer_where_keys_are_compressed_by_four() -> None:
    by_type = V4 | {
        "compress_ratios": None,
        "layer_types": ["sliding_attention", "sparse", "heavy", "sparse"],
        "compress_rates": {"sparse": 4, "heavy": 128},
    }
    for config in (V4, by_type):
        shapes = listed(config, Parallelism(1))
        assert {each.layer: each.count for each in shapes.shapes}["indexer.wq_b"] == 2
    assert any("wo_a is left out" in note for note in listed(V4, Parallelism(1)).notes)


# --- how GPUs share the work -----------------------------------------------------------------------------------------


def test_with_dp_attention_each_gpu_holds_all_heads_and_the_rest_is_cut() -> None:
    got = sizes(listed(V3, Parallelism(8, dp_attention=True), SGLANG))
    assert got["q_b_proj"] == (24576, 1536)
    assert got["kv_b_proj"] == (32768, 512)
    assert got["o_proj"] == (7168, 16384)
    assert got["shared_experts.gate_up_proj"] == (512, 7168)
    assert got["dense mlp (first 3 layers).down_proj"] == (7168, 2304)


def test_dp_attention_lifts_what_heads_refuse() -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 12,
        "head_dim": 128,
        "moe_intermediate_size": 1024,
        "quantization_config": V3["quantization_config"],
    }
    assert {each.layer for each in listed(config, Parallelism(8)).refused} == {"qkv_proj", "o_proj"}
    assert listed(config, Parallelism(8, dp_attention=True)).refused == ()


def test_dp_attention_is_sglangs() -> None:
    with pytest.raises(InputError, match="--tp-size of one data-parallel replica"):
        listed(V3, Parallelism(8, dp_attention=True), VLLM)


def test_expert_parallelism_leaves_routed_experts_whole() -> None:
    def refuses(spread: Parallelism) -> bool:
        return any("2048/32 = 64" in note for note in listed(V3, spread).notes)

    assert refuses(Parallelism(32))
    assert not refuses(Parallelism(32, ep_size=32))
    assert not refuses(Parallelism(32, ep_size=2))  # 16 GPUs share an expert
    assert not refuses(Parallelism(16))
    assert not any("routed" in each.layer for each in listed(V3, Parallelism(32)).refused)


def test_shared_experts_under_expert_parallelism() -> None:
    layer = "shared_experts.gate_up_proj"
    assert sizes(listed(V3, Parallelism(8, ep_size=8), SGLANG))[layer] == (512, 7168)
    assert sizes(listed(V3, Parallelism(8, ep_size=8), VLLM))[layer] == (512, 7168)
    assert sizes(listed(V3, Parallelism(8, ep_size=32), VLLM))[layer] == (4096, 7168)  # four replicas of 8 GPUs


def test_shared_experts_in_the_moe_kernel_leave_no_gemm() -> None:
    shapes = listed(V3, Parallelism(8), SGLANG, folded=True)
    apart = listed(V3, Parallelism(8), SGLANG)
    assert {each.layer for each in apart.shapes} - {each.layer for each in shapes.shapes} == {
        "shared_experts.gate_up_proj",
        "shared_experts.down_proj",
    }
    assert any("folded into the MoE kernel" in note for note in shapes.notes)
    assert listed(V3, Parallelism(32), SGLANG, folded=True).refused == tuple(
        each for each in listed(V3, Parallelism(32)).refused if not each.layer.startswith("shared")
    )


@pytest.mark.parametrize("sizes_given", [(0, 1), (8, 0), (True, 1), (2.0, 1), ("8", 1), (8, 3)])
def test_sizes_that_no_engine_starts_with(sizes_given: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match=r"--tp-size|--ep-size"):
        Parallelism(*sizes_given)


# --- which rules are read --------------------------------------------------------------------------------------------


def test_a_name_that_no_engine_has_is_marked_unverified() -> None:
    step = {
        "hidden_size": 4096,
        "num_hidden_layers": 1,
        "num_attention_heads": 64,
        "num_attention_groups": 8,
        "head_dim": 128,
        "layer_types": ["full_attention"],
        "mlp_layer_types": ["dense"],
        "intermediate_size": 11264,
        "quantization_config": V3["quantization_config"],
    }
    known = listed(step | {"architectures": ["Step3p5ForCausalLM"]}, Parallelism(1))
    guessed = listed(step | {"architectures": ["Step3p7FlashForCausalLM"]}, Parallelism(1))
    assert known.unverified is None
    assert guessed.unverified is not None
    assert guessed.shapes == known.shapes


def test_a_wrapper_that_nobody_knows_is_read_as_its_text_part_and_marked() -> None:
    wrapped = listed({"architectures": ["SomeOmniModel"], "text_config": V3}, Parallelism(8))
    assert wrapped.unverified is not None
    assert "SomeOmniModel" in wrapped.unverified
    assert wrapped.shapes == listed(V3, Parallelism(8)).shapes
    kimi = listed({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": V3}, Parallelism(8))
    assert kimi.unverified is None
    assert kimi.shapes == wrapped.shapes


@pytest.mark.parametrize(
    ("wrapper", "kind"),
    [
        ("Glm4vMoeForConditionalGeneration", "glm4v_moe_text"),
        ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"),
        ("Qwen3VLForConditionalGeneration", "qwen3_vl_text"),
    ],
)
def test_the_text_part_alone_is_read_as_within_its_wrapper(wrapper: str, kind: str) -> None:
    text = {
        "model_type": kind,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    }
    quant = {"quantization_config": V3["quantization_config"]}
    whole = listed({"architectures": [wrapper], "text_config": text, "vision_config": {"hidden_size": 1}} | quant, ON_4)
    assert whole.unverified is None
    assert sizes(whole)["qkv_proj"] == (2560, 4096)
    assert listed(text | quant, ON_4) == whole
