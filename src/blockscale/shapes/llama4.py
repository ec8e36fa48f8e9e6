"""Llama 4: grouped-query attention, sparse layers with one shared expert between dense ones."""

from __future__ import annotations

from blockscale.shapes.blocks import gated_mlp
from blockscale.shapes.dense import attention
from blockscale.shapes.fields import Fields
from blockscale.shapes.parallelism import EngineVersion, Role
from blockscale.shapes.rules import Experts, Family, Site

ARCHITECTURES = ("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
MODEL_TYPES = ("llama4", "llama4_text")
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/llama4.py, mllama4.py",
    "SGLang 0.5.23": "models/llama4.py, mllama4.py",
}


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """The block-scaled GEMMs of the model that are no routed experts."""
    hidden, expert = fields.size("hidden_size"), fields.size("intermediate_size")
    step = fields.count("interleave_moe_layer_step", 1)
    sparse = tuple(i for i in fields.layers() if step and (i + 1) % step == 0)
    dense = tuple(i for i in fields.layers() if i not in set(sparse))
    width = fields.size("intermediate_size_mlp") if dense else 0
    shared = Site(sparse, ("feed_forward.shared_expert.",))
    return Family(
        layers=(
            *attention(fields),
            *gated_mlp("feed_forward", Site(dense, ("feed_forward.",)), hidden, width),
            *gated_mlp("shared_expert", shared, hidden, expert, Role.SHARED_EXPERT),
        ),
        heads=fields.size("num_attention_heads"),
        experts=Experts(expert) if sparse else None,
    )
