"""Reading the layers of an unknown architecture from names, shapes and scales of its checkpoint."""

from collections.abc import Mapping
from typing import Any

import pytest

from blockscale.errors import InputError
from blockscale.problem import QuantFormat, QuantScheme, ceil_div
from blockscale.shapes import PRESETS, layer_shapes
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
    "Qwen3-32B": dense("Qwen3ForCausalLM", 64, 5120, 25600, 64, 8, 128),
    "Llama-3.1-8B": dense("LlamaForCausalLM", 32, 4096, 14336, 32, 8, 128),
}


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_shows_what_the_rules_of_its_family_say(name: str, tp_size: int) -> None:
    config, tensors = CHECKPOINTS[name]
    read = listing(Model(name, config, tensors), tp_size)
    known = layer_shapes(config, tp_size)
    assert sorted(read.values()) == sorted((s.N, s.K, s.split, s.count) for s in known.shapes)
