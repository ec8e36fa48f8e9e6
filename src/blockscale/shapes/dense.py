"""Dense decoders with grouped-query attention: Llama, Mistral, Qwen2, Qwen3 and the like."""

from __future__ import annotations

from blockscale.shapes.blocks import ATTENTION_ROOT, Heads, gated_mlp, grouped_query_attention
from blockscale.shapes.fields import Fields
from blockscale.shapes.parallelism import EngineVersion
from blockscale.shapes.rules import Family, Layer, Site

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Mistral3ForConditionalGeneration",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3VLForConditionalGeneration",
)
MODEL_TYPES = ("llama", "mistral", "mistral3", "qwen2", "qwen3", "qwen3_vl", "qwen3_vl_text")
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/llama.py, qwen2.py, qwen3.py, qwen3_vl.py, mistral.py, mistral3.py",
    "SGLang 0.5.23": "models/llama.py, qwen2.py, qwen3.py, qwen3_vl.py, mistral.py",
}


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """All block-scaled GEMMs of the model."""
    site = Site(tuple(fields.layers()), ("mlp.",))
    mlp = gated_mlp("mlp", site, fields.size("hidden_size"), fields.size("intermediate_size"))
    return Family((*attention(fields), *mlp), heads=fields.size("num_attention_heads"))


def attention(fields: Fields) -> tuple[Layer, ...]:
    """The projections of grouped-query attention that is the same in all layers."""
    site = Site(tuple(fields.layers()), (ATTENTION_ROOT,))
    return grouped_query_attention(heads(fields), site, fields.size("hidden_size"))


def heads(fields: Fields) -> Heads:
    """Heads as most configs name them; a head's width is the hidden size over their number where nothing is said."""
    query = fields.size("num_attention_heads")
    width = fields.size("head_dim", max(fields.size("hidden_size") // query, 1))
    return Heads(query, fields.size("num_key_value_heads", query), width)
