"""Mixtures of experts without a shared expert: Qwen3-MoE, and MiniMax-M2, all of whose layers are sparse."""

from __future__ import annotations

from blockscale.shapes.blocks import gated_mlp
from blockscale.shapes.dense import attention
from blockscale.shapes.fields import Fields
from blockscale.shapes.parallelism import EngineVersion
from blockscale.shapes.rules import Experts, Family, Site

ARCHITECTURES = ("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration", "MiniMaxM2ForCausalLM")
MODEL_TYPES = ("qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_text", "minimax_m2")
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/qwen3_moe.py, qwen3_vl_moe.py, minimax_m2.py",
    "SGLang 0.5.23": "models/qwen3_moe.py, qwen3_vl_moe.py, minimax_m2.py",
}


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """The block-scaled GEMMs of the model that are no experts."""
    of_experts = "moe_intermediate_size" if fields.has("moe_intermediate_size") else "intermediate_size"
    dense = dense_layers(fields)
    sparse = len(dense) < len(fields.layers())
    width = fields.size("intermediate_size") if dense else 0
    return Family(
        layers=(*attention(fields), *gated_mlp("mlp", Site(dense, ("mlp.",)), fields.size("hidden_size"), width)),
        heads=fields.size("num_attention_heads"),
        experts=Experts(fields.size(of_experts)) if sparse else None,
    )


def dense_layers(fields: Fields) -> tuple[int, ...]:
    """Layers without experts: a layer is sparse where its number, counted from 1, is a multiple of the step, unless it
    is named as dense, or the model has 0 experts."""
    if fields.count("num_experts", 1) == 0:
        return tuple(fields.layers())
    step, named = fields.size("decoder_sparse_step", 1), set(fields.integers("mlp_only_layers"))
    return tuple(i for i in fields.layers() if (i + 1) % step or i in named)
