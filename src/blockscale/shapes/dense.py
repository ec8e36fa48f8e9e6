"""Dense decoders with grouped-query attention: Llama, Mistral, Qwen2, Qwen3 and the like."""

from __future__ import annotations

from blockscale.shapes.fields import Fields
from blockscale.shapes.rules import Family, Layer, Part, column, gated_mlp, row

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3VLForConditionalGeneration",
)
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_vl")


def family(fields: Fields, engine: str | None) -> Family:
    """All block-scaled GEMMs of the model."""
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    mlp = gated_mlp("mlp", layers, hidden, fields.size("intermediate_size"))
    return Family((*attention(fields), *mlp), heads=fields.size("num_attention_heads"))


def attention(fields: Fields) -> tuple[Layer, ...]:
    """The projections of grouped-query attention; KV heads are repeated where there are more GPUs than heads."""
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    width = fields.size("head_dim", max(hidden // heads, 1))
    query = Part("q", heads, width)
    key, value = (Part(name, kv_heads, width, repeat=True) for name in ("k", "v"))
    return (
        column("qkv_proj", layers, hidden, query, key, value),
        row("o_proj", layers, hidden, Part("attention", heads, width)),
    )
