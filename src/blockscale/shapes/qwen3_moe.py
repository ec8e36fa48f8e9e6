"""Qwen3 mixture-of-experts models: dense attention; the routed experts run on another kernel."""

from __future__ import annotations

from blockscale.shapes.dense import attention
from blockscale.shapes.fields import Fields
from blockscale.shapes.rules import Family, gated_mlp

ARCHITECTURES = ("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration")
MODEL_TYPES = ("qwen3_moe", "qwen3_vl_moe")


def family(fields: Fields, engine: str | None) -> Family:
    """The block-scaled GEMMs of the model that are no experts."""
    layers, step = fields.size("num_hidden_layers"), fields.size("decoder_sparse_step", 1)
    # A layer is sparse where its number, counted from 1, is a multiple of the step, unless it is named as dense.
    dense_by_name = {index for index in fields.integers("mlp_only_layers") if 0 <= index < layers}
    dense = layers - layers // step + sum((index + 1) % step == 0 for index in dense_by_name)
    mlp = gated_mlp("mlp", dense, fields.size("hidden_size"), fields.size("intermediate_size")) if dense else ()
    return Family(
        layers=(*attention(fields), *mlp),
        heads=fields.size("num_attention_heads"),
        notes=("Routed experts are left out: the engines' MoE tuners tune their kernel.",),
    )
