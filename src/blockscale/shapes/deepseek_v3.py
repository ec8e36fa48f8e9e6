"""DeepSeek-V3 and its like (R1, V3.1, Kimi-K2): multi-head latent attention, dense first layers, shared experts."""

from __future__ import annotations

from typing import Any

from blockscale.shapes.fields import Fields
from blockscale.shapes.rules import Family, Layer, Part, column, gated_mlp, replicated, row

ARCHITECTURES = ("DeepseekV3ForCausalLM",)
MODEL_TYPES = ("deepseek_v3",)

# Published dimensions of DeepSeek-V3, R1 and V3.1, which are the same.
PRESET: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}

# vLLM's name; SGLang appends _with_mqa.
_FUSED_NAMES = {"sglang": "fused_qkv_a_proj_with_mqa"}


def family(fields: Fields, engine: str | None) -> Family:
    """All block-scaled GEMMs of the model."""
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    dense = min(fields.count("first_k_dense_replace", 0), layers)
    experts = fields.count("n_shared_experts", 0)
    shared = experts * fields.size("moe_intermediate_size") if experts else 0
    shared_layers = layers - dense if shared else 0
    return Family(
        layers=(
            *_attention(fields, hidden, layers, engine),
            *gated_mlp(f"dense mlp (first {dense} layers)", dense, hidden, fields.size("intermediate_size")),
            *gated_mlp("shared_experts", shared_layers, hidden, shared),
        ),
        heads=fields.size("num_attention_heads"),
        notes=_notes(shared_layers, engine),
    )


def _attention(fields: Fields, hidden: int, layers: int, engine: str | None) -> tuple[Layer, ...]:
    heads = fields.size("num_attention_heads")
    nope, rope, value = (fields.size(f) for f in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent = fields.size("kv_lora_rank")
    query, compressed = Part("q", heads, nope + rope), Part("kv_a", latent + rope)
    first: tuple[Layer, ...]
    if fields.has("q_lora_rank"):
        rank = fields.size("q_lora_rank")
        # Both projections read the hidden state: engines run them as one GEMM that no GPU cuts.
        fused = _FUSED_NAMES.get(engine or "", "fused_qkv_a_proj")
        first = (
            replicated(fused, layers, hidden, Part("q_a", rank), compressed),
            column("q_b_proj", layers, rank, query),
        )
    else:
        first = column("q_proj", layers, hidden, query), replicated("kv_a_proj_with_mqa", layers, hidden, compressed)
    return (
        *first,
        column("kv_b_proj", layers, latent, Part("kv", heads, nope + value)),
        row("o_proj", layers, hidden, Part("attention", heads, value)),
    )


def _notes(shared_layers: int, engine: str | None) -> tuple[str, ...]:
    notes = ["kv_b_proj is a GEMM of its own only while prefilling without absorbed weights."]
    if shared_layers and engine != "vllm":
        notes.append("SGLang may fold the shared experts into its MoE kernel: their GEMMs are not run then.")
    return tuple(notes)
