"""Reading the layers of an unknown architecture from names, shapes and scales of its checkpoint."""

from collections.abc import Mapping
from typing import Any

import pytest

from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme, ceil_div
from blockscale.shapes import PRESETS, ModelShapes, Parallelism, layer_shapes
from blockscale.shapes.checkpoint import StoredTensor, family
from blockscale.shapes.source import Model

FP8 = QuantScheme()
DECLARED = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def weight(n: int, k: int) -> StoredTensor:
    return StoredTensor("F8_E4M3", (n, k))


def quantised(modules: Mapping[str, tuple[int, int]], scale: str = "weight_scale_inv") -> dict[str, StoredTensor]:
    """The tensors of FP8 weights in blocks of 128×128."""
    tensors = {}
    for name, (n, k) in modules.items():
        tensors[f"{name}.weight"] = weight(n, k)
        tensors[f"{name}.{scale}"] = StoredTensor("F32", (ceil_div(n, 128), ceil_div(k, 128)))
    return tensors


def plain(modules: Mapping[str, tuple[int, ...]]) -> dict[str, StoredTensor]:
    return {f"{name}.weight": StoredTensor("BF16", shape) for name, shape in modules.items()}


def model(tensors: Mapping[str, StoredTensor], **config: Any) -> Model:
    return Model("some", {"architectures": ["NewForCausalLM"], "quantization_config": DECLARED, **config}, tensors)


def listing(read: Model, tp_size: int = 1, quant: QuantScheme = FP8) -> dict[str, tuple[int, int, str, int]]:
    """N, K, split and count by the layer's name; what engines refuse is left out."""
    return {
        layer.name: (layer.weight(tp_size).N, layer.weight(tp_size).K, str(layer.split), layer.count)
        for layer in family(read, quant).layers
        if layer.refusal(tp_size, quant) is None
    }


# --- checkpoints of known families, whose rules it must find by itself ----------------------------------------------


def deepseek_v3() -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Names and shapes as DeepSeek-V3 stores them, the MTP layer included; eight experts stand for 256."""
    config = PRESETS["deepseek-v3"]
    modules, unquantised = {}, {"model.embed_tokens": (129280, 7168), "lm_head": (129280, 7168)}
    for index in range(62):
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        modules |= {
            f"{attention}.q_a_proj": (1536, 7168),
            f"{attention}.q_b_proj": (24576, 1536),
            f"{attention}.kv_a_proj_with_mqa": (576, 7168),
            f"{attention}.kv_b_proj": (32768, 512),
            f"{attention}.o_proj": (7168, 16384),
        }
        unquantised[f"model.layers.{index}.input_layernorm"] = (7168,)
        experts = {mlp: 18432}
        if index >= 3:
            experts = {f"{mlp}.experts.{number}": 2048 for number in range(8)} | {f"{mlp}.shared_experts": 2048}
            unquantised[f"{mlp}.gate"] = (256, 7168)
        for place, width in experts.items():
            modules |= {f"{place}.gate_proj": (width, 7168), f"{place}.up_proj": (width, 7168)}
            modules[f"{place}.down_proj"] = (7168, width)
    unquantised["model.layers.61.eh_proj"] = (7168, 14336)
    return config, quantised(modules) | plain(unquantised)


def deepseek_v4() -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Names and shapes as DeepSeek-V4-Flash stores them, four layers deep, its FP4 experts included."""
    config = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "compress_ratios": [0, 4, 128, 4],
        "head_dim": 512,
        "hidden_size": 4096,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "q_lora_rank": 1024,
        "quantization_config": DECLARED,
    }
    tensors = {}
    for index, ratio in enumerate(config["compress_ratios"]):
        layer = f"layers.{index}"
        modules = {
            "attn.wq_a": (1024, 4096),
            "attn.wkv": (512, 4096),
            "attn.wq_b": (32768, 1024),
            "attn.wo_a": (8192, 4096),
            "attn.wo_b": (4096, 8192),
            "ffn.shared_experts.w1": (2048, 4096),
            "ffn.shared_experts.w2": (4096, 2048),
            "ffn.shared_experts.w3": (2048, 4096),
        }
        if ratio == 4:
            modules["attn.indexer.wq_b"] = (8192, 1024)
        tensors |= quantised({f"{layer}.{name}": size for name, size in modules.items()}, "scale")
        tensors[f"{layer}.ffn.experts.0.w1.weight"] = StoredTensor("I8", (2048, 2048))
        tensors[f"{layer}.ffn.experts.0.w1.scale"] = StoredTensor("F8_E8M0", (2048, 128))
        tensors |= plain({f"{layer}.ffn.gate": (256, 4096)})
    return config, tensors | quantised({"mtp.0.attn.wo_b": (4096, 8192)}, "scale")


def dense(architecture: str, layers: int, hidden: int, wide: int, heads: int, kv: int, width: int) -> Any:
    """Names and shapes as Qwen3 and Llama store them."""
    config = {
        "architectures": [architecture],
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": width,
        "quantization_config": DECLARED,
    }
    modules = {}
    for index in range(layers):
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        modules |= {
            f"{attention}.q_proj": (heads * width, hidden),
            f"{attention}.k_proj": (kv * width, hidden),
            f"{attention}.v_proj": (kv * width, hidden),
            f"{attention}.o_proj": (hidden, heads * width),
            f"{mlp}.gate_proj": (wide, hidden),
            f"{mlp}.up_proj": (wide, hidden),
            f"{mlp}.down_proj": (hidden, wide),
        }
    return config, quantised(modules) | plain({"lm_head": (151936, hidden), "model.norm": (hidden,)})


CHECKPOINTS = {
    "DeepSeek-V3": deepseek_v3(),
    "DeepSeek-V4-Flash": deepseek_v4(),
    "Qwen3-32B": dense("Qwen3ForCausalLM", 64, 5120, 25600, 64, 8, 128),
    "Llama-3.1-8B": dense("LlamaForCausalLM", 32, 4096, 14336, 32, 8, 128),
}


SPREADS = [*(Parallelism(tp_size) for tp_size in (1, 2, 4, 8, 16, 32)), Parallelism(8, ep_size=8, dp_attention=True)]


@pytest.mark.parametrize("spread", SPREADS, ids=str)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_shows_what_the_rules_of_its_family_say(name: str, spread: Parallelism) -> None:
    config, tensors = CHECKPOINTS[name]
    known = layer_shapes(Model(name, config), spread)
    read = layer_shapes(model(tensors, **{**config, "architectures": ["NewForCausalLM"]}), spread)
    assert sorted(sizes(read)) == sorted(sizes(known))
    assert sorted(layer.tp_sizes_that_work for layer in read.refused) == sorted(
        layer.tp_sizes_that_work for layer in known.refused
    )
    assert "NewForCausalLM" in (read.unverified or "")


@pytest.mark.parametrize("tp_size", [8, 32])
def test_the_width_of_routed_experts_is_read_as_their_family_has_it(tp_size: int) -> None:
    config, tensors = CHECKPOINTS["DeepSeek-V3"]
    known = layer_shapes(Model("known", config), Parallelism(tp_size))
    read = layer_shapes(model(tensors, **{**config, "architectures": ["NewForCausalLM"]}), Parallelism(tp_size))
    of_experts = [note for note in known.notes if "xperts" in note]
    assert [note for note in read.notes if "xperts" in note] == of_experts
    assert any("engines refuse" in note for note in of_experts) == (tp_size == 32)


def sizes(shapes: ModelShapes) -> list[tuple[int, int, str, int]]:
    return [(shape.N, shape.K, shape.split, shape.count) for shape in shapes.shapes]


def test_layers_that_differ_within_a_model_are_told_apart() -> None:
    modules = {}
    for index, (kv_heads, value) in enumerate([(4, 512), (8, 1024), (8, 1024)]):
        attention = f"model.layers.{index}.self_attn"
        modules |= {
            f"{attention}.q_proj": (12288, 4096),
            f"{attention}.k_proj": (192 * kv_heads, 4096),
            f"{attention}.v_proj": (value, 4096),
        }
    assert listing(model(quantised(modules), num_attention_heads=64, num_key_value_heads=4)) == {
        "self_attn.qkv_proj (as in layer 0)": (13568, 4096, "N", 1),
        "self_attn.qkv_proj (as in layer 1)": (14848, 4096, "N", 2),
    }


# --- what is quantised, and what is not -----------------------------------------------------------------------------


ATTENTION = {f"model.layers.{i}.self_attn.{n}_proj": (512, 512) for i in range(2) for n in "qkvo"}


@pytest.mark.parametrize("scale", ["weight_scale_inv", "weight_scale", "scale"])
def test_every_spelling_of_a_scale_is_known(scale: str) -> None:
    read = listing(model(quantised(ATTENTION, scale)))
    assert read == {"self_attn.qkv_proj": (1536, 512, "N", 2), "self_attn.o_proj": (512, 512, "K", 2)}


def test_what_has_no_block_scale_is_not_listed() -> None:
    tensors = quantised(ATTENTION) | plain({"model.layers.0.mlp.gate": (64, 512), "lm_head": (1024, 512)})
    assert set(listing(model(tensors))) == {"self_attn.qkv_proj", "self_attn.o_proj"}


@pytest.mark.parametrize("shape", [(), (1,), (512, 1), (1, 1)])
def test_scales_a_tensor_or_a_row_are_not_of_blocks(shape: tuple[int, ...]) -> None:
    tensors = quantised(ATTENTION) | {
        "model.layers.0.mlp.down_proj.weight": weight(512, 512),
        "model.layers.0.mlp.down_proj.weight_scale": StoredTensor("F32", shape),
    }
    read = model(tensors)
    assert "mlp.down_proj" not in listing(read)
    assert any("otherwise than in blocks" in note and "down_proj" in note for note in family(read, FP8).notes)


def test_int8_weights_are_of_an_int8_scheme_alone() -> None:
    tensors = {
        name: StoredTensor("I8", tensor.shape) if name.endswith("weight") else tensor
        for name, tensor in quantised(ATTENTION).items()
    }
    int8 = QuantScheme(QuantFormat.INT8)
    assert set(listing(model(tensors), 1, int8)) == {"self_attn.qkv_proj", "self_attn.o_proj"}
    with pytest.raises(InputError, match=r"no weight of a linear layer in fp8 blocks of 128×128.*--N and --K"):
        family(model(tensors), FP8)


def test_scales_of_other_blocks_than_declared_are_one_message() -> None:
    with pytest.raises(InputError, match=r"512×512 with scales 4×4, but blocks of 64×64.*take 8×8.*disagree"):
        family(model(quantised(ATTENTION)), QuantScheme(QuantFormat.FP8, 64, 64))


def test_routed_experts_mtp_layers_and_what_runs_otherwise_are_left_out_with_notes() -> None:
    left_out = {
        "model.layers.1.mlp.experts.7.gate_proj": (512, 512),
        "model.layers.2.self_attn.o_proj": (512, 512),
        "mtp.layers.0.self_attn.o_proj": (512, 512),
        "model.layers.1.self_attn.indexer.wk": (128, 512),
        "model.layers.1.self_attn.wo_a": (512, 512),
        "lm_head": (32000, 512),
    }
    read = model(quantised(ATTENTION | left_out), num_hidden_layers=2)
    assert set(listing(read)) == {"self_attn.qkv_proj", "self_attn.o_proj"}
    assert family(read, FP8).experts is not None
    for part in ("MTP", "wk is stored in blocks", "wo_a is stored in blocks", "lm_head is stored in blocks"):
        assert sum(part in note for note in family(read, FP8).notes) == 1


def test_experts_in_one_tensor_are_left_out_with_a_note() -> None:
    packed = {"model.layers.0.mlp.experts.gate_up_proj": StoredTensor("F8_E4M3", (8, 1024, 512))}
    read = model(quantised(ATTENTION) | packed)
    assert set(listing(read)) == {"self_attn.qkv_proj", "self_attn.o_proj"}
    assert sum("experts" in note for note in family(read, FP8).notes) == 1


def test_a_vision_tower_with_more_weights_is_not_taken_for_the_language_model() -> None:
    tower = {f"model.visual.blocks.{i}.attn.qkv": (1536, 512) for i in range(9)}
    read = model(quantised(ATTENTION | tower), num_hidden_layers=2)
    assert listing(read)["model.visual.blocks.attn.qkv"][3] == 9
    assert not any("MTP" in note for note in family(read, FP8).notes)


def test_an_unquantised_checkpoint_is_read_as_quantising_while_loading_has_it() -> None:
    around = {
        "model.embed_tokens": (1024, 512),
        "lm_head": (1024, 512),
        "model.layers.0.mlp.gate": (64, 512),
        "model.visual.blocks.0.attn.qkv": (512, 512),
        "model.layers.0.mlp.experts.3.w1": (512, 512),
    }
    tensors = plain(ATTENTION | around)
    assert set(listing(model(tensors, quantization_config=None))) == {"self_attn.qkv_proj", "self_attn.o_proj"}
    with pytest.raises(InputError, match="stores no weight"):
        family(model(tensors), FP8)


# --- how it is fused and cut ----------------------------------------------------------------------------------------


FUSED = {
    "DeepSeek-V4": (
        {"attn.wq_a": (1024, 4096), "attn.wkv": (512, 4096), "attn.wo_b": (4096, 8192)},
        {"attn.fused_wqa_wkv": (1536, 4096, "replicated"), "attn.wo_b": (4096, 8192, "K")},
    ),
    "indexer": ({"self_attn.indexer.wq_b": (8192, 1536)}, {"self_attn.indexer.wq_b": (8192, 1536, "replicated")}),
    "Meta": (
        {"feed_forward.w1": (512, 256), "feed_forward.w3": (512, 256), "feed_forward.w2": (256, 512)},
        {"feed_forward.w13": (1024, 256, "N"), "feed_forward.w2": (256, 512, "K")},
    ),
    "stacked already": (
        {"attn.qkv_proj": (1536, 512), "mlp.gate_up_proj": (2048, 512)},
        {"attn.qkv_proj": (1536, 512, "N"), "mlp.gate_up_proj": (2048, 512, "N")},
    ),
    "gated delta net": (
        {"linear_attn.in_proj_qkv": (1024, 256), "linear_attn.in_proj_z": (512, 256)},
        {"linear_attn.in_proj_qkvz": (1536, 256, "N")},
    ),
    "one of three, the others nowhere": ({"self_attn.q_proj": (512, 256)}, {"self_attn.q_proj": (512, 256, "N")}),
    "two attentions a layer": (
        {"self_attn.0.o_proj": (512, 256), "self_attn.1.o_proj": (512, 256)},
        {"self_attn.o_proj": (512, 256, "K")},
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_names_tell_what_is_fused_and_cut(name: str) -> None:
    modules, expected = FUSED[name]
    read = listing(model(quantised({f"layers.0.{module}": size for module, size in modules.items()})))
    assert {layer: size for layer, (*size, _) in read.items()} == {
        layer: list(size) for layer, size in expected.items()
    }


def test_stacked_heads_are_cut_as_heads() -> None:
    stacked = quantised({"layers.0.attn.qkv_proj": ((32 + 2 * 8) * 128, 4096)})
    read = model(stacked, num_attention_heads=32, num_key_value_heads=8)
    assert [listing(read, tp)["attn.qkv_proj"][0] for tp in (1, 8, 16)] == [6144, 768, 512]


def test_a_fused_layer_that_is_partly_in_blocks_is_left_out() -> None:
    tensors = quantised(ATTENTION)
    del tensors["model.layers.1.self_attn.k_proj.weight_scale_inv"]
    tensors["model.layers.1.self_attn.k_proj.weight"] = StoredTensor("BF16", (512, 512))
    read = model(tensors)
    assert listing(read)["self_attn.qkv_proj"] == (1536, 512, "N", 1)
    assert any("q_proj, v_proj is in blocks and k_proj is not" in note for note in family(read, FP8).notes)


def test_a_name_that_does_not_tell_the_split_is_listed_whole_with_a_note() -> None:
    (shape,) = layer_shapes(model(quantised({"layers.0.mixer.blend": (512, 256)})), Parallelism(4)).shapes
    assert (shape.layer, shape.N, shape.K, shape.split) == ("mixer.blend", 512, 256, "replicated")
    assert "held whole by each GPU" in shape.note


def test_heads_of_a_nested_config_are_the_language_models() -> None:
    nested = {"text_config": {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}}
    read = family(model(quantised(ATTENTION), **nested), FP8)
    assert read.heads == 4


# --- where there is nothing to read ---------------------------------------------------------------------------------


def test_without_a_checkpoint_the_way_out_is_named() -> None:
    bare = Model("bare", {"architectures": ["NewForCausalLM"]})
    with pytest.raises(InputError, match=r"NewForCausalLM is not known.*bare is a config alone.*--N and --K"):
        family(bare, FP8)
